"""PostgreSQL for threads: a connection for each that is asking, and one that hears for all."""

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

from lockstead.runtimes.threads import ThreadRuntime
from lockstead.stores.postgres import libpq
from lockstead.stores.postgres.address import Address
from lockstead.stores.postgres.errors import FAILURES, ends_session, refused, unanswered
from lockstead.stores.postgres.libpq import ERRORS, Begun, Lane, Params, Row, Statement
from lockstead.stores.postgres.slots import Slots
from lockstead.stores.transport.pool import Pool

MOST = 8
"""How many threads ask at the same time: a server has few connections, each dear, and is no quicker with more."""
MAX_BLOCKED_CONNECTIONS = 2
PATIENCE = 0.5
"""How long a thread waits for another's session before it opens one more."""


class Connection:
    """A session. Not for two threads at once, and not to be used again after an exception."""

    def __init__(self, connection: PGconn) -> None:
        self.idle_since = 0.0
        self.pgconn = connection
        self.pgconn.nonblocking = 1  # or a request that the network does not take would know no time-out
        self.is_pooled = False
        self._prepared: set[bytes] = set()
        self._poll = select.poll()
        self._poll.register(connection.socket, select.POLLIN)

    def exchange(self, statement: Statement, params: Params, timeout: float) -> PGresult:
        """Run one statement and return its result, be it an error. Raises TimeoutError and psycopg's errors."""
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

    def hear(self, timeout: float) -> list[bytes]:
        self._await_input(time.monotonic() + timeout)
        with _as_connection_reset():
            self.pgconn.consume_input()
            while not self.pgconn.is_busy() and self.pgconn.get_result() is not None:
                pass  # the answer to a probe
        return list(iter(self._next_notice, None))

    def _next_notice(self) -> bytes | None:
        notice = self.pgconn.notifies()
        return None if notice is None else notice.extra

    def probe(self) -> None:
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
    """Tell an ear, which knows nothing of psycopg, that a connection has ended."""
    try:
        yield
    except psycopg.OperationalError as error:
        raise ConnectionResetError(str(error)) from error


def connect(address: Address, timeout: float, begun: Begun = lambda _: None) -> Connection:
    """Open a session, and find out whether it is one of our own. Raises StoreError, TimeoutError, psycopg's errors."""
    deadline = time.monotonic() + timeout
    connection = Connection(libpq.connect(address, timeout, begun))
    greeting = (b"%d" % connection.pgconn.backend_pid,)
    ((is_pooled, _),) = ask_on(connection, address, libpq.DETECT_POOLER, greeting, deadline - time.monotonic())
    connection.is_pooled = is_pooled == b"t" and not address.is_session_pooled
    return connection


def ask_on(connection: Connection, address: Address, statement: Statement, params: Params, timeout: float) -> list[Row]:
    """Run a statement on a session; close it whatever goes wrong, an error the server answers with included."""
    result = exchange_on(connection, statement, params, timeout)
    if result.status in ERRORS:
        connection.close()
        raise refused(address, result)
    return libpq.rows(result)


def exchange_on(connection: Connection, statement: Statement, params: Params, timeout: float) -> PGresult:
    """Run a statement on a session that is closed unless there is an answer."""
    try:
        return connection.exchange(statement, params, timeout)
    except BaseException:
        connection.close()
        raise


class BlockingNode:
    """The sessions with one server, one for each thread that is asking."""

    def __init__(self, runtime: ThreadRuntime, address: Address) -> None:
        self._address = address
        self._pool: Pool[Connection] = Pool(runtime, MOST)
        self._slots = {
            Lane.COMMON: Slots(MOST),
            Lane.RENEWALS: Slots(MOST),
            Lane.BLOCKED: Slots(MAX_BLOCKED_CONNECTIONS),
        }
        self.is_pooled = False
        self.close = self._pool.close

    async def ask(self, statement: Statement, params: Params, timeout: float, lane: Lane = Lane.COMMON) -> list[Row]:
        deadline = time.monotonic() + timeout
        turn = self._slots[lane].take(min(timeout / 4, PATIENCE))
        try:
            turn.begin()
            rows = self._ask(statement, params, deadline)
            turn.end()
        except BaseException:
            turn.end()
            raise
        return rows

    def _ask(self, statement: Statement, params: Params, deadline: float) -> list[Row]:
        try:
            connection = self._pool.take() or connect(self._address, deadline - time.monotonic())
            self.is_pooled = connection.is_pooled
            result = exchange_on(connection, statement, params, deadline - time.monotonic())
        except FAILURES as error:
            if not isinstance(error, TimeoutError):
                self._pool.drop()  # what befell this session has mostly befallen them all
            raise unanswered(self._address, error) from error
        if result.status not in ERRORS:
            self._pool.give_back(connection)
            return libpq.rows(result)
        failure = refused(self._address, result)
        if ends_session(failure):
            connection.close()
        else:
            self._pool.give_back(connection)
        raise failure
