"""The commands and scripts that are sent, their arguments, and the records they store."""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files
from math import ceil

from lockstead.core.model import RESERVED, Ask, Place, RateRequest, RateResult, Renewal, Reservation
from lockstead.stores.redis.resp import Arg, pack

_JOIN = struct.Struct("<dddBBH")
_RENEWAL = struct.Struct("<dddBH")
_PLACE = struct.Struct("<ddd")
_LENGTH = struct.Struct("<H")
_NUMBERS = struct.Struct("<II")
_RATE_REQUEST = struct.Struct("<ddd")
_RATE_RESULT = struct.Struct("<?d")

_LINE = re.compile(r"@user_script: ?(\d+)")
_CALL = re.compile(r"redis\.p?call\('(\w+)'")

PACKED_CACHE_SIZE = 64
"""How many packed requests are cached for the other members of a quorum, which are sent the same."""


def _read(name: str) -> str:
    return files("lockstead.stores.redis").joinpath("scripts", name).read_text("utf-8")


class Command:
    """A command whose first argument is its key."""

    def __init__(self, name: str) -> None:
        self._name = name

    def parts(self, key: bytes, args: tuple[Arg, ...]) -> tuple[Arg, ...]:
        """Return what is to be packed."""
        return self._name, key, *args

    def pack(self, key: bytes, args: tuple[Arg, ...]) -> bytes:
        return pack(self.parts(key, args))

    def pack_in_full(self, key: bytes, args: tuple[Arg, ...]) -> bytes:
        """Pack the command for a server that may not have its script loaded."""
        return self.pack(key, args)

    def failed_command(self, error_text: str) -> str:
        """Return the command that an error reply is about; empty if the reply does not show it."""
        return self._name


class Script(Command):
    """A script with one key, called by its digest."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._text = re.sub(r"--include (\S+)\n", lambda found: _read(found[1]), _read(name)).encode()
        self.digest = hashlib.sha1(self._text, usedforsecurity=False).hexdigest().encode()

    def parts(self, key: bytes, args: tuple[Arg, ...]) -> tuple[Arg, ...]:
        return b"EVALSHA", self.digest, b"1", key, *args

    def pack_head(self, key: bytes) -> bytes:
        """Pack a call up to its arguments, for `WITH_TWO_ARGS`: it is the same for all calls on a key."""
        count, rest = pack(self.parts(key, (b"", b""))).split(b"\r\n", 1)
        return count + b"\r\n" + rest.removesuffix(2 * b"$0\r\n\r\n")

    def pack_in_full(self, key: bytes, args: tuple[Arg, ...]) -> bytes:
        """Pack the script itself: the server caches it when it runs it."""
        return pack((b"EVAL", self._text, b"1", key, *args))

    def failed_command(self, error_text: str) -> str:
        """Find the command that failed by its line number: Redis before 7 reports no more."""
        line = _LINE.search(error_text)
        text = self._text.decode().split("\n")[int(line[1]) - 1] if line else ""
        called = _CALL.search(text)
        return called[1] if called else ""


JOIN = Script("join.lua")
JOIN_ALL = Script("join_all.lua")
RENEW = Script("renew.lua")
LEAVE = Script("leave.lua")
RESERVE = Script("reserve.lua")
CONSUME = Script("consume.lua")
INSPECT = Script("inspect.lua")
MEMBER = Script("member.lua")
REPAIR = Script("repair.lua")
HSCAN = Command("HSCAN")


WITH_TWO_ARGS = b"%b$%d\r\n%b\r\n$%d\r\n%b\r\n"
"""A call of a script with two arguments: its head, and each argument after its length.

Formatted in 0.5 µs, where hiredis takes 0.9 µs to pack all parts: for the two calls of every acquisition."""


@lru_cache(64)
def microseconds(seconds: float) -> int:
    """Convert, rounding up: a place must not expire before its holder's trust window ends."""
    return ceil(max(seconds, 0.0) * 1e6)


def sized(data: bytes) -> bytes:
    """Prefix up to 255 bytes with their length."""
    return bytes((len(data),)) + data


NO_WAKE_UP = 2 * sized(b"")
"""The channel and secret of a place that never waits."""


def pack_join(ask: Ask, wake_up: bytes, *, is_member: bool) -> bytes:
    """Pack the arguments of join.lua after the name; `wake_up` is the channel and the secret, each with its length."""
    _, owner, ttl, heartbeat, capacity, weight, queue, metadata, floor = ask
    encoded = owner.encode()
    head = _join_head(ttl, heartbeat, floor, queue, is_member, len(encoded))
    return b"".join((head, encoded, wake_up, _join_tail(capacity, weight, metadata)))


@lru_cache(64)
def _join_head(ttl: float, heartbeat: float, *rest: int) -> bytes:
    return _JOIN.pack(ceil(ttl * 1e6), ceil(heartbeat * 1e6), *rest)


@lru_cache(64)
def _join_tail(capacity: int, weight: int, metadata: str) -> bytes:
    return _NUMBERS.pack(capacity, weight) + metadata.encode()


pack_join_cached = lru_cache(maxsize=PACKED_CACHE_SIZE)(pack_join)


def pack_renewals(renewals: Sequence[Renewal]) -> list[Arg]:
    """Pack the arguments of renew.lua for places, at least one, each after its name.

    Column by column, which takes half of the time that it takes row by row.
    """
    names, owners, ttls, heartbeats, claims, floors = zip(*renewals, strict=True)
    encoded = [owner.encode() for owner in owners]
    heads = map(_renewal_head, ttls, heartbeats, floors, claims, map(len, encoded))
    args: list[Arg] = [b""] * (2 * len(names))
    args[::2] = names
    args[1::2] = [head + owner for head, owner in zip(heads, encoded, strict=True)]
    return args


@lru_cache(64)
def _renewal_head(ttl: float, heartbeat: float, *rest: int) -> bytes:
    return _RENEWAL.pack(microseconds(ttl), microseconds(heartbeat), *rest)


def reserve_args(reservation: Reservation) -> tuple[Arg, ...]:
    """Return the arguments of reserve.lua."""
    reserved_owner = reservation.owner + RESERVED
    durations = b"%d" % microseconds(reservation.seconds), b"%d" % microseconds(reservation.tombstone)
    args: tuple[Arg, ...] = reservation.name, reservation.owner, reserved_owner, *durations
    return args if reservation.metadata is None else (*args, reservation.metadata)


def pack_rate_request(request: RateRequest) -> bytes:
    """Pack the argument of consume.lua, without rounding: the smallest costs are fractions of a microsecond."""
    return _RATE_REQUEST.pack(request.cost * 1e6, request.burst * 1e6, request.max_wait * 1e6)


def parse_rate_result(reply: bytes) -> RateResult:
    """Parse the reply of consume.lua."""
    allowed, level = _RATE_RESULT.unpack(reply)
    return RateResult(allowed, level / 1e6)


def parse_place(record: bytes) -> Place:
    """Parse a place as line.lua packs it, after its checks. Raises ValueError if its owner is not UTF-8."""
    expires, ticket, acquired = _PLACE.unpack_from(record)
    rest = record[_PLACE.size :]
    for _ in ("before", "after"):
        _, rest = _take(rest)
    owner, rest = _take(rest)
    for _ in ("channel", "secret"):
        rest = rest[1 + rest[0] :]
    capacity, weight = _NUMBERS.unpack_from(rest)
    return Place(
        ticket=int(ticket),
        owner=owner.decode(),
        capacity=capacity,
        weight=weight,
        expires_at=expires / 1e6,
        acquired_at=acquired / 1e6 or None,
        metadata=rest[_NUMBERS.size :].decode(errors="backslashreplace"),  # it is not JSON then
    )


def _take(data: bytes) -> tuple[bytes, bytes]:
    (length,) = _LENGTH.unpack_from(data)
    return data[_LENGTH.size : _LENGTH.size + length], data[_LENGTH.size + length :]
