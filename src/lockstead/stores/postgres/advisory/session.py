"""Sessions that hold advisory locks: statements go out in order, and an answer that comes late is still taken in.

A time-out must not end such a session, since everything it holds would end with it.
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
from lockstead.stores.postgres.libpq import Statement
from lockstead.stores.postgres.pipelined import in_thread

_PEER_CLOSED = getattr(select, "POLLRDHUP", 0)
"""What tells that the other end is closed without telling that there is something to read."""

MAX_EMPTY_RESULTS = 10
"""How often libpq has no result in a row, between those of two statements, before it knows of none that is awaited: an
interrupt has come before it was sent."""

GLANCE = 0.1
"""How often a greenlet looks whether the other end is closed: what gevent waits for does not tell."""

_KEEPALIVES = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 20_000}
"""So that either end notices within half a minute that the other has vanished."""

_PREPARE_SESSION = Statement(
    b"SELECT pg_catalog.pg_backend_pid(), pg_catalog.pg_is_in_recovery(),"
    b" (SELECT pg_catalog.bool_or(pg_catalog.has_function_privilege(oid, 'EXECUTE')) FROM pg_catalog.pg_proc"
    b" WHERE pronamespace OPERATOR(pg_catalog.=) 'pg_catalog'::pg_catalog.regnamespace"
    b" AND proname OPERATOR(pg_catalog.=) 'pg_logical_emit_message'"
    b" AND proargtypes[2] OPERATOR(pg_catalog.=) 'pg_catalog.text'::pg_catalog.regtype),"
    b" pg_catalog.count(pg_catalog.set_config(name, value, false)) FROM (VALUES"
    b" ('tcp_keepalives_idle', '10'), ('tcp_keepalives_interval', '5'), ('tcp_keepalives_count', '3'),"
    b" ('tcp_user_timeout', '20000'), ('idle_session_timeout', '0'), ('statement_timeout', '0'),"
    b" ('lock_timeout', '0'), ('transaction_timeout', '0'), ('default_transaction_isolation', 'read committed'))"
    b" AS wanted(name, value) WHERE pg_catalog.current_setting(name, true) IS NOT NULL"
)
_FENCES = (
    "fences are drawn by a function that this role may not call: "
    "GRANT EXECUTE ON FUNCTION pg_logical_emit_message(boolean, text, text) TO it (on PostgreSQL 17 and later with a "
    "fourth argument, boolean)"
)
_DETECT_DEAD_CLIENTS = Statement(b"SET client_connection_check_interval = '2s'")
"""So that whoever dies waiting does not stay in the server's queue. Not every system's server can do that."""


class Reply:
    """What a statement is answered with: a result, or nothing if the session ended first."""

    __slots__ = ("is_over", "preparing", "result", "waiters")

    def __init__(self) -> None:
        self.is_over = False
        self.preparing = ""
        """What is prepared with it, until that is done."""
        self.result: PGresult | None = None
        self.waiters: list[asyncio.Future[None]] = []

    def settle(self, result: PGresult | None) -> None:
        self.result = result
        self.is_over = True
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)


class Session:
    """What both drivers do with a session. `taken` is the business of whoever uses it."""

    def __init__(self, connection: PGconn, pid: int, on_lost: Callable[[Session], None]) -> None:
        self.pid = pid
        self.is_lost = False
        self._is_reported = False
        self.is_closed = False
        """We have given it up ourselves."""
        self.is_overdue = False
        """An answer is overdue, and nothing was heard since."""
        self.is_dedicated = False
        """It is for one lock at a time."""
        self.taken: dict[Any, Any] = {}
        self.on_end: Callable[[], None] = lambda: None
        """Called when the session is over for whatever reason."""
        self.descriptor = connection.socket
        self._mutex: AbstractContextManager[Any] = nullcontext()
        self._connection: PGconn | None = connection
        self._on_lost = on_lost
        self._owed: deque[Reply] = deque()
        self._result: PGresult | None = None
        self._prepared: dict[str, bytes] = {}
        self._last_name = 0
        self._is_writing = False
        connection.nonblocking = 1
        connection.enter_pipeline_mode()

    def send(self, text: bytes) -> Reply:
        """Send a statement without waiting for anything. Raises ConnectionResetError if the session has ended."""
        return self._send(lambda connection, _: connection.send_query_params(text, ()))

    def execute(self, text: str, params: Sequence[bytes], comment: str) -> Reply:
        """Send a statement that is planned only once, and an empty one behind it, for its comment to be seen if any."""

        def put(connection: PGconn, reply: Reply) -> None:
            name = self._prepared.get(text)
            if name is None:
                self._last_name += 1
                name = self._prepared[text] = b"lockstead_%d" % self._last_name
                reply.preparing = text
                connection.send_prepare(name, text.encode())
            connection.send_query_prepared(name, params)
            if comment:
                connection.send_prepare(b"", comment.encode())

        return self._send(put)

    def _send(self, put: Callable[[PGconn, Reply], None]) -> Reply:
        reply = Reply()
        with self._mutex:
            if self._connection is None or self.is_lost:
                msg = "the session has ended"
                raise ConnectionResetError(msg)
            try:
                self._owed.append(reply)
                put(self._connection, reply)
                self._connection.pipeline_sync()
                self._flush()
            except BaseException:  # an interrupt, too, may have come in the middle
                self._end()
                raise
        return reply

    def is_idle(self) -> bool:
        """Tell whether nothing is taken on it, and no answer awaited."""
        return not self.taken and not self._owed

    async def arrives(self, reply: Reply, timeout: float) -> bool:
        """Wait until a reply is over, be it because the session is, or the time is (False)."""
        raise NotImplementedError

    async def answer(self, reply: Reply, timeout: float) -> PGresult:
        """Wait for a result, be it an error. Raises TimeoutError, or ConnectionResetError if the session has ended."""
        if not await self.arrives(reply, timeout):
            self.is_overdue = True
            raise TimeoutError
        if reply.result is None:
            msg = "the session has ended"
            raise ConnectionResetError(msg)
        return reply.result

    def read_available(self) -> None:
        """Take in what has arrived."""
        raise NotImplementedError

    def end(self) -> None:
        """Take note that the session is over."""
        with self._mutex:
            self._end()

    def close(self) -> None:
        """Give the session up, and with it everything it holds, without a word to whoever watches."""
        self.is_closed = True
        self._on_lost = lambda _: None
        self.end()

    def abandon(self) -> None:
        """Let go of it in a forked child, without a word to the server, which serves the parent."""
        if self._connection is not None:
            libpq.close_socket(self._connection)
        self.is_lost = self._is_reported = True
        self._connection = None

    def _flush(self) -> None:
        assert self._connection is not None
        self._is_writing = bool(self._connection.flush())

    def _take_in(self) -> None:
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
        while self._owed and not connection.is_busy():
            result = connection.get_result()
            nothing = nothing + 1 if result is None else 0
            if result is None:
                if connection.status == ConnStatus.BAD or nothing > MAX_EMPTY_RESULTS:
                    self._end()
            elif result.status == ExecStatus.PIPELINE_SYNC:
                answer, self._result = self._result, None
                reply = self._owed.popleft()
                self._prepared.pop(reply.preparing, None)  # it could not be
                reply.settle(answer)
            elif result.status == ExecStatus.COMMAND_OK:
                self._owed[0].preparing = ""
            elif result.status != ExecStatus.PIPELINE_ABORTED:
                self._result = result

    def _end(self) -> None:
        """End it. Safe to repeat, where an interrupt has come in the middle."""
        self.is_lost = True
        self._dispose()
        while self._owed:
            self._owed.popleft().settle(None)
        if not self._is_reported:
            self._is_reported = True
            self.on_end()
            self._on_lost(self)

    def _dispose(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.finish()


class InterruptSafeLock:
    """A lock whose owner is known, so that a thread interrupted while entering can leave it in any case."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.is_ours: Callable[[], bool] = self._lock._is_owned  # type: ignore[attr-defined]  # noqa: SLF001

    def enter(self, timeout: float) -> bool:
        """Wait for it to be free, and say whether it was in time. Not to be entered twice."""
        return self._lock.acquire(timeout=max(timeout, 0.0))

    def leave(self) -> None:
        """Free it, if it is ours."""
        if self.is_ours():
            self._lock.release()


class BlockingSession(Session):
    """For threads. Of those who wait for a reply, one reads for all."""

    def __init__(self, connection: PGconn, pid: int, on_lost: Callable[[Session], None]) -> None:
        super().__init__(connection, pid, on_lost)
        self._mutex = threading.Lock()
        self._read_lock = InterruptSafeLock()
        self._poll = select.poll()
        self._poll.register(self.descriptor, select.POLLIN)

    async def arrives(self, reply: Reply, timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        try:
            in_time = True
            while in_time and not reply.is_over and self._read_lock.enter(deadline - time.monotonic()):
                while not reply.is_over:
                    in_time = self._await_input(max(deadline - time.monotonic(), 0.0))
                    if not in_time:
                        break
                    self._take_in()
                self._release_read_lock()
        except BaseException:
            self._release_read_lock()
            raise
        return reply.is_over

    def read_available(self) -> None:
        try:
            if self._read_lock.enter(0.0):  # else another thread is reading
                self._take_in()
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
        """Let another thread read. Safe to repeat."""
        self._read_lock.leave()
        if self.is_lost:
            with self._mutex:
                self._dispose()

    def _dispose(self) -> None:
        """Close the socket, but not while somebody waits for it: its number may at once be another's."""
        if self._connection is None:
            return
        if not self._read_lock.is_ours() and self._read_lock.enter(0.0):
            super()._dispose()
            self._read_lock.leave()
        else:
            # libpq tells its own socket only while it is open: the number may be another's by now.
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
        loop.add_reader(self.descriptor, self._take_in)

    async def arrives(self, reply: Reply, timeout: float) -> bool:
        if reply.is_over or timeout <= 0:
            return reply.is_over
        waiter = self._loop.create_future()
        reply.waiters.append(waiter)
        alarm = self._loop.call_later(timeout, _wake, waiter)
        try:
            await waiter
        finally:
            alarm.cancel()
            reply.waiters.remove(waiter)
        return reply.is_over

    def read_available(self) -> None:
        """Do nothing: the loop takes in whatever arrives."""

    def _flush(self) -> None:
        was_writing = self._is_writing
        super()._flush()
        if self._is_writing and not was_writing:
            self._loop.add_writer(self.descriptor, self._take_in)
        elif was_writing and not self._is_writing:
            self._loop.remove_writer(self.descriptor)

    def _dispose(self) -> None:
        if not self._loop.is_closed():
            self._loop.remove_reader(self.descriptor)
            self._loop.remove_writer(self.descriptor)
        super()._dispose()


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


Find = Callable[[], Session | None]
Opened = Callable[[Session], None]


class WorkerRuntime(Protocol):
    """Opens sessions as threads, or as the tasks of a loop, use them."""

    def is_running(self) -> bool:
        """Tell whether anything may be awaited."""
        ...

    async def open(self, timeout: float) -> Session:
        """Open a session. Raises StoreError, TimeoutError, OSError and psycopg's errors."""
        ...

    async def once(self, find: Find, opened: Opened, timeout: float) -> Session:
        """Find a session, or open one for all who ask meanwhile, even if whoever asked first has gone."""
        ...

    def forked(self) -> None:
        """Start afresh, in a forked child."""
        ...


class BlockingSessionFactory:
    def __init__(self, runtime: ThreadRuntime, address: Address, on_lost: Callable[[Session], None]) -> None:
        self._opening = PendingConnections(address)
        self._on_lost = on_lost
        self._reset()

    def _reset(self) -> None:
        self._open_lock = InterruptSafeLock()
        self._watcher = Watcher()
        self._finalizer = finalize(self, self._watcher.stop)

    def forked(self) -> None:
        self._opening.forked()
        self._finalizer.detach()  # the parent's watcher may have been in the middle of something
        self._watcher.abandon()
        self._reset()

    def is_running(self) -> bool:
        return True

    async def open(self, timeout: float) -> Session:
        connection, pid = self._opening.open(timeout)
        session = BlockingSession(connection, pid, self._on_lost)
        try:
            session.on_end = self._watcher.ring
            self._watcher.add(session)
        except BaseException:
            session.close()
            raise
        return session

    async def once(self, find: Find, opened: Opened, timeout: float) -> Session:
        deadline = time.monotonic() + timeout
        session: Session | None = None
        is_new = False
        try:
            if not self._open_lock.enter(timeout):
                raise TimeoutError  # noqa: TRY301 (within the block that leaves the door)
            session = find()
            if session is None:
                session = await self.open(max(deadline - time.monotonic(), 0.0))
                is_new = True
                opened(session)
            self._open_lock.leave()
        except BaseException:
            self._open_lock.leave()
            if is_new and session is not None:
                session.close()
            raise
        return session


class LoopSessionFactory:
    def __init__(self, runtime: AsyncRuntime, address: Address, on_lost: Callable[[Session], None]) -> None:
        self._runtime = runtime
        self._opening = PendingConnections(address)
        self._on_lost = on_lost
        self._task: asyncio.Task[Session] | None = None

    def forked(self) -> None:
        self._opening.forked()
        self._task = None

    def is_running(self) -> bool:
        try:
            self._runtime.bind()
        except RuntimeError:
            return False
        return True

    async def open(self, timeout: float) -> Session:
        loop = self._runtime.bind()
        connection, pid = await in_thread(loop, lambda: self._opening.open(timeout), lambda opened: opened[0].finish())
        return LoopSession(loop, connection, pid, self._on_lost)

    async def once(self, find: Find, opened: Opened, timeout: float) -> Session:
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
    """Connections that are just being made: a child that is forked meanwhile must not keep their sockets open."""

    def __init__(self, address: Address) -> None:
        self._address = with_keepalives(address)
        self._begun: set[PGconn] = set()

    def open(self, timeout: float) -> tuple[PGconn, int]:
        begun: list[PGconn] = []

        def on_start(connection: PGconn) -> None:
            begun.append(connection)
            self._begun.add(connection)

        try:
            return open_connection(self._address, timeout, on_start)
        finally:
            self._begun.difference_update(begun)

    def forked(self) -> None:
        begun, self._begun = self._begun, set()
        for connection in begun:
            libpq.close_socket(connection)


def open_connection(address: Address, timeout: float, begun: Callable[[PGconn], object]) -> tuple[PGconn, int]:
    """Open a session on which locks can be held, and tell the process behind it."""
    deadline = time.monotonic() + timeout
    connection = blocking.connect(address, timeout, begun)
    if connection.is_pooled:
        connection.close()
        msg = (
            f"{address}: a pooler stands before the server, and one that pools transactions gives an advisory lock to "
            "several at once: connect to the server itself; or add pooler=session if it pools sessions; or use the "
            "lease table, postgresql://…, which works through it"
        )
        raise StoreError(msg)
    ((pid, is_standby, draws_fences, _),) = blocking.ask_on(
        connection, address, _PREPARE_SESSION, (), deadline - time.monotonic()
    )
    if is_standby == b"t":
        connection.close()
        msg = (
            f"{address}: this is a standby, whose advisory locks exclude nobody elsewhere: name all servers, and add "
            "target_session_attrs=read-write"
        )
        raise StoreError(msg, transient=True)
    if draws_fences != b"t":
        connection.close()
        raise StoreError(f"{address}: {_FENCES}")
    try:
        connection.exchange(_DETECT_DEAD_CLIENTS, (), deadline - time.monotonic())
    except BaseException:
        connection.close()
        raise
    assert pid is not None
    return connection.pgconn, int(pid)


def with_keepalives(address: Address) -> Address:
    """Have the kernel notice a server that has vanished, unless the user has asked for something else."""
    return replace(address, settings=_KEEPALIVES | dict(address.settings))


class Watcher:
    """One thread that notices when a session ends while nobody waits for an answer on it.

    Where the system does not tell that apart from something to read, the renewals notice it.
    """

    def __init__(self) -> None:
        self._mutex = threading.RLock()  # a finalizer may stop it in the middle of anything
        self._sessions: list[Session] = []
        self._bell: socket.socket | None = None
        self._wake_receiver: socket.socket | None = None

    def add(self, session: Session) -> None:
        if not _PEER_CLOSED:
            return
        with self._mutex:
            self._sessions = [*(known for known in self._sessions if not known.is_lost), session]
            if self._bell is not None:
                self._ring()
                return
            try:
                self._bell, self._wake_receiver = socket.socketpair()
                self._bell.setblocking(False)
                hears = self._wake_receiver
                threading.Thread(target=self._watch, args=(hears,), name="lockstead-watch", daemon=True).start()
            except RuntimeError:  # no more threads to be had: the renewals notice
                self.abandon()
            except BaseException:  # an interrupt: if the thread has begun, it finds its other end closed
                if self._bell is not None:
                    self._bell.close()
                self._bell = self._wake_receiver = None
                raise

    def ring(self) -> None:
        """Have the thread look again at what there is to watch."""
        with self._mutex:
            self._ring()

    def stop(self) -> None:
        with self._mutex:
            self._sessions = []
            self._ring()

    def abandon(self) -> None:
        """Let go of the descriptors, for instance in a forked child, where no thread has come along."""
        for end in (self._bell, self._wake_receiver):
            if end is not None:
                end.close()
        self._bell = self._wake_receiver = None

    def _ring(self) -> None:
        if self._bell is not None:
            with suppress(BlockingIOError):
                self._bell.send(b"!")

    def _watch(self, hears: socket.socket) -> None:
        is_green = select.poll is not native_poll()
        while self._wake_receiver is hears:  # else this greenlet goes on in a forked child, which has let go of it
            with self._mutex:
                watched = {session.descriptor: session for session in self._sessions if not session.is_lost}
                if hears is not self._wake_receiver:
                    hears.close()
                    return
                if not watched:
                    self.abandon()
                    return
            poll = native_poll()()
            poll.register(hears, select.POLLIN)
            for descriptor in watched:
                poll.register(descriptor, _PEER_CLOSED)
            ready = poll.poll(0 if is_green else None)
            if not ready:
                time.sleep(GLANCE)
            for descriptor, _ in ready:
                if descriptor == hears.fileno():
                    hears.recv(4096)
                else:
                    watched[descriptor].end()
