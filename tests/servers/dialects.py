"""What goes over a connection, split into requests and their replies, so that a proxy can lose one of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import hiredis

from lockstead.testing.proxy import Command
from tests.servers.wire import CANCEL, ENCRYPTION, Framer, text

STARTUP = b"\0startup"
"""What stands for the opening of a connection to PostgreSQL."""


class Resp:
    """The protocol of Redis: a command is its words."""

    def __init__(self) -> None:
        self._requests = _RespMessages()
        self._replies = _RespMessages()

    @staticmethod
    def is_handshake(command: Command) -> bool:
        return command[0].upper() in {b"AUTH", b"CLIENT", b"HELLO", b"SELECT"}

    def requests(self, chunk: bytes) -> Iterator[Command]:
        return self._requests.read(chunk)

    def replies(self, chunk: bytes) -> int:
        return sum(not isinstance(reply, hiredis.PushNotification) for reply in self._replies.read(chunk))


class _RespMessages:
    def __init__(self) -> None:
        self._incomplete = object()
        self._reader: hiredis.Reader | None = hiredis.Reader(notEnoughData=self._incomplete)

    def read(self, chunk: bytes) -> Iterator[Any]:
        if self._reader is None:
            return
        self._reader.feed(chunk)
        try:
            while (message := self._reader.gets()) is not self._incomplete:
                yield message
        except hiredis.ProtocolError:
            self._reader = None


class Postgres:
    """The protocol of PostgreSQL: a command is the statements between two points at which the server says it is ready.

    Statements prepared before are known by their text. What begins and ends a transaction is a command of its own.
    """

    def __init__(self) -> None:
        self._requests = Framer(has_opening=True)
        self._replies = Framer()
        self._is_encryption_asked_for = False
        self._is_encrypted = False
        self._prepared: dict[bytes, bytes] = {}
        self._statements: Command = []

    @staticmethod
    def is_handshake(command: Command) -> bool:
        return command == [STARTUP]

    def requests(self, chunk: bytes) -> Iterator[Command]:
        if self._is_encrypted:
            return
        for kind, body in self._requests.read(chunk):
            if kind in ENCRYPTION:
                self._is_encryption_asked_for = True
            elif kind == b"":
                yield [STARTUP]
            elif kind in b"QS":
                if kind == b"Q":
                    self._note(text(body))
                yield self._statements
                self._statements = []
            elif kind == b"P":
                name = text(body)
                self._prepared[name] = text(body[len(name) + 1 :])
                self._note(self._prepared[name])
            elif kind == b"B":
                _portal, name, _ = body.split(b"\0", 2)
                self._note(self._prepared.get(name, b""))
            elif kind == CANCEL:
                return

    def replies(self, chunk: bytes) -> int:
        if self._is_encryption_asked_for:
            self._is_encryption_asked_for = False
            self._is_encrypted = chunk[:1] != b"N"
            chunk = chunk[1:]
        if self._is_encrypted:
            return 0
        return sum(kind == b"Z" for kind, _ in self._replies.read(chunk))

    def _note(self, statement: bytes) -> None:
        if statement not in self._statements:
            self._statements.append(statement)
