"""`postgresql://`: lines in a table, changed by SQL functions that any language can call.

Every step is one function call in a transaction of its own, so it is atomic, and one round trip. A NOTIFY on the
client's own channel wakes a waiter when its place holds.
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
    GONE,
    UNKNOWN,
    Ask,
    Capabilities,
    Finding,
    Line,
    Place,
    PlaceState,
    RateRequest,
    RateResult,
    Refusal,
    Renewal,
    Reservation,
    SessionInfo,
    Standing,
    Wake,
)
from lockstead.core.outage import reason
from lockstead.core.runtime import Runtime
from lockstead.core.timing import INSPECTION_TIMEOUT
from lockstead.errors import StoreError
from lockstead.runtimes.aio import AsyncRuntime
from lockstead.runtimes.threads import ThreadRuntime
from lockstead.stores.postgres import blocking, pipelined
from lockstead.stores.postgres.address import Address
from lockstead.stores.postgres.errors import FAILURES, connection_failure, is_lock_timeout, is_notify_queue_full
from lockstead.stores.postgres.libpq import Lane, Params, Row, Statement, array
from lockstead.stores.postgres.table.health import findings
from lockstead.stores.postgres.table.schema import quoted
from lockstead.stores.statements import load
from lockstead.stores.transport.subscriber import BlockingSubscriber, LoopSubscriber, OnLost, OnMessage, Subscriber

log = logging.getLogger("lockstead")

_SQL = load("lockstead.stores.postgres.table")

FIRST_LOCK_TIMEOUT = b"50ms"
"""The lock_timeout of a request in the common lane. One that finds a row locked longer moves to the blocked lane."""
MAX_LOCK_ATTEMPTS = 4
"""How many requests for one name may wait in the common lane at a time: others cannot use its connections meanwhile."""
LAST_ATTEMPT_TIMEOUT = 0.05
"""Seconds that a second attempt gets even if its caller has less left: a known outcome is worth more."""
REPLY_GRACE = 0.05
"""Seconds by which the client's timeout is longer than the lock_timeout, in which the server's reply can arrive."""
SWEEP_EVERY = 256
"""How many joins and rate requests a client makes between two sweeps, which remove expired rows in the background."""
CONFIRM_TIMEOUT = 0.5
"""Seconds for the server to confirm that a place holds; after that the wake-up is only a hint."""
MESSAGE = Wake.HINT
"""What a notification proves: any role may send one, and a secret in it could be read in the table."""


class Server(Protocol):
    """One server. Each statement is sent once: only the engine retries."""

    is_pooled: bool
    """Whether the last request went through a pooler that shares sessions."""

    async def ask(self, statement: Statement, params: Params, timeout: float, lane: Lane = Lane.COMMON) -> list[Row]:
        """Run a statement in a transaction of its own. Raises StoreError, transient if it may have been carried out."""
        ...

    def close(self) -> None: ...


class TableStore:
    """One client's view of the lease table.

    Not promised: that a failover keeps grants which the old primary had not yet sent to its standby. Fences still
    grow, by the servers' clocks.
    """

    def __init__(
        self, runtime: Runtime, address: Address, *, schema: str = "lockstead", push: bool = True, subscriber: Address
    ) -> None:
        self.runtime = runtime
        self.address = f"postgresql://{address}"
        self.capabilities = Capabilities(push=push)
        self.schema = schema
        self._statements = Statements(quoted(schema))
        self._channel = f"lockstead_{secrets.token_hex(8)}"
        self._joins = secrets.randbelow(SWEEP_EVERY)
        self._sweep_was_refused = False
        self._reset()
        lifecycle.at_fork(self, in_child="_reset")
        flag = "" if schema == "lockstead" else f" --schema {schema}"
        missing = f"its lease table is missing or too old: run `lockstead migrate --url URL{flag}`"
        self._listens_on_same_address = subscriber == address
        self._address = address = replace(address, if_missing=missing)
        self._server: Server
        self._subscriber: Subscriber
        if isinstance(runtime, AsyncRuntime):
            self._server = pipelined.PipelinedServer(runtime, address)
            self._subscriber = _loop_subscriber(runtime, subscriber, self._channel)
        else:
            threads = cast("ThreadRuntime", runtime)
            self._server = blocking.BlockingServer(threads, address)
            self._subscriber = _blocking_subscriber(threads, subscriber, self._channel)

    def _reset(self) -> None:
        self._attempts: dict[str, WeakSet[_Attempt]] = {}
        """The requests in the common lane, by name. Threads share this without a lock: a race admits a few more."""
        self._blocked_rates: dict[str, WeakSet[_Attempt]] = {}
        """The requests in the blocked lane, by the name of the rate limit."""

    async def join(self, ask: Ask, timeout: float) -> Standing | Refusal:
        is_listening = ask.queue and self.capabilities.push
        if is_listening:
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
            self._channel.encode() if is_listening else b"",
        )
        try:
            ((ticket, held, now, holder, recheck, capacity),) = await self._ask_locking(
                self._statements.join, [ask.name], params, timeout
            )
        except StoreError as error:
            self._subscriber.join_failed(ask.owner, error)
            raise
        self._maybe_sweep()
        if ticket is None:
            return Refusal(_text(holder), _seconds(recheck), int(capacity or 0))
        return _standing(ticket, held, now, holder, recheck)

    async def renew(self, renewals: Sequence[Renewal], timeout: float) -> list[Standing]:
        params = (
            array([renewal.name for renewal in renewals]),
            array([renewal.owner for renewal in renewals]),
            array([repr(renewal.ttl) for renewal in renewals]),
            array([repr(renewal.heartbeat) for renewal in renewals]),
            array(["t" if renewal.claim else "f" for renewal in renewals]),
        )
        standings: list[Standing] = [GONE] * len(renewals)
        for number, ticket, *rest in await self._ask(self._statements.renew, params, timeout, Lane.RENEWALS):
            assert number is not None
            standings[int(number) - 1] = UNKNOWN if ticket is None else _standing(ticket, *rest)
        return standings

    async def leave(self, name: str, owner: str, timeout: float, tombstone: float = 0.0) -> bool:
        statement = self._statements.leave_with_tombstone if tombstone else self._statements.leave
        params = name.encode(), owner.encode(), b"%r" % tombstone
        ((was_there, _),) = await self._ask_locking(statement, [name], params, timeout)
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
        ((was_there, _),) = await self._ask_locking(self._statements.reserve, [reservation.name], params, timeout)
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
        rows = await self._ask_locking(self._statements.join_all, names, params, timeout)
        self._maybe_sweep()
        standings: list[Standing] = []
        for number, ticket, held, now, holder, recheck, capacity, _ in rows:
            if ticket is None:
                name = names[int(_text(number)) - 1]
                return Refusal(_text(holder), _seconds(recheck), int(capacity or 0), name=name)
            standings.append(_standing(ticket, held, now, holder, recheck))
        return standings

    async def consume(self, request: RateRequest, timeout: float) -> RateResult:
        params = request.name.encode(), b"%r" % request.cost, b"%r" % request.burst, b"%r" % request.max_wait
        ((allowed, level, _),) = await self._consume_locking(request.name, params, timeout)
        self._maybe_sweep()
        return RateResult(allowed == b"t", _number(level))

    async def wait(self, name: str, owner: str, timeout: float) -> Wake:
        if not self.capabilities.push:
            await self.runtime.sleep(timeout)
            return Wake.TIMEOUT
        try:
            wake = await self._subscriber.wait(owner, timeout)
            return await self._confirmed(name, owner) if wake is Wake.HINT else wake
        except _PoolerError as error:
            if self.capabilities.push:
                self.capabilities = Capabilities(push=False)
                log.warning("%s; waiters poll until this is changed", error)
            return Wake.HINT

    async def _confirmed(self, name: str, owner: str) -> Wake:
        """Ask whether a place holds, by a read: unlike a renewal it does not wait for the disk."""
        with suppress(StoreError):  # the caller renews next, and handles the error
            if await self._server.ask(self._statements.holds, (name.encode(), owner.encode()), CONFIRM_TIMEOUT):
                return Wake.GRANT
        return Wake.HINT

    async def inspect(self, prefix: str = "", *, exact: bool = False) -> list[Line]:
        statement = self._statements.inspect_name if exact else self._statements.inspect_prefix
        rows = await self._server.ask(statement, (prefix.encode(),), INSPECTION_TIMEOUT)
        lines = []
        for name, of_name in groupby(rows, key=lambda row: row[0]):
            places = list(of_name)
            now = _number(places[0][1])
            lines.append(Line(_text(name), now, rule.live(map(_place, places), now)))
        return lines

    async def examine(self) -> list[Finding]:
        """Examine the server for settings and faults that would lose locks."""
        try:
            (answer,) = await self._server.ask(self._statements.examine, (self.schema.encode(),), INSPECTION_TIMEOUT)
        except StoreError as error:
            if error.transient:
                raise
            return [Finding("error", str(self._address), str(error).removeprefix(f"{self._address}: "))]
        cannot_listen = self._server.is_pooled and self.capabilities.push and self._listens_on_same_address
        return list(findings(self._address, answer, cannot_listen=cannot_listen))

    async def close(self) -> None:
        self._subscriber.close()
        self._server.close()

    async def _ask_locking(
        self, statement: Statement, names: Sequence[str], params: Params, timeout: float
    ) -> list[Row]:
        """Run a statement that locks names. If one is locked, wait for it in the lane of blocked requests."""
        deadline = self.runtime.now() + timeout
        attempts = [(name, self._attempts.setdefault(name, WeakSet())) for name in names]
        if all(len(others) < MAX_LOCK_ATTEMPTS for _, others in attempts):
            attempt = _Attempt()
            try:
                for _, others in attempts:
                    others.add(attempt)
                return await self._ask(statement, (*params, FIRST_LOCK_TIMEOUT), timeout)
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
        """Run `consume`, which locks a rate limit. Any number may wait: only open transactions keep it for long."""
        deadline = self.runtime.now() + timeout
        if not self._blocked_rates.get(name):
            try:
                return await self._server.ask(self._statements.consume, (*params, FIRST_LOCK_TIMEOUT), timeout)
            except StoreError as error:
                if not is_lock_timeout(error):
                    raise
        attempt, others = _Attempt(), self._blocked_rates.setdefault(name, WeakSet())
        try:
            others.add(attempt)
            return await self._ask_blocked(self._statements.consume, params, deadline)
        finally:
            others.discard(attempt)
            if not others:
                self._blocked_rates.pop(name, None)

    async def _ask_blocked(self, statement: Statement, params: Params, deadline: float) -> list[Row]:
        left = max(deadline - self.runtime.now(), LAST_ATTEMPT_TIMEOUT)
        return await self._ask(statement, (*params, b"%dms" % (1000 * left)), left + REPLY_GRACE, Lane.BLOCKED)

    async def _ask(self, statement: Statement, params: Params, timeout: float, lane: Lane = Lane.COMMON) -> list[Row]:
        """Run a statement; once more if it failed because the NOTIFY queue is full: the functions then skip NOTIFY."""
        deadline = self.runtime.now() + timeout
        try:
            return await self._server.ask(statement, params, timeout, lane)
        except StoreError as error:
            if not is_notify_queue_full(error):
                raise
        return await self._server.ask(statement, params, max(deadline - self.runtime.now(), LAST_ATTEMPT_TIMEOUT), lane)

    def _maybe_sweep(self) -> None:
        self._joins += 1
        if self._joins % SWEEP_EVERY == 0:
            with suppress(RuntimeError):  # the system has no more threads
                self.runtime.spawn(self._sweep, "lockstead-sweep")

    async def _sweep(self) -> None:
        try:
            await self._server.ask(self._statements.sweep, (), INSPECTION_TIMEOUT)
        except StoreError as error:
            if not error.transient and not self._sweep_was_refused:
                self._sweep_was_refused = True
                log.warning(
                    "%s: could not delete expired rows (%s): the table grows until this is fixed",
                    self.address,
                    reason(error, self.address),
                )


class _Attempt:
    """Counted by weak references, so that an interrupted attempt does not stay counted."""


class Statements:
    """The store's statements, for one schema."""

    def __init__(self, schema: str) -> None:
        def statement(name: str) -> Statement:
            return Statement(_SQL[name].format(schema=schema).encode(), f"lockstead_{name}".encode())

        self.join = statement("join")
        self.renew = statement("renew")
        self.holds = statement("holds")
        self.leave = statement("leave")
        self.leave_with_tombstone = statement("leave_with_tombstone")
        self.reserve = statement("reserve")
        self.join_all = statement("join_all")
        self.consume = statement("consume")
        self.sweep = statement("sweep")
        self.examine = Statement(_SQL["examine"].format(schema=schema).encode())
        self.inspect_name = statement("inspect_name")
        self.inspect_prefix = statement("inspect_prefix")


class _PoolerError(StoreError):
    """There is a pooler before the server, through which no notification arrives."""


def check_notify_arrives(address: Address, *, is_pooled: bool) -> None:
    if is_pooled:
        msg = (
            f"{address}: there is a pooler before the server, and LISTEN receives nothing through one that pools "
            "transactions: name the server itself with listen=postgresql://…, or declare with pooler=session that it "
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
            raise connection_failure(address, error) from error
        return connection

    return BlockingSubscriber(runtime, f"postgresql://{address}", subscribe, str.encode, MESSAGE)


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
            raise connection_failure(address, error) from error
        connection.on_notice, connection.on_lost = on_message, on_lost
        return connection

    return LoopSubscriber(runtime, f"postgresql://{address}", subscribe, str.encode, MESSAGE)


def _listen(channel: str) -> Statement:
    return Statement(f"LISTEN {channel}".encode())


def _standing(
    ticket: bytes, held: bytes | None, now: bytes | None, holder: bytes | None, recheck: bytes | None
) -> Standing:
    if held == b"t":
        return Standing(PlaceState.HELD, int(ticket), _number(now))
    return Standing(PlaceState.WAITING, int(ticket), _number(now), _text(holder), _seconds(recheck))


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
        session=SessionInfo(int(_text(backend)), _text(application), _text(address)),
    )


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode()


def _number(value: bytes | None) -> float:
    return 0.0 if value is None else float(value)


def _seconds(value: bytes | None) -> float:
    return inf if value is None else float(value)
