"""Redis for threads: one connection per concurrent request, and one subscription for all waiting threads."""

from __future__ import annotations

import os
import select
import socket
import ssl
import struct
from contextlib import suppress
from typing import Any, NoReturn

import hiredis

from lockstead.core import lifecycle
from lockstead.runtimes.threads import ThreadRuntime
from lockstead.stores.redis.address import Address
from lockstead.stores.redis.errors import FAILURES, check_all, check_speaks_tls, unknown_outcome
from lockstead.stores.redis.resp import PING, pack, published
from lockstead.stores.transport.pool import MAX_UNCHECKED_IDLE, Pool
from lockstead.stores.transport.recognition import HANDSHAKE_PATIENCE
from lockstead.stores.transport.subscriber import LIVENESS_TIMEOUT

CHUNK = 4096
"""Bytes read at a time."""
_TIMEVAL = struct.Struct("@ll")


class Connection:
    """A socket that speaks RESP. Not for two threads at once, and not to be used again after an exception."""

    def __init__(self, runtime: ThreadRuntime, opened: socket.socket) -> None:
        self._socket = opened  # first of all: __del__ needs it, even if an interrupt ends this early
        self.idle_since = runtime.now()
        self._timeout = -1.0
        self._is_gathering = runtime.is_gathering
        self._readable = runtime.readable
        self._now = runtime.now
        reader = hiredis.Reader()
        self._feed, self._gets = reader.feed, reader.gets
        self._send, self._recv = opened.sendall, opened.recv
        is_plain = type(opened).__module__ == "socket"  # neither TLS nor gevent's, which never blocks in the kernel
        self._is_timed_by_kernel = self.can_poll = os.name == "posix" and is_plain
        """Whether it can be polled for a reply: nothing is read ahead, and other greenlets need not run."""
        self.fileno = opened.fileno
        if self._is_timed_by_kernel:
            opened.settimeout(None)
        lifecycle.inherited.add(self)

    def exchange_one(self, payload: bytes, timeout: float, deadline: float) -> Any:
        """Send one command and read its reply, which mostly arrives in one piece."""
        if timeout != self._timeout:
            self._limit(timeout)
        try:
            self._send(payload)
            data = self._recv(CHUNK)
        except BlockingIOError:  # SO_SNDTIMEO or SO_RCVTIMEO is over
            raise TimeoutError from None
        if data:
            self._feed(data)
            if (reply := self._gets()) is not False:
                return reply
        else:
            self._handle_end()
        while True:
            self._limit_until(deadline)
            self._read()
            if (reply := self._gets()) is not False:
                return reply

    def send(self, payload: bytes, timeout: float) -> None:
        """Send a command whose reply is received later: the first half of an exchange."""
        if timeout != self._timeout:
            self._limit(timeout)
        try:
            self._send(payload)
        except BlockingIOError:  # SO_SNDTIMEO is over
            raise TimeoutError from None

    def receive_part(self) -> Any:
        """Receive at least a part of the reply: False until it is complete. Raises TimeoutError."""
        try:
            data = self._recv(CHUNK)
        except BlockingIOError:
            raise TimeoutError from None
        if not data:
            self._handle_end()
        self._feed(data)
        return self._gets()

    async def exchange(self, payload: bytes, count: int, timeout: float) -> list[Any]:
        deadline = self._now() + timeout
        self.send(payload, timeout)
        replies: list[Any] = []
        while True:
            if self._is_gathering():
                await self._readable(self._socket, deadline)
            self._read()
            while (reply := self._gets()) is not False:
                replies.append(reply)
                if len(replies) == count:
                    return replies
            self._limit_until(deadline)

    def _read(self) -> None:
        """Read at least a part of a reply. Raises TimeoutError."""
        try:
            data = self._recv(CHUNK)
        except BlockingIOError:
            raise TimeoutError from None
        if not data:
            self._handle_end()
        self._feed(data)

    @staticmethod
    def _handle_end() -> NoReturn:
        msg = "the server closed the connection"
        raise ConnectionResetError(msg)

    def receive(self, timeout: float) -> list[bytes]:
        if timeout != self._timeout:
            self._limit(timeout)
        self._read()
        messages = []
        while (reply := self._gets()) is not False:
            if (message := published(reply)) is not None:
                messages.append(message)
        return messages

    def ping(self) -> None:
        self._limit(LIVENESS_TIMEOUT)
        self._send(PING)

    def _limit_until(self, deadline: float) -> None:
        """Limit the next recv. Raises TimeoutError after the deadline."""
        timeout = deadline - self._now()
        if timeout <= 0:
            raise TimeoutError
        self._limit(timeout)

    def _limit(self, timeout: float) -> None:
        """Limit each send and recv. The kernel keeps the timeout where it can: Python would poll before every call."""
        self._timeout = timeout
        seconds = max(timeout, 0.001)  # to the kernel, 0 would mean no timeout
        if self._is_timed_by_kernel:
            limit = _TIMEVAL.pack(int(seconds), int(seconds % 1 * 1e6))
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        else:
            self._socket.settimeout(seconds)

    def is_broken(self) -> bool:
        """Return whether the server has closed an idle connection: it has no other reason to send anything."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    def shut_down(self) -> None:
        """Make a read in another thread fail at once."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()

    abandon = close

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
            return _secured(plain, address.tls, address, timeout)
    except BaseException:
        plain.close()
        raise
    return plain


def _secured(plain: socket.socket, tls: ssl.SSLContext, address: Address, timeout: float) -> socket.socket:
    """Do the TLS handshake, and look what the server is if it does not answer."""
    secured = tls.wrap_socket(plain, server_hostname=address.host, do_handshake_on_connect=False)
    try:
        secured.settimeout(min(timeout, HANDSHAKE_PATIENCE))
        try:
            secured.do_handshake()
        except TimeoutError:
            if timeout <= HANDSHAKE_PATIENCE:
                raise
            check_speaks_tls(address)
            secured.settimeout(timeout - HANDSHAKE_PATIENCE)
            secured.do_handshake()
    except BaseException:
        secured.close()
        raise
    return secured


async def connect(runtime: ThreadRuntime, address: Address, timeout: float, *commands: bytes) -> Connection:
    """Open a connection, log in, and send the first commands. Raises StoreError if the server refuses one."""
    deadline = runtime.now() + timeout
    pid = os.getpid()
    opened = _open_socket(address, timeout)
    if os.getpid() != pid:  # this greenlet goes on in a forked child, and the socket is the parent's
        opened.close()
        msg = "the connection was closed"
        raise ConnectionAbortedError(msg)
    connection = Connection(runtime, opened)
    try:
        if first := [*address.greeting(), *commands]:
            check_all(address, await connection.exchange(b"".join(first), len(first), deadline - runtime.now()))
    except BaseException:
        connection.close()
        raise
    return connection


async def subscribe(runtime: ThreadRuntime, address: Address, channel: str, timeout: float) -> Connection:
    """Open a connection that is subscribed to a channel."""
    return await connect(runtime, address, timeout, pack(("SUBSCRIBE", channel)))


class BlockingNode:
    """The connections to one server, one per thread with a request in flight."""

    def __init__(self, runtime: ThreadRuntime, address: Address) -> None:
        self.address = address
        self.is_checked = False
        self._runtime = runtime
        self._gathering = runtime.gathering
        self._pool: Pool[Connection] = Pool(runtime)
        self.give_back = self._pool.give_back
        self.refresh = self._pool.drop
        self.close = self._pool.close

    async def ask(self, payload: bytes, count: int, timeout: float) -> list[Any]:
        connection = None
        try:
            connection = self._pool.take()
            if connection is None:
                connection, timeout = await self._connect(timeout)
            replies = await connection.exchange(payload, count, timeout)
        except BaseException as error:
            self.handle_failure(connection, error)
            if isinstance(error, FAILURES):
                raise unknown_outcome(self.address, error) from error
            raise
        self._pool.give_back(connection)
        return replies

    async def ask_one(self, payload: bytes, timeout: float, now: float) -> Any:
        """Send one command and return its reply. Takes and gives back a connection as the pool does, without a call."""
        connection = None
        pool, deadline = self._pool, now + timeout
        try:
            try:
                connection = pool.idle.pop()
            except IndexError:  # there is none, or other threads were first
                connection, timeout = await self._connect(timeout)
            if now >= connection.idle_since + MAX_UNCHECKED_IDLE and connection.is_broken():
                connection.close()
                connection = pool.take()
            if connection is None:
                connection, timeout = await self._connect(timeout)
            if self._gathering and self._runtime.is_gathering():
                (reply,) = await connection.exchange(payload, 1, timeout)
            else:
                reply = connection.exchange_one(payload, timeout, deadline)
        except BaseException as error:
            self.handle_failure(connection, error)
            raise
        if pool.is_closed:
            connection.close()
        else:
            connection.idle_since = now  # a little early, but without reading the clock: 0.06 µs
            pool.idle.append(connection)
        return reply

    def send(self, payload: bytes, timeout: float) -> Connection | None:
        """Send one command on an idle connection, and return it to receive the reply. None if there is none."""
        pool = self._pool
        try:
            connection = pool.idle.pop()
        except IndexError:
            return None
        try:
            if self._runtime.now() >= connection.idle_since + MAX_UNCHECKED_IDLE and connection.is_broken():
                connection.close()
                return None
            if not connection.can_poll:
                pool.give_back(connection)
                return None
            connection.send(payload, timeout)
        except BaseException as error:
            self.handle_failure(connection, error)
            raise
        return connection

    async def _connect(self, timeout: float) -> tuple[Connection, float]:
        """Open a connection, and return how much of the timeout is left."""
        deadline = self._runtime.now() + timeout
        connection = await connect(self._runtime, self.address, timeout)
        return connection, deadline - self._runtime.now()

    def handle_failure(self, connection: Connection | None, error: BaseException) -> None:
        if connection is not None:
            connection.close()
        if isinstance(error, FAILURES) and not isinstance(error, TimeoutError):
            self._pool.drop()  # what broke this connection has most likely broken the idle ones, too
