"""Redis for threads: a connection for each that is asking, and one that hears for all."""

from __future__ import annotations

import select
import socket
import threading
import time
from _thread import allocate_lock
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any

import hiredis

from leasehold import _lifecycle
from leasehold._model import Wake
from leasehold.runtimes.threads import ThreadRuntime
from leasehold.stores.redis._address import Address
from leasehold.stores.redis._errors import FAILURES, check_all, is_passing, unanswered
from leasehold.stores.redis._resp import is_wake_up, pack

CHUNK = 4096
FRESH = 1.0
"""For how long an idle connection is taken for alive without a look at it."""
SILENCE = 3.0
"""How long the ear hears nothing before it asks whether anybody is there, and then before it connects anew."""
PAUSE = 0.1
"""How long a waiter who cannot listen waits before he asks again."""
LEAST_TIME = 0.25
"""What a connection is given to come about even if its user has less time."""
PING = pack(("PING",))

Locate = Callable[[], Awaitable[Address]]


class Connection:
    """A socket that speaks RESP. Not for two threads at once, and not to be used again after an exception."""

    def __init__(self, runtime: ThreadRuntime, opened: socket.socket) -> None:
        self.idle_since = 0.0
        self._socket = opened
        self._timeout = -1.0
        self._is_gathering = runtime.is_gathering
        self._readable = runtime.readable
        self._now = runtime.now
        reader = hiredis.Reader()
        self._feed, self._gets = reader.feed, reader.gets
        self._send, self._recv = opened.sendall, opened.recv

    async def exchange(self, payload: bytes, count: int, timeout: float) -> list[Any]:
        deadline = self._now() + timeout
        if timeout != self._timeout:
            self._limit(timeout)
        self._send(payload)
        replies: list[Any] = []
        while True:
            if self._is_gathering():
                await self._readable(self._socket, deadline)
            replies += self.receive(timeout)
            if len(replies) >= count:
                return replies
            timeout = deadline - self._now()
            if timeout <= 0:
                raise TimeoutError

    def receive(self, timeout: float) -> list[Any]:
        """Wait for at least a part of a reply, and return those that are complete. Raises TimeoutError."""
        if timeout != self._timeout:
            self._limit(timeout)
        data = self._recv(CHUNK)
        if not data:
            msg = "the server closed the connection"
            raise ConnectionResetError(msg)
        self._feed(data)
        replies = []
        while (reply := self._gets()) is not False:
            replies.append(reply)
        return replies

    def send(self, payload: bytes, timeout: float) -> None:
        self._limit(timeout)
        self._send(payload)

    def _limit(self, timeout: float) -> None:
        self._timeout = timeout
        self._socket.settimeout(max(timeout, 0.001))

    def is_broken(self) -> bool:
        """Tell whether the server has closed an idle connection: it has no other reason to send anything."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    def shut_down(self) -> None:
        """End it for whoever is just reading from it."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()

    def __del__(self) -> None:
        self.close()


def _open_socket(address: Address, timeout: float) -> socket.socket:
    if address.path:
        plain = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            plain.settimeout(timeout)
            plain.connect(address.path)
        except BaseException:
            plain.close()
            raise
        return plain
    plain = socket.create_connection((address.host, address.port), timeout)
    try:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if address.tls is not None:
            return address.tls.wrap_socket(plain, server_hostname=address.host)
    except BaseException:
        plain.close()
        raise
    return plain


async def connect(runtime: ThreadRuntime, address: Address, timeout: float, *commands: bytes) -> Connection:
    """Open a connection, log in, and send the first commands. Raises StoreError if the server will not have us."""
    connection = Connection(runtime, _open_socket(address, timeout))
    try:
        if first := [*address.greeting(), *commands]:
            check_all(address, await connection.exchange(b"".join(first), len(first), timeout))
    except BaseException:
        connection.close()
        raise
    return connection


class BlockingNode:
    """The connections to one server. One in use belongs to whoever took it; one that failed is not put back."""

    def __init__(self, runtime: ThreadRuntime, address: Address) -> None:
        self.address = address
        self.is_checked = False
        self._is_closed = False
        self._runtime = runtime
        self._idle: list[Connection] = []
        _lifecycle.at_fork(self, in_child="_forked")

    async def ask(self, payload: bytes, count: int, timeout: float) -> list[Any]:
        connection = None
        try:
            connection = self._take() or await connect(self._runtime, self.address, timeout)
            replies = await connection.exchange(payload, count, timeout)
        except BaseException as error:
            if connection is not None:
                connection.close()
            if isinstance(error, FAILURES):
                if not isinstance(error, TimeoutError):
                    self._drop_idle()  # what befell this connection has mostly befallen them all
                raise unanswered(self.address, error) from error
            raise
        connection.idle_since = self._runtime.now()
        if self._is_closed:
            connection.close()
        else:
            self._idle.append(connection)
        return replies

    def _take(self) -> Connection | None:
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return None
            if self._runtime.now() < connection.idle_since + FRESH or not connection.is_broken():
                return connection
            connection.close()

    def refresh(self) -> None:
        """Use new connections from now on."""
        self._drop_idle()

    def close(self) -> None:
        """Let idle connections go; one in use is closed when it is given back."""
        self._is_closed = True
        self._drop_idle()

    def _drop_idle(self) -> None:
        with suppress(IndexError):  # until there is none, whoever else takes them
            while True:
                self._idle.pop().close()

    def _forked(self) -> None:
        self._idle = []


class _Waiter:
    """Somebody who waits, or will. Its latch is opened for a wake-up, or for its turn to listen."""

    __slots__ = ("latch", "wake")

    def __init__(self) -> None:
        self.latch = allocate_lock()
        self.latch.acquire()
        self.wake = Wake.SILENCE

    def ring(self, wake: Wake) -> None:
        self.wake = max(self.wake, wake)
        self.open()

    def open(self) -> None:
        with suppress(RuntimeError):  # it is open already
            self.latch.release()


class BlockingEar:
    """One of the waiting threads listens for all of them, and hands that on when it goes.

    So whoever waits alone reads the wake-up from the socket himself: no other thread stands between.
    """

    def __init__(self, runtime: ThreadRuntime, channel: str, locate: Locate) -> None:
        self.channel = channel
        self._is_closed = False
        self._runtime = runtime
        self._locate = locate
        self._start_afresh()
        _lifecycle.at_fork(self, in_child="_start_afresh")

    def _start_afresh(self) -> None:
        self._mutex = threading.Lock()
        self._waiters: dict[str, _Waiter] = {}
        self._followers: dict[str, _Waiter] = {}
        self._listener: _Waiter | None = None
        self._connection: Connection | None = None
        self._heard_at = 0.0
        self._asked_at = 0.0

    def expect(self, owner: str) -> None:
        self._waiters[owner] = _Waiter()

    def forget(self, owner: str) -> None:
        self._waiters.pop(owner, None)

    async def wait(self, owner: str, timeout: float) -> Wake:
        waiter = self._waiters.get(owner) or _Waiter()
        deadline = self._runtime.now() + timeout
        try:
            while not waiter.wake and (left := deadline - self._runtime.now()) > 0:
                with self._mutex:
                    if self._listener is None:
                        self._listener = waiter
                    elif self._listener is not waiter:
                        self._followers[owner] = waiter
                if self._listener is waiter:
                    await self._listen(waiter, deadline)
                else:
                    waiter.latch.acquire(timeout=left)
        finally:
            self._hand_on(owner, waiter)
        wake, waiter.wake = waiter.wake, Wake.SILENCE
        return wake

    def _hand_on(self, owner: str, waiter: _Waiter) -> None:
        """See to it that somebody listens, if anybody else waits."""
        with self._mutex:
            self._followers.pop(owner, None)
            if self._listener is waiter:
                self._listener = None
            successor = self._followers.popitem()[1] if self._followers and self._listener is None else None
        if successor is not None:
            successor.open()

    async def _listen(self, waiter: _Waiter, deadline: float) -> None:
        """Hear for everybody, until our own wake-up comes."""
        try:
            connection = self._connection or await self._subscribe(deadline)
            while not waiter.wake and (left := deadline - self._runtime.now()) > 0:
                self._check_silence(connection)
                with suppress(TimeoutError):
                    self._take_in(connection.receive(min(left, SILENCE)))
        except BaseException as error:
            self._hang_up()
            if not is_passing(error):
                raise
            time.sleep(min(PAUSE, max(deadline - self._runtime.now(), 0.0)))
            waiter.ring(Wake.HINT)

    async def _subscribe(self, deadline: float) -> Connection:
        """Connect, and have everybody ask again: what was sent before is lost."""
        address = await self._locate()
        left = max(deadline - self._runtime.now(), LEAST_TIME)
        connection = await connect(self._runtime, address, left, pack(("SUBSCRIBE", self.channel)))
        self._connection = connection
        if self._is_closed:
            msg = "the connection was closed"
            raise ConnectionAbortedError(msg)
        self._heard_at = self._asked_at = self._runtime.now()
        for waiter in list(self._waiters.values()):
            waiter.ring(Wake.HINT)
        return connection

    def _take_in(self, messages: Iterable[Any]) -> None:
        self._heard_at = self._runtime.now()
        for message in messages:
            if is_wake_up(message) and (waiter := self._waiters.get(message[2].decode())):
                waiter.ring(Wake.GRANT)

    def _check_silence(self, connection: Connection) -> None:
        """Find out whether the other end is still there, if it has not said anything for long."""
        now = self._runtime.now()
        if now < self._heard_at + SILENCE:
            return
        if self._asked_at <= self._heard_at:
            connection.send(PING, SILENCE)
            self._asked_at = now
        elif now > self._asked_at + SILENCE:
            msg = "the server has fallen silent"
            raise ConnectionResetError(msg)

    def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def close(self) -> None:
        """Let the connection go; whoever listens finds it closed and, by then, nobody to wait for."""
        self._is_closed = True
        connection = self._connection
        if connection is not None:
            connection.shut_down()
            if self._listener is None:
                self._hang_up()
