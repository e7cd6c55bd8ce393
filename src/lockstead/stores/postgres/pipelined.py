"""PostgreSQL for asyncio: requests of all tasks are pipelined on one connection; another receives notifications."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import psycopg
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGconn, PGresult

from lockstead.errors import StoreError
from lockstead.runtimes.aio import AsyncRuntime
from lockstead.runtimes.threads import ThreadRuntime
from lockstead.stores.postgres import blocking, libpq
from lockstead.stores.postgres.address import Address
from lockstead.stores.postgres.errors import FAILURES, connection_failure, ends_session, server_error
from lockstead.stores.postgres.libpq import ERRORS, Lane, Params, Row, Statement
from lockstead.stores.transport.pipeline import MIN_CONNECT_TIMEOUT, Pipeline, QueuedError, Shared
from lockstead.stores.transport.subscriber import OnMessage

T = TypeVar("T")

PING_TIMEOUT = 60.0
"""Seconds: longer than the subscriber that sends the ping waits before it closes a silent connection."""


class Connection(Pipeline):
    """A session in pipeline mode: requests do not wait for each other's results, and each is its own transaction."""

    _socket = -1
    _close_socket = staticmethod(os.close)  # at the end of an exit, a global is None

    def __init__(self, loop: asyncio.AbstractEventLoop, opened: blocking.Connection) -> None:
        super().__init__(loop)
        self.is_pooled = opened.is_pooled
        self.on_notice: OnMessage = lambda _: None
        self.on_lost: Callable[[], None] = lambda: None
        self.pgconn: PGconn = opened.pgconn
        self._socket = os.dup(self.pgconn.socket)  # libpq may close its own at any time, unknown to the loop
        self._prepared: set[bytes] = set()
        self._preparing: deque[bytes] = deque()
        """For each request in flight, the statement it prepares; empty once the server has prepared it."""
        self._result: PGresult | None = None
        self._is_writing = False
        self.pgconn.nonblocking = 1
        self.pgconn.enter_pipeline_mode()
        loop.add_reader(self._socket, self._read)

    def exchange(self, statement: Statement, params: Params, timeout: float) -> asyncio.Future[list[PGresult]]:
        if self._socket < 0:
            msg = "the connection was closed"
            raise ConnectionResetError(msg)
        preparing = b""
        try:
            if not statement.name or self.is_pooled:
                self.pgconn.send_query_params(statement.text, params)
            else:
                if statement.name not in self._prepared:
                    self.pgconn.send_prepare(statement.name, statement.text)
                    self._prepared.add(statement.name)
                    preparing = statement.name
                self.pgconn.send_query_prepared(statement.name, params)
            self.pgconn.pipeline_sync()
            self._flush()
        except psycopg.OperationalError as error:
            failure = libpq.sending_failure(self.pgconn, error)
            self._handle_loss(failure)
            raise failure from error
        self._preparing.append(preparing)
        return self._enqueue(1, timeout)

    def _flush(self) -> None:
        is_unsent = bool(self.pgconn.flush())
        if is_unsent != self._is_writing:
            self._is_writing = is_unsent
            if is_unsent:
                self._loop.add_writer(self._socket, self._continue_writing)
            else:
                self._loop.remove_writer(self._socket)

    def _continue_writing(self) -> None:
        try:
            self._flush()
        except psycopg.OperationalError as error:
            self._handle_loss(error)

    def _read(self) -> None:
        try:
            self.pgconn.consume_input()
            self._process_results()
        except psycopg.OperationalError as error:
            self._handle_loss(error)
            return
        self.is_good = True
        self.on_notice(None)
        while (notice := self.pgconn.notifies()) is not None:
            self.on_notice(notice.extra)
        if self._is_retired and not self._requests:
            self.close()

    def _process_results(self) -> None:
        while self._requests and not self.pgconn.is_busy():
            result = self.pgconn.get_result()
            if result is None or result.status == ExecStatus.PIPELINE_ABORTED:
                continue
            if result.status == ExecStatus.PIPELINE_SYNC:
                answer, self._result = self._result, None
                self._prepared.discard(self._preparing.popleft())
                self._take_reply(answer)
            else:
                if result.status not in ERRORS:
                    self._preparing[0] = b""
                self._result = result

    def _handle_loss(self, error: Exception) -> None:
        """Close a lost connection, and report the loss."""
        self.close(error)
        self.on_lost()

    def ping(self) -> None:
        with suppress(*FAILURES):
            self.exchange(libpq.EMPTY_QUERY, (), PING_TIMEOUT)

    def abort(self) -> None:
        if self._socket >= 0:
            if not self._loop.is_closed():
                self._loop.remove_reader(self._socket)
                self._loop.remove_writer(self._socket)
            self._close_socket(self._socket)
            self._socket = -1
            self.pgconn.finish()

    def abandon(self) -> None:
        if self._socket >= 0:
            self._close_socket(self._socket)
            self._socket = -1
            libpq.close_socket(self.pgconn)

    def __del__(self) -> None:
        if self._socket >= 0:
            self._close_socket(self._socket)
            self._socket = -1  # an object that is collected with this one may still call close


async def in_thread(loop: asyncio.AbstractEventLoop, work: Callable[[], T], discard: Callable[[T], object]) -> T:
    """Run blocking work in a thread of its own: in a shared pool, connecting would wait for other work.

    A result that no task awaits any more is discarded.
    """
    outcome: asyncio.Future[T] = loop.create_future()

    def succeed(result: T) -> None:
        if outcome.done():
            discard(result)
        else:
            outcome.set_result(result)

    def fail(error: BaseException) -> None:
        if not outcome.done():
            outcome.set_exception(error)

    def run() -> None:
        try:
            result = work()
        except BaseException as error:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(fail, error)
            return
        try:
            loop.call_soon_threadsafe(succeed, result)
        except RuntimeError:
            discard(result)

    threading.Thread(target=run, name="lockstead-connect", daemon=True).start()
    return await outcome


async def connect(runtime: AsyncRuntime, address: Address, timeout: float) -> Connection:
    """Open a session, in a thread: resolving a host's name blocks."""
    loop = runtime.bind()
    opened = await in_thread(loop, lambda: blocking.connect(address, timeout), blocking.Connection.close)
    return Connection(loop, opened)


async def ask_on(
    connection: Connection, address: Address, statement: Statement, params: Params, timeout: float
) -> list[Row]:
    (result,) = await connection.exchange(statement, params, timeout)
    if result.status in ERRORS:
        raise server_error(address, result)
    return libpq.rows(result)


class PipelinedServer:
    """One server for the tasks of one loop, which share one connection for each lane in use."""

    def __init__(self, runtime: AsyncRuntime, address: Address) -> None:
        self.is_pooled = False
        self._address = address
        self._is_closed = False
        self._runtime = runtime
        self._lanes = {lane: Shared(runtime, lambda timeout: connect(runtime, address, timeout)) for lane in Lane}

    async def ask(self, statement: Statement, params: Params, timeout: float, lane: Lane = Lane.COMMON) -> list[Row]:
        try:
            self._runtime.bind()
        except RuntimeError:  # no loop is running: the interpreter exits
            server = blocking.BlockingServer(ThreadRuntime(), self._address)
            return await server.ask(statement, params, timeout)
        shared = self._lanes[lane]
        deadline = self._runtime.now() + timeout
        try:
            if self._is_closed:
                return await self._ask_on_new_connection(statement, params, timeout)
            connection = shared.connection
            if connection is None or not connection.is_good:
                return await self._ask_on_opened(lane, statement, params, deadline)
            self.is_pooled = connection.is_pooled
            return await ask_on(connection, self._address, statement, params, deadline - self._runtime.now())
        except FAILURES as error:
            raise connection_failure(self._address, error) from error
        except StoreError as error:
            if ends_session(error):
                shared.refresh()
            raise

    async def _ask_on_opened(self, lane: Lane, statement: Statement, params: Params, deadline: float) -> list[Row]:
        """Open a lane's connection and run a statement on it, in the time that opening leaves for it.

        Raises QueuedError if that is too short while the server answers on the common connection.
        """
        common = self._lanes[Lane.COMMON].connection
        try:
            connection = await self._open_good(lane, deadline)
            self.is_pooled = connection.is_pooled
            return await ask_on(connection, self._address, statement, params, deadline - self._runtime.now())
        except TimeoutError:
            if common is not None and common.is_good and common.is_answering(MIN_CONNECT_TIMEOUT):
                raise QueuedError from None
            raise

    async def _open_good(self, lane: Lane, deadline: float) -> Connection:
        """Open a lane's connection; once more if another request has ended it before this task could use it."""
        while (left := deadline - self._runtime.now()) > 0:
            connection = await self._open(lane, left)
            if connection.is_good and self._runtime.now() < deadline:
                return connection
        raise TimeoutError

    async def _open(self, lane: Lane, timeout: float) -> Connection:
        """Open a lane's connection. If the server has none left for renewals, they use the common one."""
        common = self._lanes[Lane.COMMON].connection
        try:
            return await self._lanes[lane].open(timeout)
        except StoreError:
            if lane is not Lane.RENEWALS or common is None or not common.is_good:
                raise
            return common

    async def _ask_on_new_connection(self, statement: Statement, params: Params, timeout: float) -> list[Row]:
        """Run a statement on a session of its own: for a release after the store was closed."""
        deadline = self._runtime.now() + timeout
        connection = await connect(self._runtime, self._address, timeout)
        try:
            return await ask_on(connection, self._address, statement, params, deadline - self._runtime.now())
        finally:
            connection.close()

    def close(self) -> None:
        self._is_closed = True
        for shared in self._lanes.values():
            shared.close()
