"""The scripts, as files beside this one, and the records they keep."""

from __future__ import annotations

import hashlib
import re
import struct
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

ONCE = 64
"""So much that was packed is kept for the other members of a quorum, which are asked the same."""


def _read(name: str) -> str:
    return files("lockstead.stores.redis").joinpath("scripts", name).read_text("utf-8")


class Command:
    """A command whose first argument is its key."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.pack_cached = lru_cache(maxsize=ONCE)(self.pack)
        """Pack what several servers are asked one after another."""

    def pack(self, key: bytes, args: tuple[Arg, ...]) -> bytes:
        return pack((self._name, key, *args))

    def pack_in_full(self, key: bytes, args: tuple[Arg, ...]) -> bytes:
        """Pack the command for a server that may not know what it stands for."""
        return self.pack(key, args)

    def failed_command(self, said: str) -> str:
        """Name the command that an error reply is about; empty if that cannot be told."""
        return self._name


class Script(Command):
    """A script of one key, called by its digest."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._text = re.sub(r"--include (\S+)\n", lambda found: _read(found[1]), _read(name)).encode()
        self._digest = hashlib.sha1(self._text, usedforsecurity=False).hexdigest().encode()

    def pack(self, key: bytes, args: tuple[Arg, ...]) -> bytes:
        return pack((b"EVALSHA", self._digest, b"1", key, *args))

    def pack_in_full(self, key: bytes, args: tuple[Arg, ...]) -> bytes:
        """Pack the script itself: whoever runs it has learnt it."""
        return pack((b"EVAL", self._text, b"1", key, *args))

    def failed_command(self, said: str) -> str:
        """Find the command that failed by its line: Redis before 7 tells no more."""
        line = _LINE.search(said)
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


@lru_cache(64)
def microseconds(seconds: float) -> int:
    """Round up: a place must not end before its holder thinks it may."""
    return ceil(max(seconds, 0.0) * 1e6)


def sized(data: bytes) -> bytes:
    """Put a length before up to 255 bytes."""
    return bytes((len(data),)) + data


NO_WAKE_UP = 2 * sized(b"")
"""The channel and secret of a place that never waits."""


def pack_join(ask: Ask, wake_up: bytes, *, is_member: bool) -> bytes:
    """Pack what join.lua takes besides the name; `wake_up` is the channel and the secret, each with its length."""
    _, name, ttl, heartbeat, capacity, weight, queue, metadata, floor = ask
    owner = name.encode()
    head = _JOIN.pack(ceil(ttl * 1e6), ceil(heartbeat * 1e6), floor, queue, is_member, len(owner))
    return b"".join((head, owner, wake_up, _NUMBERS.pack(capacity, weight), metadata.encode()))


pack_join_cached = lru_cache(maxsize=ONCE)(pack_join)


def pack_renewal(renewal: Renewal) -> bytes:
    """Pack what renew.lua takes of a place besides the name."""
    _, name, ttl, heartbeat, claim, floor = renewal
    owner = name.encode()
    return _RENEWAL.pack(microseconds(ttl), microseconds(heartbeat), floor, claim, len(owner)) + owner


def reserve_args(reservation: Reservation) -> tuple[Arg, ...]:
    """Give what reserve.lua takes."""
    reserved_owner = reservation.owner + RESERVED
    lives = b"%d" % microseconds(reservation.seconds), b"%d" % microseconds(reservation.tombstone)
    args: tuple[Arg, ...] = reservation.name, reservation.owner, reserved_owner, *lives
    return args if reservation.metadata is None else (*args, reservation.metadata)


def pack_rate_request(charge: RateRequest) -> bytes:
    """Pack what consume.lua takes, without rounding: the smallest costs are parts of a microsecond."""
    return _RATE_REQUEST.pack(charge.cost * 1e6, charge.limit * 1e6, charge.patience * 1e6)


def parse_balance(reply: bytes) -> RateResult:
    """Read what consume.lua returns."""
    allowed, debt = _RATE_RESULT.unpack(reply)
    return RateResult(allowed, debt / 1e6)


def parse_place(record: bytes) -> Place:
    """Read a place as line.lua packs it, which has checked it. Raises ValueError if its owner is no text."""
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
        metadata=rest[_NUMBERS.size :].decode(errors="backslashreplace"),  # then it is no JSON
    )


def _take(data: bytes) -> tuple[bytes, bytes]:
    (length,) = _LENGTH.unpack_from(data)
    return data[_LENGTH.size : _LENGTH.size + length], data[_LENGTH.size + length :]
