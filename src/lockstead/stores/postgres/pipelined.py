"""PostgreSQL for asyncio: one connection on which everybody's requests follow each other, and one that hears."""

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
from lockstead.stores.postgres.errors import FAILURES, ends_session, refused, unanswered
from lockstead.stores.postgres.libpq import ERRORS, Lane, Params, Row, Statement
from lockstead.stores.transport.pipeline import MIN_CONNECT_TIMEOUT, Pipeline, QueuedError, Shared
from lockstead.stores.transport.subscriber import OnMessage

T = TypeVar("T")


class Connection(Pipeline):
    """A session in pipeline mode: requests do not wait for each other's results, and each is a transaction."""

    _socket = -1

    def __init__(self, loop: asyncio.AbstractEventLoop, opened: blocking.Connection) -> None:
        super().__init__(loop)
        self.is_pooled = opened.is_pooled
        self.on_notice: OnMessage = lambda _: None
        self.on_lost: Callable[[], None] = lambda: None
        self.pgconn: PGconn = opened.pgconn
        self._socket = os.dup(self.pgconn.socket)  # libpq closes its own when it pleases, unknown to the loop
        self._prepared: set[bytes] = set()
        self._preparing: deque[bytes] = deque()
        """For each request that is not answered yet, what it prepares, until that is done."""
        self._result: PGresult | None = None
        self._is_writing = False
        self.pgconn.nonblocking = 1
        self.pgconn.enter_pipeline_mode()
        loop.add_reader(self._socket, self._take_in)

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
            self._lose(error)
            raise
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
            self._lose(error)

    def _take_in(self) -> None:
        try:
            self.pgconn.consume_input()
            self._process_results()
        except psycopg.OperationalError as error:
            self._lose(error)
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

    def _lose(self, error: Exception) -> None:
        """Notice that the connection is gone."""
        self.close(error)
        self.on_lost()

    def probe(self) -> None:
        with suppress(*FAILURES):
            self.exchange(libpq.EMPTY_QUERY, (), 60.0)

    def abort(self) -> None:
        if self._socket >= 0:
            if not self._loop.is_closed():
                self._loop.remove_reader(self._socket)
                self._loop.remove_writer(self._socket)
            os.close(self._socket)
            self._socket = -1
            self.pgconn.finish()

    def abandon(self) -> None:
        if self._socket >= 0:
            os.close(self._socket)
            self._socket = -1
            libpq.close_socket(self.pgconn)

    def __del__(self) -> None:
        if self._socket >= 0:
            os.close(self._socket)
            self._socket = -1  # what is collected with it may still close it


async def in_thread(loop: asyncio.AbstractEventLoop, work: Callable[[], T], discard: Callable[[T], object]) -> T:
    """Do what blocks, in a thread of its own: to connect must not wait until somebody else's work is done.

    A result that nobody waits for any more is discarded.
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
    """Open a session. To look up a host's name blocks."""
    loop = runtime.bind()
    opened = await in_thread(loop, lambda: blocking.connect(address, timeout), blocking.Connection.close)
    return Connection(loop, opened)


async def ask_on(
    connection: Connection, address: Address, statement: Statement, params: Params, timeout: float
) -> list[Row]:
    (result,) = await connection.exchange(statement, params, timeout)
    if result.status in ERRORS:
        raise refused(address, result)
    return libpq.rows(result)


class PipelinedNode:
    """One server as the tasks of one loop see it: they share one connection for each lane that is used."""

    def __init__(self, runtime: AsyncRuntime, address: Address) -> None:
        self.is_pooled = False
        self._address = address
        self._is_closed = False
        self._runtime = runtime
        self._lanes = {lane: Shared(runtime, lambda timeout: connect(runtime, address, timeout)) for lane in Lane}

    async def ask(self, statement: Statement, params: Params, timeout: float, lane: Lane = Lane.COMMON) -> list[Row]:
        try:
            self._runtime.bind()
        except RuntimeError:  # no loop runs: the interpreter exits
            node = blocking.BlockingNode(ThreadRuntime(), self._address)
            return await node.ask(statement, params, timeout)
        shared = self._lanes[lane]
        deadline = self._runtime.now() + timeout
        try:
            if self._is_closed:
                return await self._ask_alone(statement, params, timeout)
            connection = shared.connection
            if connection is None or not connection.is_good:
                connection = await self._open(lane, timeout)
            self.is_pooled = connection.is_pooled
            return await ask_on(connection, self._address, statement, params, deadline - self._runtime.now())
        except FAILURES as error:
            raise unanswered(self._address, error) from error
        except StoreError as error:
            if ends_session(error):
                shared.refresh()
            raise

    async def _open(self, lane: Lane, timeout: float) -> Connection:
        """Open a lane; where the server has no connection left for what waits for nobody, the common one will do."""
        common = self._lanes[Lane.COMMON].connection
        try:
            return await self._lanes[lane].open(timeout)
        except StoreError:
            if lane is not Lane.RENEWALS or common is None or not common.is_good:
                raise
            return common
        except TimeoutError:
            if common is not None and common.is_answering(MIN_CONNECT_TIMEOUT):
                raise QueuedError from None
            raise

    async def _ask_alone(self, statement: Statement, params: Params, timeout: float) -> list[Row]:
        """Ask on a session that is closed again: for whoever has yet to leave when everything is closed."""
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
