"""A pooler of our own, which is always there: many clients share a few connections to a PostgreSQL server.

It does what PgBouncer 1.18 does as far as locks are concerned: a client has a connection from the first message of a
transaction to its last, notifications for a connection that no client has are dropped, and prepared statements stay
on the connection on which they happened to be made. It asks for no password.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import defaultdict
from contextlib import suppress
from typing import Literal, Protocol, Self

from lockstead.testing.background import Background
from tests.servers import wire
from tests.servers.dialects import Postgres
from tests.servers.ports import HOST, Port
from tests.servers.postgres import PostgresServer
from tests.servers.tls import Authority

PoolMode = Literal["transaction", "session"]
UNDERSTOOD = {"user", "database", "application_name", "client_encoding", "datestyle", "timezone"}
"""Parameters of a startup that PgBouncer takes; others it refuses."""


class Pooler(Protocol):
    """What the poolers have in common; a fault proxy can stand in front of one."""

    @property
    def port(self) -> int: ...

    @property
    def dialect(self) -> type[Postgres]: ...

    @property
    def url(self) -> str: ...

    def url_at(self, port: int, tls: Authority | None = None) -> str: ...


class OwnPooler:
    """A port in front of a server's, with at most `pool_size` connections to it for each user and database."""

    dialect = Postgres

    def __init__(self, server: PostgresServer, *, pool_mode: PoolMode = "transaction", pool_size: int = 2) -> None:
        self.server = server
        self.pool_mode = pool_mode
        self._port = Port()
        self._clients: dict[bytes, _Client] = {}
        self._pools: dict[tuple[str, str], _Pool] = defaultdict(lambda: _Pool(server, pool_mode, pool_size))
        self._background = Background("pooler")
        self._listener = self._background.run(asyncio.start_server(self._accept, HOST, self.port))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def port(self) -> int:
        return self._port.number

    @property
    def url(self) -> str:
        return self.url_at(self.port)

    def url_at(self, port: int, tls: Authority | None = None) -> str:
        return self.server.url_at(port, tls)

    def close(self) -> None:
        if not self._background.is_closed:
            self._background.do(self._listener.close)
            self._background.close()
            self._port.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A test that is over cancels what is left.
        with suppress(OSError, EOFError, asyncio.CancelledError):
            await self._serve(reader, writer)
        writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        kind, body = await wire.read_opening(reader)
        while kind in wire.ENCRYPTION:
            writer.write(b"N")
            kind, body = await wire.read_opening(reader)
        if kind == wire.CANCEL:
            await self._cancel(body)
            return
        parameters = wire.parameters_of(body)
        if strange := parameters.keys() - UNDERSTOOD:
            writer.write(wire.fatal("08P01", f"unsupported startup parameter: {min(strange)}"))
            await writer.drain()
            writer.close()
            await writer.wait_closed()
            return
        pool = self._pools[parameters["user"], parameters.get("database", parameters["user"])]
        key = secrets.token_bytes(8)
        client = self._clients[key] = _Client(writer, pool)
        try:
            writer.write(await pool.greeting(parameters) + wire.message(b"K", key) + wire.message(b"Z", b"I"))
            await client.serve(reader)
        finally:
            del self._clients[key]
            client.leave()

    async def _cancel(self, key: bytes) -> None:
        client = self._clients.get(key)
        if client and client.backend:
            await client.backend.cancel(self.server.port)


class _Client:
    def __init__(self, writer: asyncio.StreamWriter, pool: _Pool) -> None:
        self.writer = writer
        self.pool = pool
        self.backend: _Backend | None = None

    async def serve(self, reader: asyncio.StreamReader) -> None:
        while (message := await wire.read_message(reader))[0] != b"X":
            if self.backend is None:
                self.backend = await self.pool.lend(self)
            self.backend.send(*message)

    def leave(self) -> None:
        """Leave no transaction behind, nor a session's locks."""
        if self.backend:
            self.backend.close()


class _Pool:
    """The connections of one user to one database."""

    def __init__(self, server: PostgresServer, mode: PoolMode, size: int) -> None:
        self._server = server
        self._mode = mode
        self._places = asyncio.Semaphore(size)
        self._idle: list[_Backend] = []
        self._parameters: dict[str, str] = {}
        self._greeting = b""

    async def greeting(self, parameters: dict[str, str]) -> bytes:
        """Return what the server says to a client that it lets in."""
        if not self._greeting:
            self._parameters = {name: parameters[name] for name in ("user", "database") if name in parameters}
            async with self._places:
                backend = await self._idle_or_new()
                self._idle.append(backend)
            self._greeting = backend.greeting
        return self._greeting

    async def lend(self, client: _Client) -> _Backend:
        await self._places.acquire()
        try:
            backend = await self._idle_or_new()
        except BaseException:
            self._places.release()
            raise
        backend.client = client
        return backend

    def take_back(self, backend: _Backend, *, is_idle: bool) -> None:
        if is_idle and self._mode == "session":
            return
        if backend.client:
            backend.client.backend = None
            backend.client = None
            self._places.release()
            if is_idle:
                self._idle.append(backend)
        elif backend in self._idle and not is_idle:
            self._idle.remove(backend)

    async def _idle_or_new(self) -> _Backend:
        if self._idle:
            return self._idle.pop()
        reader, writer = await asyncio.open_connection(HOST, self._server.port)
        backend = _Backend(self, reader, writer)
        await backend.log_in(self._parameters)
        return backend


class _Backend:
    """A connection to the server, and the client that has it now."""

    def __init__(self, pool: _Pool, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.client: _Client | None = None
        self.greeting = b""
        self._pool = pool
        self._reader = reader
        self._writer = writer
        self._key = b""
        self._unanswered = 0
        self._is_midway = False
        """Whether messages were sent for which no answer is asked yet."""

    async def log_in(self, parameters: dict[str, str]) -> None:
        self._writer.write(wire.startup(parameters))
        while (message := await wire.read_message(self._reader))[0] != b"Z":
            kind, body = message
            if kind == b"E":
                raise ConnectionRefusedError(body)
            if kind == b"K":
                self._key = body
            else:
                self.greeting += wire.message(kind, body)
        self._task = asyncio.create_task(self._relay())

    def send(self, kind: bytes, body: bytes) -> None:
        self._is_midway = kind not in b"QSF"
        self._unanswered += not self._is_midway
        self._writer.write(wire.message(kind, body))

    async def cancel(self, port: int) -> None:
        _, writer = await asyncio.open_connection(HOST, port)
        writer.write(wire.cancel(self._key))
        await writer.drain()
        writer.close()

    def close(self) -> None:
        self._task.cancel()

    async def _relay(self) -> None:
        with suppress(OSError, EOFError, asyncio.CancelledError):
            while True:
                kind, body = await wire.read_message(self._reader)
                client = self.client
                if kind == b"Z":
                    self._unanswered -= 1
                    if body == b"I" and not self._unanswered and not self._is_midway:
                        self._pool.take_back(self, is_idle=True)
                if client:
                    client.writer.write(wire.message(kind, body))
        if client := self.client:
            client.writer.transport.abort()
        self._pool.take_back(self, is_idle=False)
        self._writer.transport.abort()
