"""Advisory locks that end with the user's transaction."""

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
from lockstead.stores.postgres.transaction.connections import Rows, UserConnection, sqlstate, wrap
from lockstead.stores.statements import load

T = TypeVar("T")

_LOCK_NOT_AVAILABLE = "55P03"
_MAX_MILLISECONDS = 2**31 - 1

_SQL = load("lockstead.stores.postgres.transaction")


def xact_lock(connection: object, *names: Name, shared: bool = False, timeout: Seconds | None = None) -> XactLock:
    """Hold locks from here to the end of the transaction you are in, on your own connection.

    Use it as ``with xact_lock(connection, "account:42"):``, or ``async with`` for an asynchronous connection. It takes
    a session or connection of SQLAlchemy, a connection of psycopg 3 or asyncpg, or Django's.

    Your commit or rollback releases the lock, as does a rollback to a savepoint from before it. **Leaving the block
    does not**: the next holder must not proceed before your commit, or it would not see what you wrote. This never
    commits or rolls back. Acquiring a name again within the transaction succeeds at once.

    Several names are acquired in one step and in a global order, whatever order they are given in, so such calls cannot
    deadlock with each other. Two calls in one transaction may, and so may one that has a `shared` lock and acquires it
    exclusively: the server then fails one of them. A name is a string, or the number or pair of numbers that other
    programs lock by.

    `shared` locks exclude only exclusive ones. `timeout` is for all names together: None waits for as long as the
    server allows; 0 does not wait. When the time is over, nothing is left behind, neither some of the locks nor a
    lock_timeout, and the transaction can continue.

    Nothing is locked before the block is entered: a call that is dropped without entering it issues a RuntimeWarning.

    There is no lease and no fence, and it excludes only holders of the same advisory lock. It works through any pooler,
    PgBouncer's transaction mode included. Under REPEATABLE READ and SERIALIZABLE, what you read is as old as the
    transaction's first statement, which may be the one that waited: prefer READ COMMITTED.

    Raises InvalidInputError for an invalid name, an unsupported connection, or one without an open transaction; when
    the block is entered, LockAcquisitionError if the time is over, and everything else as your driver does: a deadlock,
    a failed transaction, a lost connection.
    """
    if not names:
        msg = "xact_lock needs the name of at least one lock"
        raise InvalidInputError(msg)
    limit = inf if timeout is None else check_seconds(timeout, "timeout")
    by_key = {advisory_key(name): name if isinstance(name, str) else "" for name in names}
    return XactLock(wrap(connection), {key: by_key[key] or str(key) for key in sorted(by_key)}, shared, limit)


class XactLock:
    """What `xact_lock` returns: entering it acquires the locks; leaving it does nothing."""

    _is_unused = False

    def __init__(self, connection: UserConnection, names: dict[Key, str], is_shared: bool, timeout: float) -> None:  # noqa: FBT001 (xact_lock alone calls it)
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
        drive(self._acquire())

    def __exit__(self, *_exc: object) -> None:
        """Do nothing: the transaction holds the locks."""

    async def __aenter__(self) -> None:
        self._is_unused = False
        if not self._connection.is_async:
            msg = f"this {self._connection.kind} is blocking: write 'with xact_lock(…)'"
            raise InvalidInputError(msg)
        await self._acquire()

    async def __aexit__(self, *_exc: object) -> None:
        """Do nothing: the transaction holds the locks."""

    async def _acquire(self) -> None:
        await self._connection.check_transaction()
        if self._timeout == inf:
            await self._fetch("lock")
            return
        started = now()
        # Most locks are free, and then this takes one round trip, where waiting takes a savepoint and two settings.
        is_acquired = await (self._try_lock() if len(self._names) == 1 else self._within_savepoint(self._try_lock))
        if not is_acquired and self._timeout > 0:
            is_acquired = await self._within_savepoint(self._wait_for_locks)
        if not is_acquired:
            raise await self._refusal(now() - started)

    async def _try_lock(self) -> bool:
        rows = await self._fetch("try_lock")
        return bool(rows[0][0])

    async def _wait_for_locks(self) -> bool:
        limit = min(ceil(self._timeout * 1000), _MAX_MILLISECONDS)
        before = (await self._connection.fetch(_SQL["lock_timeout"]))[0][0]
        await self._fetch("lock_within", limit)
        await self._connection.fetch(_SQL["restore_lock_timeout"], before)
        return True

    async def _fetch(self, name: str, *args: Any) -> Rows:
        sql = _SQL[name].format(suffix="_shared" if self._is_shared else "")
        return await self._connection.fetch(sql, [_comma_separated(key.arguments) for key in self._names], *args)

    async def _within_savepoint(self, work: Callable[[], Awaitable[T]]) -> T | None:
        """Roll back what was locked or set, unless there is a result. A lock_timeout counts as no result."""
        await self._connection.fetch("SAVEPOINT lockstead")
        try:
            result = await work()
        except BaseException as error:
            if sqlstate(error) != _LOCK_NOT_AVAILABLE:
                with suppress(Exception):  # a lost connection has nothing to roll back
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
        holder, why = "", "it was busy, and its holder is unknown; raise timeout"
        by_key = {_comma_separated(key.pg_locks): name for key, name in self._names.items()}
        with suppress(Exception):  # the holder's name improves the message; to find none must not hide it
            if rows := await self._within_savepoint(
                lambda: self._connection.fetch(_SQL["holder"], list(by_key), self._is_shared)
            ):
                key, pid, application = rows[0]
                holder = f"{application} (pid {pid})" if application else f"pid {pid}"
                why = f"{by_key[key]!r} is held by {holder}; raise timeout, or see pg_stat_activity"
        return LockAcquisitionError(
            f"{name!r} was not acquired in {waited:.1f} s: {why}", name=name, attempts=1, waited=waited, holder=holder
        )


def _comma_separated(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers))
