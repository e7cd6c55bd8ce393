"""PostgreSQL for threads: one connection for each concurrent request, and one that receives notifications for all."""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from math import ceil

import psycopg
from psycopg.pq.abc import PGconn, PGresult

from lockstead.core import lifecycle
from lockstead.runtimes.threads import ThreadRuntime
from lockstead.stores.postgres import libpq
from lockstead.stores.postgres.address import Address
from lockstead.stores.postgres.errors import FAILURES, connection_failure, ends_session, server_error
from lockstead.stores.postgres.libpq import ERRORS, Lane, OnStart, Params, Row, Statement
from lockstead.stores.postgres.slots import Slots
from lockstead.stores.transport.pool import Pool

MAX_CONNECTIONS = 8
"""How many requests of a lane run at a time: a server has few connections, each expensive, and more are no faster."""
MAX_BLOCKED_CONNECTIONS = 2
"""How many requests that wait for a locked row run at a time: all they do is wait."""
SLOT_TIMEOUT = 0.5
"""Seconds that a request waits for a slot before it opens one more connection: those before it may be stuck."""


class Connection:
    """A session. Not for two threads at a time, and not to be used again after an exception."""

    def __init__(self, connection: PGconn) -> None:
        self.idle_since = 0.0
        self.pgconn = connection
        self.pgconn.nonblocking = 1  # else a request that the network does not accept would have no timeout
        self.is_pooled = False
        self._prepared: set[bytes] = set()
        self._poll = select.poll()
        self._poll.register(connection.socket, select.POLLIN)
        lifecycle.inherited.add(self)

    def exchange(self, statement: Statement, params: Params, timeout: float) -> PGresult:
        """Run one statement and return its result, which may be an error. Raises TimeoutError and psycopg's errors."""
        deadline = time.monotonic() + timeout
        if not statement.name or self.is_pooled:
            self.pgconn.send_query_params(statement.text, params)
        else:
            if statement.name not in self._prepared:
                self.pgconn.send_prepare(statement.name, statement.text)
                result = self._result(deadline)
                if result.status in ERRORS:
                    return result
                self._prepared.add(statement.name)
            self.pgconn.send_query_prepared(statement.name, params)
        return self._result(deadline)

    def _result(self, deadline: float) -> PGresult:
        while self.pgconn.flush():
            libpq.await_socket(self.pgconn, deadline, select.POLLIN | select.POLLOUT)
            self.pgconn.consume_input()
        answer: PGresult | None = None
        while True:
            while self.pgconn.is_busy():
                self._await_input(deadline)
                self.pgconn.consume_input()
            result = self.pgconn.get_result()
            if result is None:
                if answer is None:
                    msg = "the server closed the connection"
                    raise psycopg.OperationalError(msg)
                return answer
            answer = result

    def _await_input(self, deadline: float) -> None:
        left = deadline - time.monotonic()
        if left <= 0 or not self._poll.poll(ceil(left * 1000)):
            raise TimeoutError

    def receive(self, timeout: float) -> list[bytes]:
        self._await_input(time.monotonic() + timeout)
        with _as_connection_reset():
            self.pgconn.consume_input()
            while not self.pgconn.is_busy() and self.pgconn.get_result() is not None:
                pass  # the reply to a ping
        return list(iter(self._next_notice, None))

    def _next_notice(self) -> bytes | None:
        notice = self.pgconn.notifies()
        return None if notice is None else notice.extra

    def ping(self) -> None:
        with _as_connection_reset():
            self.pgconn.send_query_params(libpq.EMPTY_QUERY.text, ())
            self.pgconn.flush()

    def is_broken(self) -> bool:
        return bool(self._poll.poll(0))

    def shut_down(self) -> None:
        with suppress(OSError), socket.socket(fileno=os.dup(self.pgconn.socket)) as copy:
            copy.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.pgconn.finish()

    def abandon(self) -> None:
        libpq.close_socket(self.pgconn)


@contextmanager
def _as_connection_reset() -> Iterator[None]:
    """Raise a lost connection as subscribers expect it, which do not know psycopg's errors."""
    try:
        yield
    except psycopg.OperationalError as error:
        raise ConnectionResetError(str(error)) from error


def connect(address: Address, timeout: float, on_start: OnStart = lambda _: None) -> Connection:
    """Open a session, and find out whether a pooler shares it. Raises StoreError, TimeoutError and psycopg's errors."""
    deadline = time.monotonic() + timeout
    connection = Connection(libpq.connect(address, timeout, on_start))
    announced_pid = (b"%d" % connection.pgconn.backend_pid,)
    ((is_pooled, _),) = ask_on(connection, address, libpq.DETECT_POOLER, announced_pid, deadline - time.monotonic())
    connection.is_pooled = is_pooled == b"t" and not address.is_session_pooled
    return connection


def ask_on(connection: Connection, address: Address, statement: Statement, params: Params, timeout: float) -> list[Row]:
    """Run a statement on a session; close it on any failure, also if the server replies with an error."""
    result = exchange_on(connection, statement, params, timeout)
    if result.status in ERRORS:
        connection.close()
        raise server_error(address, result)
    return libpq.rows(result)


def exchange_on(connection: Connection, statement: Statement, params: Params, timeout: float) -> PGresult:
    """Run a statement on a session; close it unless there is a reply."""
    try:
        return connection.exchange(statement, params, timeout)
    except BaseException:
        connection.close()
        raise


class BlockingServer:
    """The sessions with one server, one for each concurrent request."""

    def __init__(self, runtime: ThreadRuntime, address: Address) -> None:
        self._address = address
        self._pool: Pool[Connection] = Pool(runtime, MAX_CONNECTIONS)
        self._slots = {
            Lane.COMMON: Slots(MAX_CONNECTIONS),
            Lane.RENEWALS: Slots(MAX_CONNECTIONS),
            Lane.BLOCKED: Slots(MAX_BLOCKED_CONNECTIONS),
        }
        self.is_pooled = False
        self.close = self._pool.close

    async def ask(self, statement: Statement, params: Params, timeout: float, lane: Lane = Lane.COMMON) -> list[Row]:
        deadline = time.monotonic() + timeout
        slot = self._slots[lane].slot(min(timeout / 4, SLOT_TIMEOUT))
        try:
            slot.acquire()
            rows = self._ask(statement, params, deadline)
            slot.release()
        except BaseException:
            slot.release()
            raise
        return rows

    def _ask(self, statement: Statement, params: Params, deadline: float) -> list[Row]:
        try:
            connection = self._pool.take() or connect(self._address, deadline - time.monotonic())
            self.is_pooled = connection.is_pooled
            result = exchange_on(connection, statement, params, deadline - time.monotonic())
        except FAILURES as error:
            if not isinstance(error, TimeoutError):
                self._pool.drop()  # what ended this session has mostly ended them all
            raise connection_failure(self._address, error) from error
        if result.status not in ERRORS:
            self._pool.give_back(connection)
            return libpq.rows(result)
        failure = server_error(self._address, result)
        if ends_session(failure):
            connection.close()
        else:
            self._pool.give_back(connection)
        raise failure
