"""`redis://host:port/db` and its relatives: lines on a Redis or Valkey server, 6.2 or newer.

Every step is one script on one key, so it is atomic, and one round trip. A waiter is woken by a message on its
client's own channel when its place holds.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from itertools import repeat
from math import inf
from typing import Any, NamedTuple, cast
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
from lockstead.core.runtime import Outcomes, Runtime
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
    PACKED_CACHE_SIZE,
    RENEW,
    REPAIR,
    RESERVE,
    WITH_TWO_ARGS,
    Command,
    microseconds,
    pack_join,
    pack_join_cached,
    pack_rate_request,
    pack_renewals,
    parse_place,
    parse_rate_result,
    reserve_args,
    sized,
)
from lockstead.stores.redis.errors import FAILURES, OWN_FIELD, code_of, damaged, refused, unknown_outcome, unreadable
from lockstead.stores.redis.health import HEALTH_COMMANDS, HEALTH_REPLIES, Checks, findings, persistence, skew
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
SECRETS_PER_DRAW = 64
HELD = PlaceState.HELD
_new = tuple.__new__
"""Makes a named tuple without a call of a Python function: for every acquisition and every renewal."""
_pack_cached = lru_cache(maxsize=PACKED_CACHE_SIZE)(pack)


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
        self._was_writable = False
        self._rate_prefix = f"{key_prefix}:rate:"
        kind = "member" if is_member else "bucket"
        self._keys = [f"{key_prefix}:{kind}:{n}".encode() for n in range(BUCKETS if deployment.is_cluster else 1)]
        # Not a method of ours: a reference cycle would outlive a store that was dropped.
        self._route = route(deployment, partial(_make_node, runtime))
        channel = f"{key_prefix}:{secrets.token_hex(8)}"
        self._channel = sized(channel.encode())
        self._only_key = self._keys[0] if len(self._keys) == 1 else b""
        self._join_head, self._leave_head = JOIN.pack_head(self._keys[0]), LEAVE.pack_head(self._keys[0])
        self._now = runtime.now
        self._pack_join = pack_join_cached if is_member else pack_join
        self._pack = _pack_cached if is_member else pack
        self._checks = Checks(runtime)
        # Replicas have to confirm a grant before it counts.
        self._subscriber = self._make_subscriber(channel, Wake.HINT if confirm_grants or min_replicas else Wake.GRANT)

    async def join(self, ask: Ask, timeout: float) -> Standing | Refusal:
        node = self._route.primary
        if node is None or not node.is_checked or self._min_replicas:
            return await self._join_in_full(ask, timeout)
        now = self._now()
        wake_up = NO_WAKE_UP
        if ask.queue:
            message = self._subscriber.expect(ask.owner)
            wake_up = b"%b%c%b" % (self._channel, len(message), message)
        name, packed = ask.name.encode(), self._pack_join(ask, wake_up, is_member=self._is_member)
        payload = WITH_TWO_ARGS % (self._join_head, len(name), name, len(packed), packed)
        try:
            reply = await node.ask_one(payload, timeout, now)
        except FAILURES as error:
            raise self._failed(node, unknown_outcome(node.address, error), ask.owner) from error
        except StoreError as error:
            self._failed(node, error, ask.owner)
            raise
        if type(reply) is not list:
            return await self._join_in_full(ask, now + timeout - self._now(), (node, reply))
        if type(ticket := reply[1]) is int and ticket:
            return _new(Standing, (HELD, ticket, reply[0] / 1e6, "", inf))
        return parse_outcome(reply)

    async def _join_in_full(
        self, ask: Ask, timeout: float, refusal: tuple[Node, Exception] | None = None
    ) -> Standing | Refusal:
        """Join where the server has to be found or checked first, replicas have to confirm, or a server refused it."""
        wake_up = self._channel + sized(self._subscriber.expect(ask.owner)) if ask.queue else NO_WAKE_UP
        args = ask.name, pack_join(ask, wake_up, is_member=self._is_member)
        call = _Call(JOIN, self._key(ask.name), args, confirmed=self._min_replicas > 0)
        try:
            reply = await self._call(call, timeout, refusal)
        except _UnconfirmedError as shortfall:
            raise await self._withdraw([ask], shortfall, timeout) from None
        except StoreError as error:
            self._subscriber.join_failed(ask.owner, error)
            raise
        self._was_writable = True
        return parse_outcome(reply)

    async def renew(self, renewals: Sequence[Renewal], timeout: float) -> list[Standing]:
        if not renewals:
            return []
        flag = b"%d" % self._is_member
        if self._only_key:
            key = self._only_key
            call = _Call(RENEW, key, (flag, *pack_renewals(renewals)), self._min_replicas > 0)
            return await self._standings(renewals, key, await self._call(call, timeout))
        groups = self._by_key(renewals)
        calls = [(key, (flag, *pack_renewals([renewals[index] for index in group]))) for key, group in groups.items()]
        standings: list[Standing] = [UNKNOWN] * len(renewals)
        for (key, group), reply in zip(groups.items(), await self._call_all(RENEW, calls, timeout), strict=True):
            if not isinstance(reply, Exception):
                found = await self._standings([renewals[index] for index in group], key, reply)
                for index, standing in zip(group, found, strict=True):
                    standings[index] = standing
        return standings

    async def _standings(self, renewals: Sequence[Renewal], key: bytes, reply: Any) -> list[Standing]:
        """Parse the reply of renew.lua."""
        now, answers = reply[0] / 1e6, reply[1:]
        if set(map(type, answers)) == {int} and 0 not in answers:  # all are held: a batch in one call
            return list(map(_new, repeat(Standing), zip(repeat(HELD), answers, repeat(now), repeat(""), repeat(inf))))
        standings: list[Standing] = []
        for renewal, answer in zip(renewals, answers, strict=True):
            if isinstance(answer, bytes):
                await self._log_damage(renewal.name, answer, key)
            standings.append(_standing(answer, now) if answer and not isinstance(answer, bytes) else GONE)
        return standings

    async def leave(self, name: str, owner: str, timeout: float, tombstone: float = 0.0) -> bool:
        node = self._route.primary
        if node is None or not node.is_checked or tombstone:
            return await self._leave_in_full(name, owner, timeout, tombstone)
        now = self._now()
        encoded, encoded_owner = name.encode(), owner.encode()
        payload = WITH_TWO_ARGS % (self._leave_head, len(encoded), encoded, len(encoded_owner), encoded_owner)
        try:
            reply = await node.ask_one(payload, timeout, now)
        except FAILURES as error:
            raise self._failed(node, unknown_outcome(node.address, error)) from error
        except StoreError as error:
            self._failed(node, error)
            raise
        if type(reply) is not int:
            return await self._leave_in_full(name, owner, now + timeout - self._now(), refusal=(node, reply))
        self._subscriber.forget(owner)
        return reply == 1

    async def _leave_in_full(
        self,
        name: str,
        owner: str,
        timeout: float,
        tombstone: float = 0.0,
        refusal: tuple[Node, Exception] | None = None,
    ) -> bool:
        """Leave where the server has to be found or checked first, a tombstone is needed, or a server refused it."""
        args: tuple[Arg, ...] = (name, owner, b"%d" % microseconds(tombstone)) if tombstone else (name, owner)
        was_there = await self._call(_Call(LEAVE, self._key(name), args), timeout, refusal)
        self._subscriber.forget(owner)
        return bool(was_there)

    async def reserve(self, reservation: Reservation, timeout: float) -> bool:
        args = reserve_args(reservation)
        was_there = await self._call(_Call(RESERVE, self._key(reservation.name), args), timeout)
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
            reply = await self._call(_Call(JOIN_ALL, keys.pop(), tuple(args), self._min_replicas > 0), timeout)
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
            return parse_rate_result(await self._call(_Call(CONSUME, key, (pack_rate_request(request),)), timeout))
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
            args: tuple[Arg, ...] = b"%d" % self._is_member, b"%d" % is_damaged, name, *some
            await self._call(_Call(REPAIR, key, args), timeout)

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
            if not self._is_member:
                found += persistence(node.address, replies)
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
            error.transient = error.was_sent = True  # the places may still exist
            raise
        names = ", ".join(repr(ask.name) for ask in asks)
        return StoreError(f"{shortfall}; released again: {names}", name=asks[0].name)

    async def _membership(self, args: tuple[Arg, ...], timeout: float) -> Membership:
        token, ticket, longest, votes_in = await self._call(_Call(MEMBER, self._keys[0], args), timeout)
        return Membership(token.decode("ascii"), ticket, longest / 1e6, inf if votes_in < 0 else votes_in / 1e6)

    async def _fields(self, key: bytes, prefix: str) -> list[bytes]:
        pattern = "".join(f"\\{letter}" if letter in "*?[]^\\" else letter for letter in prefix)
        fields: set[bytes] = set()
        cursor: Arg = b""
        while cursor != b"0":
            args = cursor or b"0", "MATCH", f"{pattern}*", "COUNT", b"1000"
            cursor, found = await self._call(_Call(HSCAN, key, args), INSPECTION_TIMEOUT)
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
            now, *found = await self._call(_Call(INSPECT, key, (b"0", *names)), INSPECTION_TIMEOUT)
        except DamagedError as error:
            if error.field != OWN_FIELD:
                raise
            damage = error
            now, *found = await self._call(_Call(INSPECT, key, (b"1", *names)), INSPECTION_TIMEOUT)
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

    async def _log_damage(self, name: str, text: bytes, key: bytes) -> None:
        error = await self._damaged(text, key)
        why = reason(error, self.address)
        log.warning("%s: %r cannot be renewed (%s): its place is lost", self.address, name, why)

    def _key(self, name: str) -> bytes:
        return self._only_key or self._keys[crc32(name.encode()) % len(self._keys)]

    def _by_key(self, renewals: Sequence[Renewal]) -> Mapping[bytes, Sequence[int]]:
        """Group the renewals' indices by key."""
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

    async def _call(self, call: _Call, timeout: float, refusal: tuple[Node, Exception] | None = None) -> Any:
        """Send to the server that has the key, in `timeout` seconds for all that this takes.

        `refusal` is the error reply of the server that was sent the call already, if it was. A server that replies
        with an error has applied nothing: so a script that it does not have is sent in full, and redirections are
        followed.
        """
        deadline = self._now() + timeout
        if refusal is None:
            node = self._route.known(call.key) or await self._route.find(call.key, timeout)
            reply = await self._exchange(node, call, self._pack(call.command.parts(call.key, call.args)), 1, deadline)
        else:
            node, reply = refusal
        for _ in range(MAX_REDIRECTIONS):
            if not isinstance(reply, Exception):
                return reply
            code = code_of(reply)
            if code == "NOSCRIPT":
                payload, count = call.command.pack_in_full(call.key, call.args), 1
            elif code == "MOVED":
                node = self._route.follow(call.key, str(reply).split()[2], node, permanent=True)
                payload, count = call.command.pack(call.key, call.args), 1
            elif code == "ASK":
                node = self._route.follow(call.key, str(reply).split()[2], node, permanent=False)
                payload, count = ASKING + call.command.pack_in_full(call.key, call.args), 2
            else:
                raise self._refused(node, reply, call)
            reply = await self._exchange(node, call, payload, count, deadline)
        msg = f"{node.address}: redirected {MAX_REDIRECTIONS} times: the cluster is being reconfigured; retry"
        raise StoreError(msg, transient=True)

    async def _exchange(self, node: Node, call: _Call, payload: bytes, count: int, deadline: float) -> Any:
        """Send a call's `count` packed commands to a server that was checked, and return the last reply."""
        wait = b""
        try:
            if not node.is_checked:
                await self._checks.once(node, self._check, deadline)
            left = deadline - self._now()
            if left <= 0:
                raise unknown_outcome(node.address, TimeoutError())
            if call.confirmed:
                # WAIT blocks for at most half of the time left, in milliseconds, so that its reply is in time.
                wait = pack(("WAIT", b"%d" % self._min_replicas, b"%d" % max(int(left * 500), 1)))
            replies = await node.ask(payload + wait, count + call.confirmed, left)
        except StoreError as error:
            self._failed(node, error)
            raise
        reply = replies[count - 1]
        if call.confirmed and not isinstance(reply, Exception):
            is_refusal = call.command in (JOIN, JOIN_ALL) and reply[1] == 0
            if not is_refusal:
                self._check_replicas(node, replies[count])
        return reply

    def _failed(self, node: Node, failure: StoreError, owner: str = "") -> StoreError:
        """Look the server up again; if there is no place of this owner then, forget it."""
        if failure.transient:
            self._route.invalidate(node)
        if owner:
            self._subscriber.join_failed(owner, failure)
        return failure

    async def _call_all(
        self, command: Command, calls: Sequence[tuple[bytes, tuple[Arg, ...]]], timeout: float
    ) -> list[Any]:
        """Call a script on several keys concurrently. A failed call is an exception in the list; raises if all fail."""
        confirmed = self._min_replicas > 0

        requests = [_Call(command, key, args, confirmed) for key, args in calls]
        if len(requests) == 1:
            return [await self._call(requests[0], timeout)]
        replies: list[Any] = await Outcomes([self._call(request, timeout) for request in requests]).gather(self.runtime)
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

    def _refused(self, node: Node, reply: Exception, call: _Call) -> StoreError:
        if code_of(reply) in ("DAMAGED", "WRONGTYPE"):
            return damaged(node.address, call.key, str(reply))
        error = refused(node.address, reply, call.command.failed_command(str(reply)))
        if code_of(reply) in NOT_PRIMARY:
            node.refresh()
            if self._route.may_change:
                self._route.invalidate(node)
                error.transient = True
            elif self._was_writable and code_of(reply) == "READONLY":
                error.transient = True  # a failover is under way: the address will lead to the new primary
        return error

    async def _check(self, node: Node, timeout: float) -> None:
        """Check for what would put locks at risk: log a warning, or if `strict` refuse to use the server."""
        replies = await self._query_health(node, timeout)
        if node.is_checked:  # by another request meanwhile
            return
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


class _Call(NamedTuple):
    """A command to send to the server that has its key."""

    command: Command
    key: bytes
    args: tuple[Arg, ...]
    confirmed: bool = False
    """Whether it counts only once enough replicas have confirmed it."""


class _UnconfirmedError(StoreError):
    """Applied, but not confirmed by as many replicas as required."""


_drawn: list[bytes] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drawn.clear)  # the parent uses them


def _secret(_: str) -> bytes:
    """Make a message that only the server can send to the waiter: owners are not secret, and can be guessed.

    Drawn many at a time: 0.1 µs each, where the system call for one takes 0.5.
    """
    try:
        return _drawn.pop()
    except IndexError:
        drawn = os.urandom(SECRETS_PER_DRAW * SECRET_SIZE)
        _drawn.extend([drawn[start : start + SECRET_SIZE] for start in range(SECRET_SIZE, len(drawn), SECRET_SIZE)])
        return drawn[:SECRET_SIZE]


def parse_outcome(reply: Any) -> Standing | Refusal:
    """Parse the reply of join.lua."""
    answer = reply[1]
    if answer == 0:
        return _refusal(*reply[2:])
    return _standing(answer, reply[0] / 1e6)


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
