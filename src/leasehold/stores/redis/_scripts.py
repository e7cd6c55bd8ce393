"""The scripts, as files beside this one, and the records they keep."""

from __future__ import annotations

import hashlib
import struct
from importlib.resources import files
from math import ceil

from leasehold._model import Place
from leasehold.stores.redis._resp import Arg, pack

_PLACE = struct.Struct("<ddd")
_LENGTH = struct.Struct("<H")
_NUMBERS = struct.Struct("<II")


class Script:
    """A script of one key, called by its digest."""

    def __init__(self, name: str) -> None:
        folder = files("leasehold.stores.redis")
        shared = folder.joinpath("line.lua").read_text("utf-8")
        self._text = folder.joinpath(name).read_text("utf-8").replace("--include line.lua\n", shared).encode()
        self._digest = hashlib.sha1(self._text, usedforsecurity=False).hexdigest().encode()

    def pack(self, key: bytes, *args: Arg) -> bytes:
        return pack(b"EVALSHA", self._digest, 1, key, *args)

    def pack_in_full(self, key: bytes, *args: Arg) -> bytes:
        """Pack a call for a server that does not know the script, which it thereby learns."""
        return pack(b"EVAL", self._text, 1, key, *args)


JOIN = Script("join.lua")
RENEW = Script("renew.lua")
LEAVE = Script("leave.lua")
LOOK = Script("look.lua")
MEMBER = Script("member.lua")


def microseconds(seconds: float) -> int:
    """Round up: a place must not end before its holder thinks it may."""
    return ceil(seconds * 1e6)


def pack_constant(owner: str, channel: str, capacity: int, weight: int, metadata: str) -> bytes:
    """Pack what never changes of a place."""
    name, address = owner.encode(), channel.encode()
    return b"".join(
        (
            _LENGTH.pack(len(name)),
            name,
            bytes((len(address),)),
            address,
            _NUMBERS.pack(capacity, weight),
            metadata.encode(),
        )
    )


def parse_place(record: bytes) -> Place:
    """Read a place as line.lua packs it."""
    expires, ticket, acquired = _PLACE.unpack_from(record)
    rest = record[_PLACE.size :]
    for _ in ("before", "after"):
        _, rest = _take(rest)
    owner, rest = _take(rest)
    rest = rest[1 + rest[0] :]
    capacity, weight = _NUMBERS.unpack_from(rest)
    return Place(
        ticket=int(ticket),
        owner=owner.decode(),
        capacity=capacity,
        weight=weight,
        expires_at=expires / 1e6,
        acquired_at=acquired / 1e6 or None,
        metadata=rest[_NUMBERS.size :].decode(),
    )


def _take(data: bytes) -> tuple[bytes, bytes]:
    (length,) = _LENGTH.unpack_from(data)
    return data[_LENGTH.size : _LENGTH.size + length], data[_LENGTH.size + length :]
