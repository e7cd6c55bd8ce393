"""`redis://host:port/db` and its relatives: lines on a Redis or Valkey server, 6.2 or newer.

Every step is one script on one key, so it is atomic, and one round trip. A waiter is woken by a message on its
client's own channel when its place holds.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping, Sequence
from functools import partial
from math import inf
from typing import Any, cast
from zlib import crc32

from lockstead.core import rule
from lockstead.core.model import (
    GONE,
    UNKNOWN,
    Ask,
    Capabilities,
    Finding,
    Line,
    Membership,
    PlaceState,
    RateRequest,
    RateResult,
    Refusal,
    Renewal,
    Reservation,
    Standing,
    Wake,
)
from lockstead.core.outage import reason
from lockstead.core.runtime import Runtime
from lockstead.core.timing import INSPECTION_TIMEOUT
from lockstead.errors import DamagedError, InvalidInputError, StoreError
from lockstead.runtimes.aio import AsyncRuntime
from lockstead.runtimes.threads import ThreadRuntime
from lockstead.stores.redis import blocking, pipelined
from lockstead.stores.redis.address import Address, Deployment
from lockstead.stores.redis.blocking import BlockingNode
from lockstead.stores.redis.commands import (
    CONSUME,
    HSCAN,
    INSPECT,
    JOIN,
    JOIN_ALL,
    LEAVE,
    MEMBER,
    NO_WAKE_UP,
    RENEW,
    REPAIR,
    RESERVE,
    Command,
    microseconds,
    pack_join,
    pack_join_cached,
    pack_rate_request,
    pack_renewal,
    parse_place,
    parse_rate_result,
    reserve_args,
    sized,
)
from lockstead.stores.redis.errors import OWN_FIELD, code_of, damaged, refused, unreadable
from lockstead.stores.redis.health import HEALTH_COMMANDS, HEALTH_REPLIES, findings, skew
from lockstead.stores.redis.node import Node
from lockstead.stores.redis.pipelined import PipelinedNode
from lockstead.stores.redis.resp import Arg, pack
from lockstead.stores.redis.routing import Route, route
from lockstead.stores.transport.subscriber import BlockingSubscriber, LoopSubscriber, OnLost, OnMessage, Subscriber

log = logging.getLogger("lockstead")

MAX_PREFIX = 100
BUCKETS = 16
"""How many hashes the names of a cluster are spread over, so that its nodes share the load. On one server it is one."""
MAX_REDIRECTIONS = 5
"""How many redirections one request follows: a cluster that sends more is being reconfigured."""
NOT_PRIMARY = {"READONLY", "NOREPLICAS", "CLUSTERDOWN", "MASTERDOWN", "LOADING", "MISCONF"}
"""Errors of a server that may not be the primary any more."""
NAMES_PER_INSPECTION = 200
"""How many names one call of inspect.lua reads: the server runs nothing else meanwhile."""
FIELDS_PER_REPAIR = 1000
"""How many fields one call of repair.lua removes: the server runs nothing else meanwhile."""
ASKING = pack(("ASKING",))
SECRET_SIZE = 16
"""Bytes: too many to guess."""


class RedisStore:
    """One client's view of a server, a primary monitored by Sentinels, or a cluster.

    Not promised: that a failover keeps what the old primary had not yet sent to its replica. Fences still grow, by
    the servers' clocks.
    """

    def __init__(
        self,
        runtime: Runtime,
        deployment: Deployment,
        *,
        key_prefix: str = "lockstead",
        min_replicas: int = 0,
        confirm_grants: bool = False,
        strict: bool = False,
        is_member: bool = False,
    ) -> None:
        size = len(key_prefix.encode()) if isinstance(key_prefix, str) and key_prefix.isprintable() else 0
        if not 0 < size <= MAX_PREFIX:
            msg = f"key_prefix must be printable, and 1 to {MAX_PREFIX} bytes long, got {key_prefix!r}"
            raise InvalidInputError(msg)
        if not isinstance(min_replicas, int) or min_replicas < 0:
            msg = f"min_replicas must be a number, and not negative, got {min_replicas!r}"
            raise InvalidInputError(msg)
        self.runtime = runtime
        self.address = str(deployment)
        self.capabilities = Capabilities()
        self._min_replicas = min_replicas
        self._strict = strict
        self._is_member = is_member
        self._rate_prefix = f"{key_prefix}:rate:"
        kind = "member" if is_member else "bucket"
        self._keys = [f"{key_prefix}:{kind}:{n}".encode() for n in range(BUCKETS if deployment.is_cluster else 1)]
        # Not a method of ours: a reference cycle would outlive a store that was dropped.
        self._route = route(deployment, partial(_make_node, runtime))
        channel = f"{key_prefix}:{secrets.token_hex(8)}"
        self._channel = sized(channel.encode())
        # Replicas have to confirm a grant before it counts.
        self._subscriber = self._make_subscriber(channel, Wake.HINT if confirm_grants or min_replicas else Wake.GRANT)

    async def join(self, ask: Ask, timeout: float) -> Standing | Refusal:
        wake_up = self._channel + sized(self._subscriber.expect(ask.owner)) if ask.queue else NO_WAKE_UP
        packed = pack_join_cached if self._is_member else pack_join
        args = ask.name, packed(ask, wake_up, is_member=self._is_member)
        try:
            reply = await self._call(JOIN, self._key(ask.name), args, timeout, confirmed=self._min_replicas > 0)
        except _UnconfirmedError as shortfall:
            raise await self._withdraw([ask], shortfall, timeout) from None
        except StoreError as error:
            if not error.transient:
                self._subscriber.forget(ask.owner)
            raise
        if reply[1] == 0:
            return _refusal(*reply[2:])
        return _standing(reply[1], reply[0] / 1e6)

    async def renew(self, renewals: Sequence[Renewal], timeout: float) -> list[Standing]:
        groups = self._by_key(renewals)
        calls = []
        for key, indices in groups.items():
            args: list[Arg] = [b"%d" % self._is_member]
            for index in indices:
                renewal = renewals[index]
                args += (renewal.name, pack_renewal(renewal))
            calls.append((key, tuple(args)))
        standings: list[Standing] = [UNKNOWN] * len(renewals)
        for (key, indices), reply in zip(groups.items(), await self._call_all(RENEW, calls, timeout), strict=True):
            if not isinstance(reply, Exception):
                now = reply[0] / 1e6
                for index, answer in zip(indices, reply[1:], strict=True):
                    if isinstance(answer, bytes):
                        error = await self._damaged(answer, key)
                        log.warning(
                            "%s: %r cannot be renewed (%s): its place is lost",
                            self.address,
                            renewals[index].name,
                            reason(error, self.address),
                        )
                        standings[index] = GONE
                    else:
                        standings[index] = _standing(answer, now) if answer else GONE
        return standings

    async def leave(self, name: str, owner: str, timeout: float, tombstone: float = 0.0) -> bool:
        args = (name, owner, b"%d" % microseconds(tombstone)) if tombstone else (name, owner)
        was_there = await self._call(LEAVE, self._key(name), args, timeout)
        self._subscriber.forget(owner)
        return bool(was_there)

    async def reserve(self, reservation: Reservation, timeout: float) -> bool:
        args = reserve_args(reservation)
        was_there = await self._call(RESERVE, self._key(reservation.name), args, timeout)
        self._subscriber.forget(reservation.owner)
        return bool(was_there)

    async def join_all(self, asks: Sequence[Ask], timeout: float) -> list[Standing] | Refusal | None:
        keys = {self._key(ask.name) for ask in asks}
        if len(keys) != 1:
            return None
        args: list[Arg] = []
        for ask in asks:
            args += ask.name, pack_join(ask, NO_WAKE_UP, is_member=False)
        try:
            reply = await self._call(JOIN_ALL, keys.pop(), tuple(args), timeout, confirmed=self._min_replicas > 0)
        except _UnconfirmedError as shortfall:
            raise await self._withdraw(asks, shortfall, timeout) from None
        if reply[1] == 0:
            *refusal, number = reply[2:]
            return _refusal(*refusal)._replace(name=asks[number - 1].name)
        now, *answers = reply
        return [_standing(answer, now / 1e6) for answer in answers]

    async def consume(self, request: RateRequest, timeout: float) -> RateResult:
        key = f"{self._rate_prefix}{request.name}".encode()
        try:
            return parse_rate_result(await self._call(CONSUME, key, (pack_rate_request(request),), timeout))
        except DamagedError as error:
            error.name = request.name
            raise

    async def wait(self, name: str, owner: str, timeout: float) -> Wake:
        return await self._subscriber.wait(owner, timeout)

    async def inspect(self, prefix: str = "", *, exact: bool = False) -> list[Line]:
        if exact:
            lines, damage = await self._read_lines(self._key(prefix), [prefix])
            if damage is None:
                return lines
            (line,) = lines or [Line(prefix, 0.0, ())]
            return [line._replace(damage=line.damage or damage)]
        lines = []
        for key in self._keys:
            names, unreadable_names = await self._names(key, prefix)
            lines += unreadable_names
            damage = None
            for start in range(0, max(len(names), 1), NAMES_PER_INSPECTION):
                found, damage = await self._read_lines(key, names[start : start + NAMES_PER_INSPECTION])
                lines += found
            if damage is not None:
                lines.append(Line("", 0.0, (), damage))
        return sorted(lines, key=lambda line: line.name)

    async def repair(self, name: str, timeout: float) -> None:
        key, encoded = self._key(name), name.encode()
        lines, _ = await self._read_lines(key, [name])
        is_damaged = any(line.damage is not None for line in lines)  # the script does not check for UTF-8
        fields = await self._fields(key, f"{name}\0")
        fields.append(encoded)  # last: while it exists the line is damaged, so no client can join it
        for start in range(0, len(fields), FIELDS_PER_REPAIR):
            some = fields[start : start + FIELDS_PER_REPAIR]
            await self._call(REPAIR, key, (b"%d" % self._is_member, b"%d" % is_damaged, name, *some), timeout)

    async def probe(self, timeout: float) -> Membership:
        return await self._membership((secrets.token_hex(8),), timeout)

    async def admit(self, token: str, ticket: int, longest: float, timeout: float) -> Membership:
        return await self._membership((token, b"%d" % ticket, b"%d" % microseconds(longest)), timeout)

    async def examine(self) -> list[Finding]:
        """Check every server for what would put locks at risk."""
        found: list[Finding] = []
        for node in {id(node): node for node in [await self._node_of(key) for key in self._keys]}.values():
            replies = await self._query_health(node, INSPECTION_TIMEOUT)
            found += [*findings(node.address, replies, is_member=self._is_member), *skew(node.address, replies)]
        for key in self._keys:
            subject = str((await self._node_of(key)).address)
            try:
                _, damage = await self._read_lines(key, [])
            except DamagedError as error:
                damage = error
            if damage is not None:
                found.append(Finding("error", subject, str(damage).removeprefix(f"{subject}: ")))
        return found

    async def close(self) -> None:
        self._subscriber.close()
        self._route.close()

    async def _withdraw(self, asks: Sequence[Ask], shortfall: StoreError, timeout: float) -> StoreError:
        """Release places that too few replicas confirmed, and return the error that reports it."""
        try:
            for ask in asks:
                await self.leave(ask.name, ask.owner, timeout)
        except StoreError as error:
            error.transient = True  # the places may still exist
            raise
        names = ", ".join(repr(ask.name) for ask in asks)
        return StoreError(f"{shortfall}; released again: {names}", name=asks[0].name)

    async def _membership(self, args: tuple[Arg, ...], timeout: float) -> Membership:
        token, ticket, longest, votes_in = await self._call(MEMBER, self._keys[0], args, timeout)
        return Membership(token.decode("ascii"), ticket, longest / 1e6, inf if votes_in < 0 else votes_in / 1e6)

    async def _fields(self, key: bytes, prefix: str) -> list[bytes]:
        pattern = "".join(f"\\{letter}" if letter in "*?[]^\\" else letter for letter in prefix)
        fields: set[bytes] = set()
        cursor: Arg = b""
        while cursor != b"0":
            args = cursor or b"0", "MATCH", f"{pattern}*", "COUNT", b"1000"
            cursor, found = await self._call(HSCAN, key, args, INSPECTION_TIMEOUT)
            fields.update(found[::2])
        return sorted(fields)

    async def _names(self, key: bytes, prefix: str) -> tuple[list[str], list[Line]]:
        """List the names with this prefix, and as damaged lines those that are not UTF-8."""
        names: list[str] = []
        others: list[Line] = []
        for field in await self._fields(key, prefix):
            if b"\0" not in field:
                try:
                    names.append(field.decode())
                except UnicodeDecodeError:
                    shown = field.decode(errors="backslashreplace")
                    error = unreadable((await self._node_of(key)).address, key, field, shown, "it is not UTF-8")
                    others.append(Line(shown, 0.0, (), error))
        return names, others

    async def _read_lines(self, key: bytes, names: Sequence[str]) -> tuple[list[Line], DamagedError | None]:
        """Read lines, and return the damage of the record they share: then the server's clock stands in for theirs."""
        damage: DamagedError | None = None
        try:
            now, *found = await self._call(INSPECT, key, (b"0", *names), INSPECTION_TIMEOUT)
        except DamagedError as error:
            if error.field != OWN_FIELD:
                raise
            damage = error
            now, *found = await self._call(INSPECT, key, (b"1", *names), INSPECTION_TIMEOUT)
        lines = [await self._line(key, name, records, now / 1e6) for name, records in zip(names, found, strict=True)]
        return [line for line in lines if line.places or line.damage], damage

    async def _line(self, key: bytes, name: str, records: Any, now: float) -> Line:
        if isinstance(records, bytes):
            return Line(name, now, (), await self._damaged(records, key))
        try:
            return Line(name, now, rule.live(map(parse_place, records), now))
        except ValueError as error:
            where = (await self._node_of(key)).address
            return Line(name, now, (), unreadable(where, key, name.encode(), name, str(error)))

    async def _damaged(self, text: bytes, key: bytes) -> DamagedError:
        return damaged((await self._node_of(key)).address, key, text.decode())

    def _key(self, name: str) -> bytes:
        return self._keys[0] if len(self._keys) == 1 else self._keys[crc32(name.encode()) % len(self._keys)]

    def _by_key(self, renewals: Sequence[Renewal]) -> Mapping[bytes, Sequence[int]]:
        """Group the renewals' indices by key."""
        if len(self._keys) == 1:
            return {self._keys[0]: range(len(renewals))}
        groups: dict[bytes, list[int]] = {}
        for index, renewal in enumerate(renewals):
            groups.setdefault(self._key(renewal.name), []).append(index)
        return groups

    def _make_subscriber(self, channel: str, wake: Wake) -> Subscriber:
        """Subscribe to the secrets of our places. Nothing else counts: other clients may publish there, too."""
        runtime = self.runtime
        locate = partial(_locate, self._route, self._keys[0])
        if isinstance(runtime, AsyncRuntime):

            async def subscribe(timeout: float, on_message: OnMessage, on_lost: OnLost) -> pipelined.Connection:
                return await pipelined.subscribe(
                    runtime, await locate(), channel, timeout, on_message=on_message, on_lost=on_lost
                )

            return LoopSubscriber(runtime, self.address, subscribe, _secret, wake)
        threads = cast("ThreadRuntime", runtime)

        async def listen(timeout: float) -> blocking.Connection:
            return await blocking.subscribe(threads, await locate(), channel, timeout)

        return BlockingSubscriber(threads, self.address, listen, _secret, wake)

    async def _node_of(self, key: bytes) -> Node:
        return await _node_at(self._route, key)

    async def _call(
        self, command: Command, key: bytes, args: tuple[Arg, ...], timeout: float, *, confirmed: bool = False
    ) -> Any:
        """Send to the server that has the key, and follow redirections: a node that redirects has applied nothing."""
        node = self._route.known(key) or await self._route.find(key, timeout)
        payload, count = (command.pack_cached if self._is_member else command.pack)(key, args), 1
        # WAIT blocks for at most half of the timeout, in milliseconds, so that its reply is in time.
        wait = pack(("WAIT", b"%d" % self._min_replicas, b"%d" % max(int(timeout * 500), 1))) if confirmed else b""
        for _ in range(MAX_REDIRECTIONS):
            try:
                if not node.is_checked:
                    await self._check(node, timeout)
                replies = await node.ask(payload + wait, count + confirmed, timeout)
            except StoreError as error:
                if error.transient:
                    self._route.invalidate(node)
                raise
            reply = replies[count - 1]
            if not isinstance(reply, Exception):
                if confirmed and not (command in (JOIN, JOIN_ALL) and reply[1] == 0):
                    self._check_replicas(node, replies[count])
                return reply
            code = code_of(reply)
            if code == "NOSCRIPT":
                payload, count = command.pack_in_full(key, args), 1
            elif code == "MOVED":
                node = self._route.follow(key, str(reply).split()[2], node, permanent=True)
                payload, count = command.pack(key, args), 1
            elif code == "ASK":
                node = self._route.follow(key, str(reply).split()[2], node, permanent=False)
                payload, count = ASKING + command.pack_in_full(key, args), 2
            else:
                raise self._refused(node, reply, command, key)
        msg = f"{node.address}: redirected {MAX_REDIRECTIONS} times: the cluster is being reconfigured; retry"
        raise StoreError(msg, transient=True)

    async def _call_all(
        self, command: Command, calls: Sequence[tuple[bytes, tuple[Arg, ...]]], timeout: float
    ) -> list[Any]:
        """Call a script on several keys concurrently. A failed call is an exception in the list; raises if all fail."""
        confirmed = self._min_replicas > 0

        async def call(key: bytes, args: tuple[Arg, ...]) -> Any:
            try:
                return await self._call(command, key, args, timeout, confirmed=confirmed)
            except Exception as error:
                return error

        if len(calls) == 1:
            replies = [await call(*calls[0])]
        else:
            coroutines = [call(key, args) for key, args in calls]
            replies = await self.runtime.gather(coroutines, lambda _: False, 0.0)
        failures = [reply for reply in replies if isinstance(reply, Exception)]
        if failures and len(failures) == len(replies):
            raise failures[0]
        return replies

    def _check_replicas(self, node: Node, replicas: Any) -> None:
        if isinstance(replicas, Exception) or replicas < self._min_replicas:
            found = replicas if isinstance(replicas, Exception) else f"{replicas} of {self._min_replicas}"
            msg = (
                f"{node.address}: not enough replicas confirmed it in time ({found}): check the replicas, or lower "
                "min_replicas"
            )
            raise _UnconfirmedError(msg, transient=True)

    def _refused(self, node: Node, reply: Exception, command: Command, key: bytes) -> StoreError:
        if code_of(reply) in ("DAMAGED", "WRONGTYPE"):
            return damaged(node.address, key, str(reply))
        error = refused(node.address, reply, command.failed_command(str(reply)))
        if code_of(reply) in NOT_PRIMARY:
            node.refresh()
            if self._route.may_change:
                self._route.invalidate(node)
                error.transient = True
        return error

    async def _check(self, node: Node, timeout: float) -> None:
        """Check for what would put locks at risk: log a warning, or if `strict` refuse to use the server."""
        replies = await self._query_health(node, timeout)
        for finding in findings(node.address, replies, is_member=self._is_member):
            if finding.level == "error" or (finding.level == "warning" and self._strict):
                raise StoreError(f"{finding.subject}: {finding.message}")
            if finding.level == "warning":
                log.warning("%s: health check: %s", finding.subject, finding.message)
        node.is_checked = True

    async def _query_health(self, node: Node, timeout: float) -> list[Any]:
        replies = await node.ask(HEALTH_COMMANDS, HEALTH_REPLIES, timeout)
        if isinstance(replies[0], Exception) and code_of(replies[0]) == "NOAUTH":
            raise refused(node.address, replies[0])
        return replies


class _UnconfirmedError(StoreError):
    """Applied, but not confirmed by as many replicas as required."""


def _secret(_: str) -> bytes:
    """Make a message that only the server can send to the waiter: owners are not secret, and can be guessed."""
    return secrets.token_bytes(SECRET_SIZE)


def _standing(answer: Any, now: float) -> Standing:
    if isinstance(answer, int):
        return Standing(PlaceState.HELD, answer, now)
    ticket, holder, recheck = answer
    return Standing(PlaceState.WAITING, ticket, now, _text(holder), _seconds(recheck))


def _make_node(runtime: Runtime, address: Address) -> Node:
    if isinstance(runtime, AsyncRuntime):
        return PipelinedNode(runtime, address)
    return BlockingNode(cast("ThreadRuntime", runtime), address)


async def _node_at(route: Route, key: bytes) -> Node:
    return route.known(key) or await route.find(key, INSPECTION_TIMEOUT)


async def _locate(route: Route, key: bytes) -> Address:
    """Return where to subscribe: every node of a cluster delivers all that is published."""
    return (await _node_at(route, key)).address


def _refusal(holder: bytes, recheck: int, capacity: int, abstains: int = 0) -> Refusal:
    return Refusal(_text(holder), _seconds(recheck), capacity, bool(abstains))


def _text(owner: bytes) -> str:
    """Decode an owner for display, even if it is not UTF-8."""
    return owner.decode(errors="backslashreplace")


def _seconds(duration: int) -> float:
    return inf if duration < 0 else duration / 1e6
