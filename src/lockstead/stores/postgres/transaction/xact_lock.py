"""For programs that have PostgreSQL themselves: locks that end with a transaction of yours, and the migration."""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from math import ceil, inf
from typing import Any, TypeVar

from lockstead.core.checks import Seconds, check_seconds
from lockstead.core.runtime import drive
from lockstead.errors import InvalidInputError, LockAcquisitionError
from lockstead.runtimes.clock import now
from lockstead.stores.postgres.key import Key, Name, advisory_key
from lockstead.stores.postgres.transaction.connections import Rows, UserConnection, borrow, sqlstate

T = TypeVar("T")

_LOCK_NOT_AVAILABLE = "55P03"
_MAX_MILLISECONDS = 2**31 - 1

# Everything is named with its schema, operators too: the search_path is the user's, and what another role has planted
# in one of its schemas must not run. `bigint` and `integer` are keywords, which no other type can be named like.
# A materialized query is sorted before anything is computed from its rows; a plain ORDER BY leaves that to the planner.
# The keys are text since asyncpg would ask the server what an array of numbers is, once for each connection.
_KEYS = """
    WITH key AS MATERIALIZED (
        SELECT numbers, pg_catalog.strpos(numbers, ',') OPERATOR(pg_catalog.>) 0 AS is_pair
        FROM pg_catalog.unnest(CAST($1 AS pg_catalog.text[])) WITH ORDINALITY AS given (numbers, place)
        ORDER BY place
    )
"""
# A lock_timeout counts for each lock anew, so each has what the ones before it have left.
_SET_LOCK_TIMEOUT = """pg_catalog.set_config('lock_timeout', greatest(1, CAST($2 AS bigint) OPERATOR(pg_catalog.-)
    CAST(pg_catalog.floor(extract(
        epoch FROM pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) pg_catalog.statement_timestamp()
    ) OPERATOR(pg_catalog.*) 1000) AS bigint))::pg_catalog.text, true)"""
_RESTORE_LOCK_TIMEOUT = "SELECT pg_catalog.set_config('lock_timeout', CAST($1 AS pg_catalog.text), true)"
_HOLDER = """
    SELECT given.key, l.pid, a.application_name
    FROM pg_catalog.unnest(CAST($1 AS pg_catalog.text[])) WITH ORDINALITY AS given (key, place)
    JOIN pg_catalog.pg_locks l ON l.locktype OPERATOR(pg_catalog.=) 'advisory' AND l.granted
        AND pg_catalog.concat_ws(',', l.classid, l.objid, l.objsubid) OPERATOR(pg_catalog.=) given.key
    JOIN pg_catalog.pg_stat_activity a ON a.pid OPERATOR(pg_catalog.=) l.pid
    WHERE (l.mode OPERATOR(pg_catalog.=) 'ExclusiveLock' OR NOT CAST($2 AS boolean))
    AND l.pid OPERATOR(pg_catalog.<>) pg_catalog.pg_backend_pid()
    AND l.database OPERATOR(pg_catalog.=) (SELECT oid FROM pg_catalog.pg_database
        WHERE datname OPERATOR(pg_catalog.=) pg_catalog.current_database())
    ORDER BY place, l.pid LIMIT 1
"""


def xact_lock(connection: object, *names: Name, shared: bool = False, timeout: Seconds | None = None) -> XactLock:
    """Hold locks from here to the end of the transaction you are in, on your own connection.

    Use it as ``with xact_lock(connection, "account:42"):``, or ``async with`` for an asynchronous connection. It takes
    a session or connection of SQLAlchemy, a connection of psycopg 3 or asyncpg, or Django's.

    Your commit or rollback ends the lock, as does a rollback to a savepoint from before it. **Leaving the block does
    not**: no sooner may anybody else go on, or they would not see what you wrote. This never commits or rolls back.
    Asking again within the transaction succeeds at once.

    Several names are taken in one step and one order, whichever way they are given, so such calls never wait for each
    other in a circle. Two calls in one transaction may, and so may one that has `shared` and asks for more: the server
    then fails one of them. A name is a string, or the number or pair of them that other programs lock by.

    `shared` locks exclude only those that are not. `timeout` is for all names together: None waits for as long as the
    server lets; 0 does not wait. When the time is up, nothing is left behind, neither some of the locks nor a
    lock_timeout, and the transaction can go on.

    Nothing is locked before the block is entered: a call that is dropped without is warned of (RuntimeWarning).

    There is no lease and no fence, and it excludes only who takes the same advisory lock. Any pooler will do,
    PgBouncer's transaction mode included. Under REPEATABLE READ and SERIALIZABLE, what you read is as old as the
    transaction's first statement, which may be the one that waited: prefer READ COMMITTED.

    Raises InvalidInputError for what is no name, no such connection, or has no transaction open; when the block is
    entered, LockAcquisitionError if the time is up, and everything else as your driver does: a deadlock, a failed
    transaction, a lost connection.
    """
    if not names:
        msg = "xact_lock needs the name of at least one lock"
        raise InvalidInputError(msg)
    limit = inf if timeout is None else check_seconds(timeout, "timeout")
    by_key = {advisory_key(name): name if isinstance(name, str) else "" for name in names}
    return XactLock(borrow(connection), {key: by_key[key] or str(key) for key in sorted(by_key)}, shared, limit)


class XactLock:
    """What `xact_lock` returns: enter it to take the locks; leaving it does nothing."""

    _is_unused = False

    def __init__(self, connection: UserConnection, names: dict[Key, str], is_shared: bool, timeout: float) -> None:  # noqa: FBT001
        self._connection = connection
        self._names = names
        self._is_shared = is_shared
        self._timeout = timeout
        self._is_unused = True

    def __del__(self) -> None:
        if self._is_unused:
            names = ", ".join(map(repr, self._names.values()))
            form = "async with" if self._connection.is_async else "with"
            msg = f"xact_lock(…, {names}) was never entered, so nothing is locked: write '{form} xact_lock(…):'"
            warnings.warn(msg, RuntimeWarning, stacklevel=2, source=self)

    def __enter__(self) -> None:
        self._is_unused = False
        if self._connection.is_async:
            msg = f"this {self._connection.kind} is asynchronous: write 'async with xact_lock(…)'"
            raise InvalidInputError(msg)
        drive(self._take())

    def __exit__(self, *_exc: object) -> None:
        """Leave the locks to the transaction."""

    async def __aenter__(self) -> None:
        self._is_unused = False
        if not self._connection.is_async:
            msg = f"this {self._connection.kind} is blocking: write 'with xact_lock(…)'"
            raise InvalidInputError(msg)
        await self._take()

    async def __aexit__(self, *_exc: object) -> None:
        """Leave the locks to the transaction."""

    async def _take(self) -> None:
        await self._connection.check_transaction()
        if self._timeout == inf:
            await self._fetch(f"{_KEYS} SELECT {self._call('pg_advisory_xact_lock')} FROM key")
            return
        started = now()
        # Most locks are free, and this asks the server once where waiting takes a savepoint and two settings.
        is_taken = await (self._try_lock() if len(self._names) == 1 else self._within_savepoint(self._try_lock))
        if not is_taken and self._timeout > 0:
            is_taken = await self._within_savepoint(self._wait)
        if not is_taken:
            raise await self._refusal(now() - started)

    async def _try_lock(self) -> bool:
        rows = await self._fetch(
            f"{_KEYS} SELECT pg_catalog.bool_and({self._call('pg_try_advisory_xact_lock')}) FROM key"
        )
        return bool(rows[0][0])

    async def _wait(self) -> bool:
        limit = min(ceil(self._timeout * 1000), _MAX_MILLISECONDS)
        before = (await self._connection.fetch("SELECT pg_catalog.current_setting('lock_timeout')"))[0][0]
        take = self._call("pg_advisory_xact_lock")
        await self._fetch(f"{_KEYS} SELECT CASE WHEN {_SET_LOCK_TIMEOUT} IS NOT NULL THEN {take} END FROM key", limit)
        await self._connection.fetch(_RESTORE_LOCK_TIMEOUT, before)
        return True

    def _call(self, function: str) -> str:
        function = f"pg_catalog.{function}{'_shared' if self._is_shared else ''}"
        pair = ", ".join(f"pg_catalog.split_part(numbers, ',', {part})::integer" for part in (1, 2))
        return f"CASE WHEN is_pair THEN {function}({pair}) ELSE {function}(numbers::bigint) END"

    async def _fetch(self, sql: str, *args: Any) -> Rows:
        return await self._connection.fetch(sql, [_join(key.arguments) for key in self._names], *args)

    async def _within_savepoint(self, work: Callable[[], Awaitable[T]]) -> T | None:
        """Give back what was locked or set, unless there is a result; a lock that did not come in time is none."""
        await self._connection.fetch("SAVEPOINT lockstead")
        try:
            result = await work()
        except BaseException as error:
            if sqlstate(error) != _LOCK_NOT_AVAILABLE:
                with suppress(Exception):  # a lost connection has nothing to go back to
                    await self._roll_back_to_savepoint()
                raise
            result = None
        if not result:
            await self._roll_back_to_savepoint()
            return None
        await self._connection.fetch("RELEASE SAVEPOINT lockstead")
        return result

    async def _roll_back_to_savepoint(self) -> None:
        await self._connection.fetch("ROLLBACK TO SAVEPOINT lockstead")
        await self._connection.fetch("RELEASE SAVEPOINT lockstead")

    async def _refusal(self, waited: float) -> LockAcquisitionError:
        name = ", ".join(self._names.values())
        holder, why = "", "it was busy, and who held it cannot be told"
        by_key = {_join(key.pg_locks): name for key, name in self._names.items()}
        with suppress(Exception):  # who it was is worth an error message, not an error
            if rows := await self._within_savepoint(
                lambda: self._connection.fetch(_HOLDER, list(by_key), self._is_shared)
            ):
                key, pid, application = rows[0]
                holder = f"{application} (pid {pid})" if application else f"pid {pid}"
                why = f"{by_key[key]!r} is held by {holder}"
        return LockAcquisitionError(
            f"{name!r} was not acquired in {waited:.1f} s: {why}", name=name, attempts=1, waited=waited, holder=holder
        )


def _join(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers))
