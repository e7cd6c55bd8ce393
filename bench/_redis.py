"""What the Redis benchmarks share: the server, and a minimal client."""

from __future__ import annotations

import argparse
import asyncio
import socket
from collections import deque
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import hiredis

from bench import _measure
from lockstead.stores.redis.resp import pack
from tests.servers.binaries import FLAVOURS, REDIS7, VALKEY9

TTL = 30
SCRIPTS = Path(__file__).with_name("scripts")
TAKE = SCRIPTS.joinpath("take.lua").read_text("utf-8")
DROP = SCRIPTS.joinpath("drop.lua").read_text("utf-8")
"""The scripts of a minimal lock, roughly those of redis-py and Redlock."""


def options(description: str | None) -> argparse.ArgumentParser:
    parser = _measure.options(description)
    default = REDIS7 if REDIS7.is_present else VALKEY9
    parser.add_argument("--flavour", type=FLAVOURS.__getitem__, default=default, help=", ".join(FLAVOURS))
    return parser


def take(digest: bytes, key: str) -> bytes:
    return pack(("EVALSHA", digest, b"1", key, "me", str(1000 * TTL)))


def drop(digest: bytes, key: str) -> bytes:
    return pack(("EVALSHA", digest, b"1", key, "me"))


class Wire:
    """A blocking socket, and hiredis to parse replies."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.socket = socket.create_connection((parts.hostname, parts.port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = hiredis.Reader()

    def call(self, payload: bytes) -> Any:
        self.socket.sendall(payload)
        while (reply := self._reader.gets()) is False:
            self._reader.feed(self.socket.recv(1 << 16))
        if isinstance(reply, Exception):
            raise reply
        return reply

    def load(self, script: str) -> bytes:
        """Load a script into the server, and return its digest."""
        digest: bytes = self.call(pack(("SCRIPT", "LOAD", script)))
        return digest

    def close(self) -> None:
        self.socket.close()


class ThinProtocol(asyncio.Protocol):
    """The same for an event loop: replies arrive in the order of the calls."""

    def __init__(self) -> None:
        self._reader = hiredis.Reader()
        self._calls: deque[asyncio.Future[Any]] = deque()
        self._unsent: list[bytes] = []
        self._loop = asyncio.get_running_loop()

    @classmethod
    async def connect(cls, url: str) -> Self:
        parts = urlsplit(url)
        assert parts.hostname
        assert parts.port
        _, protocol = await asyncio.get_running_loop().create_connection(cls, parts.hostname, parts.port)
        return protocol

    def call(self, payload: bytes) -> asyncio.Future[Any]:
        self._transport.write(payload)
        return self._expect()

    def call_together(self, payload: bytes) -> asyncio.Future[Any]:
        """Send all calls of one turn of the loop with one write."""
        if not self._unsent:
            self._loop.call_soon(self._send)
        self._unsent.append(payload)
        return self._expect()

    async def load(self, script: str) -> bytes:
        digest: bytes = await self.call(pack(("SCRIPT", "LOAD", script)))
        return digest

    def close(self) -> None:
        self._transport.close()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not False:
            self._calls.popleft().set_result(reply)

    def _expect(self) -> asyncio.Future[Any]:
        call = self._loop.create_future()
        self._calls.append(call)
        return call

    def _send(self) -> None:
        self._transport.write(b"".join(self._unsent))
        self._unsent.clear()
