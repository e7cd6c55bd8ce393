"""`postgresql://`: lines in a table, changed by functions that any language can call.

Every step is one function call in a transaction of its own, so it is atomic, and one round trip. Whoever waits is
told by NOTIFY, on a channel of its client's own, when its place holds.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from math import inf
from typing import Protocol, cast
from weakref import WeakSet

from lockstead.core import lifecycle, rule
from lockstead.core.model import (
    UNKNOWN,
    Ask,
    Capabilities,
    Finding,
    Line,
    Place,
    RateRequest,
    RateResult,
    Refusal,
    Renewal,
    Reservation,
    Session,
    Standing,
    Wake,
)
from lockstead.core.runtime import Runtime
from lockstead.errors import StoreError
from lockstead.runtimes.aio import AsyncRuntime
from lockstead.runtimes.threads import ThreadRuntime
from lockstead.stores.postgres import blocking, pipelined
from lockstead.stores.postgres.address import Address
from lockstead.stores.postgres.errors import FAILURES, is_lock_timeout, is_notify_queue_full, unanswered
from lockstead.stores.postgres.libpq import Lane, Params, Row, Statement, array
from lockstead.stores.postgres.table.health import QUESTION, findings
from lockstead.stores.postgres.table.schema import quoted
from lockstead.stores.transport.subscriber import BlockingSubscriber, LoopSubscriber, OnLost, OnMessage, Subscriber

log = logging.getLogger("lockstead")

INSPECTION_TIMEOUT = 5.0
UNLIMITED = "pg_catalog.set_config('lock_timeout', '0', true)"
"""For the commit, which waits in turn if it has to notify somebody."""
MAX_LOCK_ATTEMPTS = 4
"""How many may find out at the same time, in the way of others, that a name is locked."""
SWEEP_EVERY = 256
CONFIRM_TIMEOUT = 0.5
"""Seconds in which a server answers whether a place holds, before that counts as not known."""
MESSAGE = Wake.HINT
"""What a notification is worth: any role may send one, and a secret in it could be read in the table."""


class Node(Protocol):
    """One server. Each statement is sent once: no driver of ours repeats anything behind the engine's back."""

    is_pooled: bool
    """Whether a pooler stood in between when it last was asked."""

    async def ask(self, statement: Statement, params: Params, timeout: float, lane: Lane = Lane.COMMON) -> list[Row]:
        """Run a statement in a transaction of its own. Raises StoreError, transient if it may have been carried out."""
        ...

    def close(self) -> None: ...


class TableStore:
    """One client's view of the lease table.

    Not promised: that a fail-over keeps what the old primary had not yet sent to its standby. Fences grow all the
    same, by the servers' clocks.
    """

    def __init__(
        self, runtime: Runtime, address: Address, *, schema: str = "lockstead", push: bool = True, ear: Address
    ) -> None:
        self.runtime = runtime
        self.capabilities = Capabilities(push=push)
        self.schema = schema
        self._statements = Statements(quoted(schema))
        self._channel = f"lockstead_{secrets.token_hex(8)}"
        self._joins = secrets.randbelow(SWEEP_EVERY)
        self._reset()
        lifecycle.at_fork(self, in_child="_reset")
        flag = "" if schema == "lockstead" else f" --schema {schema}"
        missing = f"its lease table is missing or too old: run `lockstead migrate --url URL{flag}`"
        self._listens_on_same_address = ear == address
        self._address = address = replace(address, if_missing=missing)
        self._node: Node
        self._subscriber: Subscriber
        if isinstance(runtime, AsyncRuntime):
            self._node = pipelined.PipelinedNode(runtime, address)
            self._subscriber = _loop_subscriber(runtime, ear, self._channel)
        else:
            threads = cast("ThreadRuntime", runtime)
            self._node = blocking.BlockingNode(threads, address)
            self._subscriber = _blocking_subscriber(threads, ear, self._channel)

    def _reset(self) -> None:
        self._attempts: dict[str, WeakSet[_Attempt]] = {}
        """By name. Threads share them without a lock, and only ask for their size: a race lets in a few more."""
        self._blocked_rates: dict[str, WeakSet[_Attempt]] = {}
        """By rate, the requests that wait for it where they are in no other's way."""

    async def join(self, ask: Ask, timeout: float) -> Standing | Refusal:
        hears = ask.queue and self.capabilities.push
        if hears:
            self._subscriber.expect(ask.owner)
        params = (
            ask.name.encode(),
            ask.owner.encode(),
            b"%r" % ask.ttl,
            b"%r" % ask.heartbeat,
            b"%d" % ask.capacity,
            b"%d" % ask.weight,
            b"t" if ask.queue else b"f",
            ask.metadata.encode(),
            self._channel.encode() if hears else b"",
        )
        try:
            ((ticket, held, now, holder, recheck, capacity, _),) = await self._change(
                self._statements.join, [ask.name], params, timeout
            )
        except StoreError as error:
            if not error.transient:
                self._subscriber.forget(ask.owner)
            raise
        self._maybe_sweep()
        if ticket is None:
            return Refusal(_text(holder), _seconds(recheck), int(capacity or 0))
        return _standing(ticket, held, now, holder, recheck)

    async def renew(self, renewals: Sequence[Renewal], timeout: float) -> list[Standing | None]:
        params = (
            array([renewal.name for renewal in renewals]),
            array([renewal.owner for renewal in renewals]),
            array([repr(renewal.ttl) for renewal in renewals]),
            array([repr(renewal.heartbeat) for renewal in renewals]),
            array(["t" if renewal.claim else "f" for renewal in renewals]),
        )
        standings: list[Standing | None] = [None] * len(renewals)
        for number, ticket, *rest in await self._ask(self._statements.renew, params, timeout, Lane.RENEWALS):
            assert number is not None
            standings[int(number) - 1] = UNKNOWN if ticket is None else _standing(ticket, *rest)
        return standings

    async def leave(self, name: str, owner: str, timeout: float, tombstone: float = 0.0) -> bool:
        statement = self._statements.leave_with_tombstone if tombstone else self._statements.leave
        params = name.encode(), owner.encode(), b"%r" % tombstone
        ((was_there, _),) = await self._change(statement, [name], params, timeout)
        self._subscriber.forget(owner)
        return was_there == b"t"

    async def reserve(self, reservation: Reservation, timeout: float) -> bool:
        params = (
            reservation.name.encode(),
            reservation.owner.encode(),
            b"%r" % reservation.seconds,
            None if reservation.metadata is None else reservation.metadata.encode(),
            b"%r" % reservation.tombstone,
        )
        ((was_there, _),) = await self._change(self._statements.reserve, [reservation.name], params, timeout)
        self._subscriber.forget(reservation.owner)
        return was_there == b"t"

    async def join_all(self, asks: Sequence[Ask], timeout: float) -> list[Standing] | Refusal | None:
        names = [ask.name for ask in asks]
        params = (
            array(names),
            array([ask.owner for ask in asks]),
            array([repr(ask.ttl) for ask in asks]),
            array([repr(ask.heartbeat) for ask in asks]),
            array([str(ask.capacity) for ask in asks]),
            array([str(ask.weight) for ask in asks]),
            array([ask.metadata for ask in asks]),
        )
        rows = await self._change(self._statements.join_all, names, params, timeout)
        self._maybe_sweep()
        standings: list[Standing] = []
        for number, ticket, held, now, holder, recheck, capacity, _ in rows:
            if ticket is None:
                name = names[int(_text(number)) - 1]
                return Refusal(_text(holder), _seconds(recheck), int(capacity or 0), name=name)
            standings.append(_standing(ticket, held, now, holder, recheck))
        return standings

    async def spend(self, charge: RateRequest, timeout: float) -> RateResult:
        params = charge.name.encode(), b"%r" % charge.cost, b"%r" % charge.limit, b"%r" % charge.patience
        ((allowed, debt, _),) = await self._consume_locking(charge.name, params, timeout)
        self._maybe_sweep()
        return RateResult(allowed == b"t", _number(debt))

    async def wait(self, name: str, owner: str, timeout: float) -> Wake:
        if not self.capabilities.push:
            await self.runtime.sleep(timeout)
            return Wake.SILENCE
        try:
            wake = await self._subscriber.wait(owner, timeout)
            return await self._confirmed(name, owner) if wake is Wake.HINT else wake
        except _PoolerError as error:
            if self.capabilities.push:
                self.capabilities = Capabilities(push=False)
                log.warning("%s; waiters ask again and again instead", error)
            return Wake.HINT

    async def _confirmed(self, name: str, owner: str) -> Wake:
        """Ask whether a place holds that may: by reading, which waits for no disk as a renewal does."""
        with suppress(StoreError):  # then the caller asks, and handles what is wrong
            if await self._node.ask(self._statements.holds, (name.encode(), owner.encode()), CONFIRM_TIMEOUT):
                return Wake.GRANT
        return Wake.HINT

    async def inspect(self, prefix: str = "", *, exact: bool = False) -> list[Line]:
        statement = self._statements.look if exact else self._statements.list
        rows = await self._node.ask(statement, (prefix.encode(),), INSPECTION_TIMEOUT)
        lines = []
        for name, of_name in groupby(rows, key=lambda row: row[0]):
            places = list(of_name)
            now = _number(places[0][1])
            lines.append(Line(_text(name), now, rule.live(map(_place, places), now)))
        return lines

    async def examine(self) -> list[Finding]:
        """Look at the server for what would take locks away."""
        try:
            (answer,) = await self._node.ask(self._statements.examine, (self.schema.encode(),), INSPECTION_TIMEOUT)
        except StoreError as error:
            if error.transient:
                raise
            return [Finding("error", str(self._address), str(error).removeprefix(f"{self._address}: "))]
        cannot_listen = self._node.is_pooled and self.capabilities.push and self._listens_on_same_address
        return list(findings(self._address, answer, cannot_listen=cannot_listen))

    async def close(self) -> None:
        self._subscriber.close()
        self._node.close()

    async def _change(self, statement: Statement, names: Sequence[str], params: Params, timeout: float) -> list[Row]:
        """Do what has to lock names; if others have one locked, wait for it where that is in nobody's way."""
        deadline = self.runtime.now() + timeout
        attempts = [(name, self._attempts.setdefault(name, WeakSet())) for name in names]
        if all(len(others) < MAX_LOCK_ATTEMPTS for _, others in attempts):
            attempt = _Attempt()
            try:
                for _, others in attempts:
                    others.add(attempt)
                return await self._ask(statement, (*params, b"50ms"), timeout)
            except StoreError as error:
                if not is_lock_timeout(error):
                    raise
            finally:
                for name, others in attempts:
                    others.discard(attempt)
                    if not others:
                        self._attempts.pop(name, None)
        return await self._ask_blocked(statement, params, deadline)

    async def _consume_locking(self, name: str, params: Params, timeout: float) -> list[Row]:
        """Do what has to lock a rate. Any number may at once: nobody keeps it for long, but in an open transaction."""
        deadline = self.runtime.now() + timeout
        if not self._blocked_rates.get(name):
            try:
                return await self._node.ask(self._statements.spend, (*params, b"50ms"), timeout)
            except StoreError as error:
                if not is_lock_timeout(error):
                    raise
        attempt, others = _Attempt(), self._blocked_rates.setdefault(name, WeakSet())
        try:
            others.add(attempt)
            return await self._ask_blocked(self._statements.spend, params, deadline)
        finally:
            others.discard(attempt)
            if not others:
                self._blocked_rates.pop(name, None)

    async def _ask_blocked(self, statement: Statement, params: Params, deadline: float) -> list[Row]:
        left = max(deadline - self.runtime.now(), 0.05)
        return await self._ask(statement, (*params, b"%dms" % (1000 * left)), left + 0.05, Lane.BLOCKED)

    async def _ask(self, statement: Statement, params: Params, timeout: float, lane: Lane = Lane.COMMON) -> list[Row]:
        """Ask, and once more if the server did nothing since it could not notify: the next time it does not try to."""
        deadline = self.runtime.now() + timeout
        try:
            return await self._node.ask(statement, params, timeout, lane)
        except StoreError as error:
            if not is_notify_queue_full(error):
                raise
        return await self._node.ask(statement, params, max(deadline - self.runtime.now(), 0.05), lane)

    def _maybe_sweep(self) -> None:
        self._joins += 1
        if self._joins % SWEEP_EVERY == 0:
            with suppress(RuntimeError):  # no more threads to be had
                self.runtime.spawn(self._sweep, "lockstead-sweep")

    async def _sweep(self) -> None:
        with suppress(StoreError):
            await self._node.ask(self._statements.sweep, (), INSPECTION_TIMEOUT)


class _Attempt:
    """Is counted by a weak reference: whatever interrupts it, it does not count for longer than it lasts."""


class Statements:
    """What the store sends, for one schema.

    Everything is named with its schema, operators too: behind a pooler the search_path is not ours to choose, and what
    another role has planted in one of its schemas must not run as ours.
    """

    def __init__(self, schema: str) -> None:
        def statement(name: str, text: str) -> Statement:
            return Statement(text.format(schema=schema, unlimited=UNLIMITED).encode(), f"lockstead_{name}".encode())

        # On a table that is too old nobody gets a lock: else he would learn that nothing can linger after his work.
        self.join = statement(
            "join",
            "SELECT j.*, {unlimited} FROM {schema}.line_join($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) AS j"
            " WHERE '{schema}.line_linger'::pg_catalog.regproc IS NOT NULL",
        )
        self.renew = statement("renew", "SELECT * FROM {schema}.line_renew($1, $2, $3, $4, $5)")
        self.holds = statement(
            "holds",
            "SELECT 1 FROM {schema}.distributed_locks WHERE name OPERATOR(pg_catalog.=) $1"
            " AND holder OPERATOR(pg_catalog.=) $2 AND acquired_at IS NOT NULL"
            " AND expires_at OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp()",
        )
        # Nothing is lost with a leave that a crash undoes but time: the place ends by itself.
        self.leave = statement(
            "leave",
            "SELECT {schema}.line_leave($1, $2, $3, $4), {unlimited}"
            " FROM pg_catalog.set_config('synchronous_commit', 'off', true)",
        )
        self.leave_with_tombstone = statement(
            "leave_with_tombstone", "SELECT {schema}.line_leave($1, $2, $3, $4), {unlimited}"
        )
        # But a name that is free too early may have its job done twice.
        self.reserve = statement("reserve", "SELECT {schema}.line_linger($1, $2, $3, $4, $5, $6), {unlimited}")
        self.join_all = statement(
            "join_all", "SELECT j.*, {unlimited} FROM {schema}.line_join_all($1, $2, $3, $4, $5, $6, $7, $8) AS j"
        )
        # A crash forgets the charges of the last moment. To make sure of each would keep all others waiting meanwhile.
        self.spend = statement(
            "spend",
            "SELECT s.*, pg_catalog.set_config('synchronous_commit', 'off', true)"
            " FROM {schema}.spend_rate($1, $2, $3, $4, $5) AS s",
        )
        self.sweep = statement("sweep", "SELECT {schema}.sweep_locks(), {schema}.sweep_rates()")
        self.examine = Statement(QUESTION.format(schema=schema).encode())
        look = (
            "SELECT name, extract(epoch FROM moment), fence, holder, capacity, weight, extract(epoch FROM expires_at),"
            " extract(epoch FROM acquired_at), metadata, backend, application, pg_catalog.host(client_address)"
            " FROM {schema}.distributed_locks, pg_catalog.clock_timestamp() AS moment"
            " WHERE expires_at OPERATOR(pg_catalog.>) moment AND %s ORDER BY name, fence"
        )
        self.look = statement("look", look % "name OPERATOR(pg_catalog.=) $1")
        self.list = statement("list", look % "pg_catalog.starts_with(name, $1)")


class _PoolerError(StoreError):
    """A pooler stands before the server, so that nothing would be heard."""


def check_notify_arrives(address: Address, *, is_pooled: bool) -> None:
    if is_pooled:
        msg = (
            f"{address}: a pooler stands before the server, and LISTEN hears nothing through one that pools "
            "transactions: name the server itself with listen=postgresql://…, or vouch with pooler=session that it "
            "pools sessions"
        )
        raise _PoolerError(msg)


def _blocking_subscriber(runtime: ThreadRuntime, address: Address, channel: str) -> Subscriber:
    async def subscribe(timeout: float) -> blocking.Connection:
        try:
            connection = blocking.connect(address, timeout)
            try:
                check_notify_arrives(address, is_pooled=connection.is_pooled)
                blocking.ask_on(connection, address, _listen(channel), (), timeout)
            except BaseException:
                connection.close()
                raise
        except FAILURES as error:
            raise unanswered(address, error) from error
        return connection

    return BlockingSubscriber(runtime, subscribe, str.encode, MESSAGE)


def _loop_subscriber(runtime: AsyncRuntime, address: Address, channel: str) -> Subscriber:
    async def subscribe(timeout: float, on_message: OnMessage, on_lost: OnLost) -> pipelined.Connection:
        try:
            connection = await pipelined.connect(runtime, address, timeout)
            try:
                check_notify_arrives(address, is_pooled=connection.is_pooled)
                await pipelined.ask_on(connection, address, _listen(channel), (), timeout)
            except BaseException:
                connection.close()
                raise
        except FAILURES as error:
            raise unanswered(address, error) from error
        connection.on_notice, connection.on_lost = on_message, on_lost
        return connection

    return LoopSubscriber(runtime, subscribe, str.encode, MESSAGE)


def _listen(channel: str) -> Statement:
    return Statement(f"LISTEN {channel}".encode())


def _standing(
    ticket: bytes, held: bytes | None, now: bytes | None, holder: bytes | None, recheck: bytes | None
) -> Standing:
    if held == b"t":
        return Standing(int(ticket), True, _number(now))
    return Standing(int(ticket), False, _number(now), _text(holder), _seconds(recheck))


def _place(row: Row) -> Place:
    _, _, ticket, owner, capacity, weight, expires_at, acquired_at, metadata, backend, application, address = row
    return Place(
        ticket=int(_text(ticket)),
        owner=_text(owner),
        capacity=int(_text(capacity)),
        weight=int(_text(weight)),
        expires_at=_number(expires_at),
        acquired_at=None if acquired_at is None else float(acquired_at),
        metadata=_text(metadata),
        session=Session(int(_text(backend)), _text(application), _text(address)),
    )


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode()


def _number(value: bytes | None) -> float:
    return 0.0 if value is None else float(value)


def _seconds(value: bytes | None) -> float:
    return inf if value is None else float(value)
