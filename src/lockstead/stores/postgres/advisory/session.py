"""PostgreSQL sessions that hold advisory locks.

Statements are sent in order, and a reply that arrives after its timeout is still processed. A timeout must not end
such a session: every lock it holds would end with it.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from math import ceil
from typing import Any, Protocol
from weakref import finalize

import psycopg
from psycopg.pq import ConnStatus, ExecStatus
from psycopg.pq.abc import PGconn, PGresult

from lockstead.errors import StoreError
from lockstead.runtimes.aio import AsyncRuntime
from lockstead.runtimes.threads import ThreadRuntime, native_poll
from lockstead.stores.postgres import blocking, libpq
from lockstead.stores.postgres.address import Address
from lockstead.stores.postgres.advisory.statements import SQL
from lockstead.stores.postgres.libpq import Statement
from lockstead.stores.postgres.pipelined import in_thread

_PEER_CLOSED = getattr(select, "POLLRDHUP", 0)
"""The poll event of a connection that the server has closed. Data to read does not set it. 0 where poll lacks it."""

MAX_EMPTY_RESULTS = 10
"""libpq returns NULL between the results of two statements. More in a row than this mean that it expects no result: an
interrupt came after the reply was registered, before its statement was sent."""

HANGUP_POLL_INTERVAL = 0.1
"""Seconds between a greenlet's checks for closed connections: what gevent polls for does not include that event."""

_KEEPALIVES = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 20_000}
"""Settings of libpq, in seconds and for tcp_user_timeout in milliseconds: the client detects a server that vanished
within half a minute. `prepare_session` sets the same on the server's side."""

_PREPARE_SESSION = Statement(SQL["prepare_session"].encode())
_NO_FENCES = (
    "this role may not call the function that draws fences: "
    "GRANT EXECUTE ON FUNCTION pg_logical_emit_message(boolean, text, text) TO it (on PostgreSQL 17 and later with a "
    "fourth argument, boolean)"
)
_DETECT_DEAD_CLIENTS = Statement(SQL["detect_dead_clients"].encode())


class Reply:
    """The reply to one statement: a result, or None if the session ended first."""

    __slots__ = ("is_done", "preparing", "result", "waiters")

    def __init__(self) -> None:
        self.is_done = False
        self.preparing = ""
        """The text that is prepared with this statement; empty once the server has prepared it."""
        self.result: PGresult | None = None
        self.waiters: list[asyncio.Future[None]] = []

    def complete(self, result: PGresult | None) -> None:
        self.result = result
        self.is_done = True
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)


class Session:
    """What both runtimes do with a session. `locks` belongs to the store, which keeps its requests in it."""

    def __init__(self, connection: PGconn, pid: int, on_lost: Callable[[Session], None]) -> None:
        self.pid = pid
        self.is_lost = False
        self._is_reported = False
        self.is_closed = False
        """This client closed it, on purpose."""
        self.is_overdue = False
        """A reply has timed out, and nothing has been received since."""
        self.is_dedicated = False
        """It carries one lock at a time: one that is waited for, or that the common session carries already."""
        self.locks: dict[Any, Any] = {}
        self.on_end: Callable[[], None] = lambda: None
        """Called once when the session ends, for whatever reason."""
        self.descriptor = connection.socket
        self._mutex: AbstractContextManager[Any] = nullcontext()
        self._connection: PGconn | None = connection
        self._on_lost = on_lost
        self._in_flight: deque[Reply] = deque()
        self._result: PGresult | None = None
        self._prepared: dict[str, bytes] = {}
        self._last_name = 0
        self._is_writing = False
        connection.nonblocking = 1
        connection.enter_pipeline_mode()

    def send(self, text: bytes) -> Reply:
        """Send a statement without waiting for its reply. Raises ConnectionResetError if the session has ended."""
        return self._send(lambda connection, _: connection.send_query_params(text, ()))

    def execute(self, text: str, params: Sequence[bytes], comment: str) -> Reply:
        """Send a statement that each session prepares once.

        A comment is sent behind it as an empty statement, so that pg_stat_activity shows it.
        """

        def write(connection: PGconn, reply: Reply) -> None:
            name = self._prepared.get(text)
            if name is None:
                self._last_name += 1
                name = self._prepared[text] = b"lockstead_%d" % self._last_name
                reply.preparing = text
                connection.send_prepare(name, text.encode())
            connection.send_query_prepared(name, params)
            if comment:
                connection.send_prepare(b"", comment.encode())

        return self._send(write)

    def _send(self, write: Callable[[PGconn, Reply], None]) -> Reply:
        reply = Reply()
        with self._mutex:
            if self._connection is None or self.is_lost:
                msg = "the session has ended"
                raise ConnectionResetError(msg)
            try:
                self._in_flight.append(reply)
                write(self._connection, reply)
                self._connection.pipeline_sync()
                self._flush()
            except psycopg.OperationalError as error:
                failure = libpq.sending_failure(self._connection, error)
                self._end()
                raise failure from error
            except BaseException:  # also an interrupt, which may have left half a statement
                self._end()
                raise
        return reply

    def is_idle(self) -> bool:
        """Return whether no request uses it, and no reply is outstanding."""
        return not self.locks and not self._in_flight

    async def wait_for(self, reply: Reply, timeout: float) -> bool:
        """Wait until a reply is done, which it also is when the session ends. False if the time is over first."""
        raise NotImplementedError

    async def result_of(self, reply: Reply, timeout: float) -> PGresult:
        """Wait for a result, maybe an error. Raises TimeoutError, or ConnectionResetError if the session has ended."""
        if not await self.wait_for(reply, timeout):
            self.is_overdue = True
            raise TimeoutError
        if reply.result is None:
            msg = "the session has ended"
            raise ConnectionResetError(msg)
        return reply.result

    def read_available(self) -> None:
        """Process what has arrived, without waiting."""
        raise NotImplementedError

    def end(self) -> None:
        """End the session, because its connection is lost."""
        with self._mutex:
            self._end()

    def close(self) -> None:
        """Close the session, and with it everything it holds, without calling `on_lost`."""
        self.is_closed = True
        self._on_lost = lambda _: None
        self.end()

    def abandon(self) -> None:
        """Close the socket in a forked child, without sending anything: the server's session is the parent's."""
        if self._connection is not None:
            libpq.close_socket(self._connection)
        self.is_lost = self._is_reported = True
        self._connection = None

    def _flush(self) -> None:
        assert self._connection is not None
        self._is_writing = bool(self._connection.flush())

    def _read(self) -> None:
        with self._mutex:
            if self._connection is None or self.is_lost:
                return
            try:
                self._connection.consume_input()
                if self._is_writing:
                    self._flush()
                self._process_results(self._connection)
            except psycopg.Error:
                self._end()
            except BaseException:
                self._end()
                raise

    def _process_results(self, connection: PGconn) -> None:
        self.is_overdue = False
        nothing = 0
        while self._in_flight and not connection.is_busy():
            result = connection.get_result()
            nothing = nothing + 1 if result is None else 0
            if result is None:
                if connection.status == ConnStatus.BAD or nothing > MAX_EMPTY_RESULTS:
                    self._end()
            elif result.status == ExecStatus.PIPELINE_SYNC:
                answer, self._result = self._result, None
                reply = self._in_flight.popleft()
                self._prepared.pop(reply.preparing, None)  # the server could not prepare it
                reply.complete(answer)
            elif result.status == ExecStatus.COMMAND_OK:
                self._in_flight[0].preparing = ""
            elif result.status != ExecStatus.PIPELINE_ABORTED:
                self._result = result

    def _end(self) -> None:
        """End the session. Safe to repeat, for an interrupt may have stopped an earlier call halfway."""
        self.is_lost = True
        self._dispose()
        while self._in_flight:
            self._in_flight.popleft().complete(None)
        if not self._is_reported:
            self._is_reported = True
            self.on_end()
            self._on_lost(self)

    def _dispose(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.finish()


class InterruptSafeLock:
    """A lock that knows its owner, so that a thread interrupted while acquiring can release it if it got it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.is_owned: Callable[[], bool] = self._lock._is_owned  # type: ignore[attr-defined]  # noqa: SLF001 (no other way)

    def acquire(self, timeout: float) -> bool:
        """Wait until it is free, and say whether it was acquired in time. Not to be acquired twice by one thread."""
        return self._lock.acquire(timeout=max(timeout, 0.0))

    def release(self) -> None:
        """Release it if this thread has it. Safe to repeat."""
        if self.is_owned():
            self._lock.release()


class BlockingSession(Session):
    """For threads. Of the threads that wait for a reply, one reads for all."""

    def __init__(self, connection: PGconn, pid: int, on_lost: Callable[[Session], None]) -> None:
        super().__init__(connection, pid, on_lost)
        self._mutex = threading.Lock()
        self._read_lock = InterruptSafeLock()
        self._poll = select.poll()
        self._poll.register(self.descriptor, select.POLLIN)

    async def wait_for(self, reply: Reply, timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        try:
            in_time = True
            while in_time and not reply.is_done and self._read_lock.acquire(deadline - time.monotonic()):
                while not reply.is_done:
                    in_time = self._await_input(max(deadline - time.monotonic(), 0.0))
                    if not in_time:
                        break
                    self._read()
                self._release_read_lock()
        except BaseException:
            self._release_read_lock()
            raise
        return reply.is_done

    def read_available(self) -> None:
        try:
            if self._read_lock.acquire(0.0):  # else another thread is reading
                self._read()
                self._release_read_lock()
        except BaseException:
            self._release_read_lock()
            raise

    def _await_input(self, timeout: float) -> bool:
        poll = self._poll
        if self._is_writing:
            poll = select.poll()
            poll.register(self.descriptor, select.POLLIN | select.POLLOUT)
        return bool(poll.poll(ceil(timeout * 1000)))

    def _release_read_lock(self) -> None:
        """Let another thread read, and close a lost connection. Safe to repeat."""
        self._read_lock.release()
        if self.is_lost:
            with self._mutex:
                self._dispose()

    def _dispose(self) -> None:
        """Close the socket, but not while a thread polls it: the descriptor may be reused at once."""
        if self._connection is None:
            return
        if not self._read_lock.is_owned() and self._read_lock.acquire(0.0):
            super()._dispose()
            self._read_lock.release()
        else:
            # Ask libpq for the socket, which it returns only while it is open: `descriptor` may be reused by now.
            with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(self._connection.socket)) as copy:
                copy.shutdown(socket.SHUT_RDWR)


class LoopSession(Session):
    """For asyncio."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        connection: PGconn,
        pid: int,
        on_lost: Callable[[Session], None],
    ) -> None:
        super().__init__(connection, pid, on_lost)
        self._loop = loop
        loop.add_reader(self.descriptor, self._read)

    async def wait_for(self, reply: Reply, timeout: float) -> bool:
        if reply.is_done or timeout <= 0:
            return reply.is_done
        waiter = self._loop.create_future()
        reply.waiters.append(waiter)
        alarm = self._loop.call_later(timeout, _resolve, waiter)
        try:
            await waiter
        finally:
            alarm.cancel()
            reply.waiters.remove(waiter)
        return reply.is_done

    def read_available(self) -> None:
        """Do nothing: the loop reads whatever arrives."""

    def _flush(self) -> None:
        was_writing = self._is_writing
        super()._flush()
        if self._is_writing and not was_writing:
            self._loop.add_writer(self.descriptor, self._read)
        elif was_writing and not self._is_writing:
            self._loop.remove_writer(self.descriptor)

    def _dispose(self) -> None:
        if not self._loop.is_closed():
            self._loop.remove_reader(self.descriptor)
            self._loop.remove_writer(self.descriptor)
        super()._dispose()


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


Find = Callable[[], Session | None]
Opened = Callable[[Session], None]


class SessionFactory(Protocol):
    """Opens sessions for one runtime: for threads, or for the tasks of a loop."""

    def is_running(self) -> bool:
        """Return whether replies can be awaited: not when the interpreter exits and no loop runs."""
        ...

    async def open(self, timeout: float) -> Session:
        """Open a session. Raises StoreError, TimeoutError, OSError and psycopg's errors."""
        ...

    async def open_shared(self, find: Find, opened: Opened, timeout: float) -> Session:
        """Find a session, or open one for all concurrent callers, even if the first of them is cancelled."""
        ...

    def forked(self) -> None:
        """Drop the parent's connections and threads, in a forked child."""
        ...


class BlockingSessionFactory:
    def __init__(self, runtime: ThreadRuntime, address: Address, on_lost: Callable[[Session], None]) -> None:
        self._pending = PendingConnections(address)
        self._on_lost = on_lost
        self._reset()

    def _reset(self) -> None:
        self._open_lock = InterruptSafeLock()
        self._watcher = Watcher()
        self._finalizer = finalize(self, self._watcher.stop)

    def forked(self) -> None:
        self._pending.forked()
        self._finalizer.detach()  # it would wait for a mutex that the parent's thread may have held
        self._watcher.close_sockets()
        self._reset()

    def is_running(self) -> bool:
        return True

    async def open(self, timeout: float) -> Session:
        connection, pid = self._pending.open(timeout)
        session = BlockingSession(connection, pid, self._on_lost)
        try:
            session.on_end = self._watcher.wake
            self._watcher.add(session)
        except BaseException:
            session.close()
            raise
        return session

    async def open_shared(self, find: Find, opened: Opened, timeout: float) -> Session:
        deadline = time.monotonic() + timeout
        session: Session | None = None
        is_new = False
        try:
            if not self._open_lock.acquire(timeout):
                raise TimeoutError  # noqa: TRY301 (within the block that releases the lock)
            session = find()
            if session is None:
                session = await self.open(max(deadline - time.monotonic(), 0.0))
                is_new = True
                opened(session)
            self._open_lock.release()
        except BaseException:
            self._open_lock.release()
            if is_new and session is not None:
                session.close()
            raise
        return session


class LoopSessionFactory:
    def __init__(self, runtime: AsyncRuntime, address: Address, on_lost: Callable[[Session], None]) -> None:
        self._runtime = runtime
        self._pending = PendingConnections(address)
        self._on_lost = on_lost
        self._task: asyncio.Task[Session] | None = None

    def forked(self) -> None:
        self._pending.forked()
        self._task = None

    def is_running(self) -> bool:
        try:
            self._runtime.bind()
        except RuntimeError:
            return False
        return True

    async def open(self, timeout: float) -> Session:
        loop = self._runtime.bind()
        connection, pid = await in_thread(loop, lambda: self._pending.open(timeout), lambda opened: opened[0].finish())
        return LoopSession(loop, connection, pid, self._on_lost)

    async def open_shared(self, find: Find, opened: Opened, timeout: float) -> Session:
        if (found := find()) is not None:
            return found
        opening = self._task
        if opening is None:
            opening = self._task = self._runtime.bind().create_task(self.open(timeout), name="lockstead-connect")
            opening.add_done_callback(lambda task: self._opened(task, opened))
        await asyncio.wait([opening], timeout=timeout)
        if not opening.done():
            raise TimeoutError
        if opening.cancelled():
            msg = "the connection was closed"
            raise ConnectionAbortedError(msg)
        return opening.result()

    def _opened(self, task: asyncio.Task[Session], opened: Opened) -> None:
        self._task = None
        if not task.cancelled() and task.exception() is None:
            opened(task.result())


class PendingConnections:
    """Connections that are being opened: a child that is forked meanwhile must close its copies of their sockets."""

    def __init__(self, address: Address) -> None:
        self._address = with_keepalives(address)
        self._started: set[PGconn] = set()

    def open(self, timeout: float) -> tuple[PGconn, int]:
        started: list[PGconn] = []

        def on_start(connection: PGconn) -> None:
            started.append(connection)
            self._started.add(connection)

        try:
            return open_connection(self._address, timeout, on_start)
        finally:
            self._started.difference_update(started)

    def forked(self) -> None:
        started, self._started = self._started, set()
        for connection in started:
            libpq.close_socket(connection)


def open_connection(address: Address, timeout: float, on_start: Callable[[PGconn], object]) -> tuple[PGconn, int]:
    """Open a session that can hold locks, and return it with the pid of its server process.

    Raises StoreError if it goes through a pooler or to a standby, or may not draw fences.
    """
    deadline = time.monotonic() + timeout
    connection = blocking.connect(address, timeout, on_start)
    if connection.is_pooled:
        connection.close()
        msg = (
            f"{address}: there is a pooler before the server, and one that pools transactions grants an advisory lock "
            "to several clients at once: connect to the server itself; or add pooler=session if it pools sessions; or "
            "use the lease table, postgresql://…, which works through it"
        )
        raise StoreError(msg)
    ((pid, is_standby, draws_fences, _),) = blocking.ask_on(
        connection, address, _PREPARE_SESSION, (), deadline - time.monotonic()
    )
    if is_standby == b"t":
        connection.close()
        msg = (
            f"{address}: this is a standby, whose advisory locks exclude no client of the primary: name all servers, "
            "and add target_session_attrs=read-write"
        )
        raise StoreError(msg, transient=True)
    if draws_fences != b"t":
        connection.close()
        raise StoreError(f"{address}: {_NO_FENCES}")
    try:
        connection.exchange(_DETECT_DEAD_CLIENTS, (), deadline - time.monotonic())
    except BaseException:
        connection.close()
        raise
    assert pid is not None
    return connection.pgconn, int(pid)


def with_keepalives(address: Address) -> Address:
    """Have the kernel detect a server that has vanished. What the user has set comes first."""
    return replace(address, settings=_KEEPALIVES | dict(address.settings))


class Watcher:
    """One thread that detects the end of a session while no reply is awaited on it.

    Where poll has no event for that, renewals detect it.
    """

    def __init__(self) -> None:
        self._mutex = threading.RLock()  # a finalizer may call stop() in a thread that has it
        self._sessions: list[Session] = []
        self._wake_sender: socket.socket | None = None
        self._wake_receiver: socket.socket | None = None

    def add(self, session: Session) -> None:
        if not _PEER_CLOSED:
            return
        with self._mutex:
            self._sessions = [*(known for known in self._sessions if not known.is_lost), session]
            if self._wake_sender is not None:
                self._wake()
                return
            try:
                self._wake_sender, self._wake_receiver = socket.socketpair()
                self._wake_sender.setblocking(False)
                receiver = self._wake_receiver
                threading.Thread(target=self._watch, args=(receiver,), name="lockstead-watch", daemon=True).start()
            except RuntimeError:  # the system has no more threads: renewals detect it
                self.close_sockets()
            except BaseException:  # an interrupt: a thread that has started finds its sender closed, and ends
                if self._wake_sender is not None:
                    self._wake_sender.close()
                self._wake_sender = self._wake_receiver = None
                raise

    def wake(self) -> None:
        """Have the thread read the list of sessions again."""
        with self._mutex:
            self._wake()

    def stop(self) -> None:
        with self._mutex:
            self._sessions = []
            self._wake()

    def close_sockets(self) -> None:
        """Close the sockets: when there is nothing to watch, or in a forked child, which has no such thread."""
        for each in (self._wake_sender, self._wake_receiver):
            if each is not None:
                each.close()
        self._wake_sender = self._wake_receiver = None

    def _wake(self) -> None:
        if self._wake_sender is not None:
            with suppress(BlockingIOError):
                self._wake_sender.send(b"!")

    def _watch(self, receiver: socket.socket) -> None:
        is_green = select.poll is not native_poll()
        while self._wake_receiver is receiver:  # else this greenlet runs in a forked child, which has closed it
            with self._mutex:
                watched = {session.descriptor: session for session in self._sessions if not session.is_lost}
                if receiver is not self._wake_receiver:
                    receiver.close()
                    return
                if not watched:
                    self.close_sockets()
                    return
            poll = native_poll()()
            poll.register(receiver, select.POLLIN)
            for descriptor in watched:
                poll.register(descriptor, _PEER_CLOSED)
            ready = poll.poll(0 if is_green else None)
            if not ready:
                time.sleep(HANGUP_POLL_INTERVAL)
            for descriptor, _ in ready:
                if descriptor == receiver.fileno():
                    receiver.recv(4096)
                else:
                    watched[descriptor].end()
