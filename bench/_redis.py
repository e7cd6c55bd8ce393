"""What the Redis benchmarks share: which server, and the thinnest client there can be."""

from __future__ import annotations

import argparse
import socket
from typing import Any
from urllib.parse import urlsplit

import hiredis

from bench import _measure
from leasehold.stores.redis._resp import pack
from tests.servers.binaries import FLAVOURS, REDIS7, VALKEY9

TTL = 30


def options(description: str | None) -> argparse.ArgumentParser:
    parser = _measure.options(description)
    default = REDIS7 if REDIS7.is_present else VALKEY9
    parser.add_argument("--flavour", type=FLAVOURS.__getitem__, default=default, help=", ".join(FLAVOURS))
    return parser


class Wire:
    """A blocking socket, and hiredis to read what comes."""

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
        """Have the server learn a script, and return its digest."""
        digest: bytes = self.call(pack(("SCRIPT", "LOAD", script)))
        return digest

    def close(self) -> None:
        self.socket.close()
