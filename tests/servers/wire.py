"""The messages of PostgreSQL's protocol, as far as standing between a client and a server takes it."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator, Mapping

Message = tuple[bytes, bytes]
"""A message's kind and body. A client's opening, which has no kind on the wire, is of one of these."""

STARTUP = b""
ENCRYPTION = (b"ssl", b"gss")
CANCEL = b"cancel"

_PROTOCOL = 196608
_OPENINGS = {80877103: b"ssl", 80877104: b"gss", 80877102: CANCEL}


class Framer:
    """Cuts a stream of bytes into messages; what a client says begins with openings."""

    def __init__(self, *, has_opening: bool = False) -> None:
        self._is_opening = has_opening
        self._rest = b""

    def read(self, chunk: bytes) -> Iterator[Message]:
        self._rest += chunk
        while True:
            at = 0 if self._is_opening else 1
            if len(self._rest) < at + 4:
                return
            end = at + int.from_bytes(self._rest[at : at + 4])
            if len(self._rest) < end:
                return
            kind, body = self._rest[:at], self._rest[at + 4 : end]
            self._rest = self._rest[end:]
            if self._is_opening:
                kind, body = _opening(body)
                self._is_opening = kind in ENCRYPTION
            yield kind, body


async def read_opening(reader: asyncio.StreamReader) -> Message:
    return _opening(await _body(reader))


async def read_message(reader: asyncio.StreamReader) -> Message:
    return await reader.readexactly(1), await _body(reader)


def message(kind: bytes, body: bytes = b"") -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


def startup(parameters: Mapping[str, str]) -> bytes:
    words = b"".join(f"{name}\0{value}\0".encode() for name, value in parameters.items())
    return message(STARTUP, struct.pack("!i", _PROTOCOL) + words + b"\0")


def parameters_of(startup_body: bytes) -> dict[str, str]:
    words = startup_body.decode().split("\0")
    return dict(zip(words[0:-2:2], words[1:-2:2], strict=True))


def cancel(key: bytes) -> bytes:
    return message(STARTUP, struct.pack("!i", next(code for code, kind in _OPENINGS.items() if kind == CANCEL)) + key)


def fatal(code: str, what: str) -> bytes:
    return message(b"E", f"SFATAL\0VFATAL\0C{code}\0M{what}\0\0".encode())


def text(body: bytes) -> bytes:
    """Return what is before the first NUL."""
    return body.partition(b"\0")[0]


async def _body(reader: asyncio.StreamReader) -> bytes:
    return await reader.readexactly(int.from_bytes(await reader.readexactly(4)) - 4)


def _opening(body: bytes) -> Message:
    return _OPENINGS.get(int.from_bytes(body[:4]), STARTUP), body[4:]
