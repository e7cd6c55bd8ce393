"""A TCP proxy in front of a server that injects network faults into its connections."""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
import struct
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Literal, Protocol, Self

from lockstead.testing.background import Background

Direction = Literal["both", "requests", "replies"]
Address = tuple[str, int]
Command = list[bytes]

HOST = "127.0.0.1"
CHUNK = 1 << 16


class Dialect(Protocol):
    """Splits the traffic of one connection into requests and their replies, so that a single one can be lost.

    It yields nothing more once it cannot parse the traffic.
    """

    @staticmethod
    def is_handshake(command: Command) -> bool:
        """Return whether clients send this on connecting: losing "the next request" skips those."""

    def requests(self, chunk: bytes) -> Iterator[Command]: ...

    def replies(self, chunk: bytes) -> int:
        """Return how many requests are answered with this chunk."""


class Chunks:
    """Any protocol: each chunk that arrives counts as a request, or as the reply to one."""

    @staticmethod
    def is_handshake(command: Command) -> bool:
        return False

    def requests(self, chunk: bytes) -> Iterator[Command]:
        yield [chunk]

    def replies(self, chunk: bytes) -> int:
        return 1


class FaultProxy:
    """A port in front of a server's. Faults apply to open connections as well as to new ones.

    With a TLS context it terminates TLS for the clients, for servers without it. If a client speaks TLS to the server
    through it, a dialect cannot parse the traffic: faults by command do not work there.
    """

    def __init__(
        self,
        server: Address,
        *,
        dialect: type[Dialect] = Chunks,
        port: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.dialect = dialect
        self.accepted = 0
        """Connections so far."""
        self.commands = 0
        """Commands received so far, including those of handshakes and those that were not delivered."""
        self.lost = 0
        """Requests and replies lost by `lose_request` and `lose_reply`."""
        self.dropped = 0
        """Chunks dropped by `black_hole`."""
        self._server = server
        self._port = port
        self._tls = tls
        self._links: set[_Link] = set()
        self._listener: asyncio.Server | None = None
        self.delays = {"requests": 0.0, "replies": 0.0}
        self.is_steady = True
        self.swallowed: set[str] = set()
        self.held: set[str] = set()
        self.losses: list[_Loss] = []
        self._background = Background("fault proxy")
        self._background.run(self._begin())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def port(self) -> int:
        return self._port

    @property
    def address(self) -> Address:
        return HOST, self.port

    @property
    def open(self) -> int:
        """How many connections are open now."""
        return len(self._links)

    def delay(self, seconds: float, direction: Direction = "both", *, steady: bool = True) -> None:
        """Delay every chunk by `seconds`; or, not steady, each by a random time up to that."""
        self._background.do(lambda: self._delay(seconds, direction, steady=steady))

    def black_hole(self, direction: Direction = "both") -> None:
        """Accept everything and never deliver it: `heal` resets connections that lost something."""
        self._background.do(lambda: self.swallowed.update(_ways(direction)))

    def hold(self, direction: Direction = "both") -> None:
        """Deliver nothing until `heal`, which delivers it late: as TCP does after a network partition."""
        self._background.do(lambda: self.held.update(_ways(direction)))

    def freeze(self) -> None:
        """Hold the traffic of connections that are open now until `heal`; new ones are not affected."""
        self._background.do(self._freeze)

    def refuse(self) -> None:
        """Refuse new connections; open ones are not affected."""
        self._background.run(self._stop_listening())

    def reset_all(self) -> None:
        """Reset all connections, once."""
        self._background.do(self._reset_all)

    def lose_reply(self, count: int = 1, when: Callable[[Command], bool] | None = None) -> None:
        """Let the server execute the next commands of a kind, and reset the connection instead of each reply."""
        self._background.do(lambda: self.losses.append(_Loss("replies", count, when or self._is_not_handshake)))

    def lose_request(self, count: int = 1, when: Callable[[Command], bool] | None = None) -> None:
        """Reset the connection instead of delivering the next commands of a kind."""
        self._background.do(lambda: self.losses.append(_Loss("requests", count, when or self._is_not_handshake)))

    def heal(self) -> None:
        """End all faults; dropped data stays lost."""
        self._background.run(self._heal())

    def close(self) -> None:
        if not self._background.is_closed:
            self._background.run(self._end())
            self._background.close()

    def loses(self, way: str, command: Command) -> bool:
        """Return whether this command, or its reply, is one to lose, and count it."""
        for loss in self.losses:
            if loss.way == way and loss.count and loss.when(command):
                loss.count -= 1
                return True
        return False

    def _is_not_handshake(self, command: Command) -> bool:
        return not self.dialect.is_handshake(command)

    async def _begin(self) -> None:
        self.changed = asyncio.Condition()
        await self._listen()

    async def _listen(self) -> None:
        if self._listener is None:
            self._listener = await asyncio.start_server(self._accept, HOST, self._port, ssl=self._tls)
            self._port = self._listener.sockets[0].getsockname()[1]

    async def _stop_listening(self) -> None:
        if self._listener is not None:
            listener, self._listener = self._listener, None
            for listening in listener.sockets:
                asyncio.get_running_loop().remove_reader(listening.fileno())
            await asyncio.sleep(0)  # closed before this, asyncio leaks the connections it has just accepted
            listener.close()

    def _delay(self, seconds: float, direction: Direction, *, steady: bool) -> None:
        self.delays.update(dict.fromkeys(_ways(direction), seconds))
        self.is_steady = steady

    def _freeze(self) -> None:
        for link in self._links:
            link.is_frozen = True

    def _reset_all(self) -> None:
        for link in self._links:
            link.reset()

    async def _heal(self) -> None:
        self.delays = dict.fromkeys(self.delays, 0.0)
        self.swallowed.clear()
        self.held.clear()
        self.losses.clear()
        for link in list(self._links):
            link.is_frozen = False
            if link.has_lost_something:
                link.reset()
        async with self.changed:
            self.changed.notify_all()
        await self._listen()

    async def _end(self) -> None:
        await self._stop_listening()
        for _ in range(50):  # connections accepted before may start only now
            for link in self._links:
                link.stop()
            if not (tasks := asyncio.all_tasks() - {asyncio.current_task()}):
                break
            await asyncio.wait(tasks, timeout=0.1)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        try:
            server_reader, server_writer = await asyncio.open_connection(*self._server)
        except BaseException as error:
            _reset(writer)
            if isinstance(error, OSError):
                return
            raise
        link = _Link(self, writer, server_writer)
        self._links.add(link)
        try:
            await link.carry(reader, server_reader)
        finally:
            link.reset()
            self._links.discard(link)


class _Loss:
    """Which messages to lose, and how many more."""

    def __init__(self, way: str, count: int, when: Callable[[Command], bool]) -> None:
        self.way = way
        self.count = count
        self.when = when


class _Link:
    """A client's connection and the connection to the server that belongs to it."""

    def __init__(self, proxy: FaultProxy, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._dialect = proxy.dialect()
        self.is_frozen = False
        self.has_lost_something = False
        """By `black_hole`. `heal` resets it, as TCP cannot continue without the lost data."""
        self._ways: list[asyncio.Task[None]] = []
        self._doomed: deque[bool] = deque()
        """For each command that is not answered yet, whether its reply is to be lost."""

    def reset(self) -> None:
        _reset(self._client)
        _reset(self._server)

    async def carry(self, client: asyncio.StreamReader, server: asyncio.StreamReader) -> None:
        """Forward both directions until both ends have closed, or the connection is to be reset."""
        self._ways = [
            asyncio.create_task(self._carry("requests", client, self._server, self._is_request_lost)),
            asyncio.create_task(self._carry("replies", server, self._client, self._is_reply_lost)),
        ]
        await asyncio.wait(self._ways, return_when=asyncio.FIRST_EXCEPTION)
        self.stop()
        await asyncio.gather(*self._ways, return_exceptions=True)

    def stop(self) -> None:
        for way in self._ways:
            way.cancel()

    async def _carry(
        self, way: str, source: asyncio.StreamReader, to: asyncio.StreamWriter, is_lost: Callable[[bytes], bool]
    ) -> None:
        while chunk := await source.read(CHUNK):
            lost = is_lost(chunk)
            if seconds := self._proxy.delays[way]:
                await asyncio.sleep(seconds if self._proxy.is_steady else seconds * random.random())
            await self._until(lambda: not self.is_frozen and way not in self._proxy.held)
            if way in self._proxy.swallowed:
                self.has_lost_something = True
                self._proxy.dropped += 1
            elif lost:
                self._proxy.lost += 1
                break
            else:
                to.write(chunk)
                await to.drain()
        else:
            # A black hole drops the FIN like everything else.
            await self._until(lambda: not self.is_frozen and not {way} & (self._proxy.held | self._proxy.swallowed))
            if not self.has_lost_something and to.can_write_eof():
                to.write_eof()
                return
        raise ConnectionResetError

    async def _until(self, condition: Callable[[], bool]) -> None:
        async with self._proxy.changed:
            await self._proxy.changed.wait_for(condition)

    def _is_request_lost(self, chunk: bytes) -> bool:
        is_lost = False
        for command in self._dialect.requests(chunk):
            self._proxy.commands += 1
            is_lost |= self._proxy.loses("requests", command)
            self._doomed.append(self._proxy.loses("replies", command))
        return is_lost

    def _is_reply_lost(self, chunk: bytes) -> bool:
        is_lost = False
        for _ in range(self._dialect.replies(chunk)):
            if self._doomed:
                is_lost |= self._doomed.popleft()
        return is_lost


def _ways(direction: Direction) -> list[str]:
    return ["requests", "replies"] if direction == "both" else [direction]


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with RST instead of FIN."""
    # A TLS connection that is closed already has no socket, a plain one has a closed one.
    if connection := writer.get_extra_info("socket"):
        with suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
