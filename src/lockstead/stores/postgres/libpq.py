"""What both runtimes do with libpq, the client library that psycopg includes."""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from math import ceil, inf
from typing import Any, NamedTuple

import psycopg
from psycopg import pq
from psycopg.conninfo import make_conninfo
from psycopg.pq.abc import PGconn, PGresult

from lockstead.core import lifecycle
from lockstead.errors import StoreError
from lockstead.stores.postgres.address import LISTS, Address
from lockstead.stores.postgres.errors import WRONG_KIND, not_connected
from lockstead.stores.statements import load
from lockstead.stores.transport.recognition import HANDSHAKE_PATIENCE, is_plain_redis

Params = Sequence[bytes | None]
Row = list[bytes | None]

UNRESPONSIVE_PENALTY = 10.0
"""Seconds for which a server that did not answer is tried after the others: it would delay each new connection."""

ERRORS = {pq.ExecStatus.FATAL_ERROR, pq.ExecStatus.BAD_RESPONSE}


class Statement(NamedTuple):
    """The text of a statement. One with a name is prepared once on each connection."""

    text: bytes
    name: bytes = b""


class Lane(Enum):
    """Which requests share connections, so that a request that waits delays only those of its lane."""

    COMMON = "requests that wait for a locked row for a moment at most"
    RENEWALS = "requests that never wait for a locked row"
    BLOCKED = "requests that found a row locked, perhaps by a transaction that stays open"


EMPTY_QUERY = Statement(b"SELECT")
DETECT_POOLER = Statement(load("lockstead.stores.postgres")["detect_pooler"].encode())
"""Returns whether there is a pooler before the server; if not, sets what the session needs."""

OnStart = Callable[[PGconn], object]
"""Called with each connection that is being opened, before it is known whether it succeeds."""


def connect(address: Address, timeout: float, on_start: OnStart = lambda _: None) -> PGconn:
    """Connect and log in to the first host that accepts it; none may use up the time of the others.

    Blocks. Raises StoreError if none accepts it or no name resolves, and TimeoutError if the only one does not answer.
    """
    deadline = time.monotonic() + timeout
    unresponsive = address.unresponsive_until
    failures: list[str] = []
    attempts = sorted(
        _attempts(address.settings, failures), key=lambda one: unresponsive.get(_endpoint(one), 0.0) > time.monotonic()
    )
    wanted = int(address.settings.get("connect_timeout") or 0)
    limit = wanted if wanted > 0 else inf
    for number, attempt in enumerate(attempts):
        try:
            left = (deadline - time.monotonic()) / (len(attempts) - number)
            return _connect(address, attempt, min(left, limit), on_start)
        except TimeoutError:
            if len(attempts) == 1 and not failures:
                raise
            unresponsive[_endpoint(attempt)] = time.monotonic() + UNRESPONSIVE_PENALTY
            failures.append("no answer in time")
        except StoreError as error:
            if (len(attempts) == 1 and not failures) or not error.transient:
                raise
            failures.append(str(error.__cause__))
    raise not_connected(address, "\n".join(failures))


def _endpoint(attempt: Mapping[str, Any]) -> str:
    return f"{attempt.get('hostaddr') or attempt.get('host')}:{attempt.get('port')}"


def _attempts(settings: Mapping[str, Any], failures: list[str]) -> Iterator[Mapping[str, Any]]:
    """Yield the settings for each host and address. Names are resolved here: in libpq that would block all threads."""
    lists = {key: str(settings[key]).split(",") for key in LISTS if settings.get(key)}
    count = max((len(values) for values in lists.values()), default=1)
    for number in range(count):
        one = {key: values[number if len(values) > 1 else 0] for key, values in lists.items()}
        host, port = one.get("host", ""), one.get("port") or "5432"
        if not host or host.startswith(("/", "@")) or one.get("hostaddr"):
            yield {**settings, **one}
            continue
        try:
            found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
        except OSError as error:
            failures.append(f"{host}: {error.strerror or error}")
            continue
        for *_, sockaddr in found:
            yield {**settings, **one, "hostaddr": sockaddr[0]}


class _Starting:
    """A connection that is being established, for a forked child to abandon it."""

    def __init__(self, connection: PGconn) -> None:
        self._connection = connection
        lifecycle.inherited.add(self)

    def abandon(self) -> None:
        close_socket(self._connection)


def _connect(address: Address, settings: Mapping[str, Any], timeout: float, on_start: OnStart) -> PGconn:
    look_at = time.monotonic() + HANDSHAKE_PATIENCE
    deadline = time.monotonic() + timeout
    connection = pq.PGconn.connect_start(make_conninfo("", **settings).encode())
    _starting = _Starting(connection)  # until this returns
    on_start(connection)
    while True:
        if connection.status == pq.ConnStatus.BAD:
            raise not_connected(address, connection.get_error_message())
        state = connection.connect_poll()
        if state == pq.PollingStatus.OK:
            return connection
        if state == pq.PollingStatus.FAILED:
            raise not_connected(address, connection.get_error_message())
        event = select.POLLIN if state == pq.PollingStatus.READING else select.POLLOUT
        try:
            await_socket(connection, min(deadline, look_at), event)
        except TimeoutError:
            if time.monotonic() >= deadline:
                raise
            look_at = inf
            _check_not_redis(address, settings)
            await_socket(connection, deadline, event)


def _check_not_redis(address: Address, settings: Mapping[str, Any]) -> None:
    """Raise StoreError if a server that does not answer is Redis, which waits for the end of a line."""
    host, port = settings.get("hostaddr"), settings.get("port") or 5432
    if host and is_plain_redis(host, int(port)):
        raise not_connected(address, f"{WRONG_KIND}: this is a Redis server, write redis://")


def await_socket(connection: PGconn, deadline: float, event: int = select.POLLIN) -> None:
    """Wait until the socket can be read from, or written to. Raises TimeoutError."""
    poll = select.poll()
    poll.register(connection.socket, event)
    left = deadline - time.monotonic()
    if left <= 0 or not poll.poll(ceil(left * 1000)):
        raise TimeoutError


def close_socket(connection: PGconn) -> None:
    """Close a connection's socket in a forked child, since psycopg finishes one only in the process that opened it.

    /dev/null takes its place: libpq does not know of this, and must not use what is opened next under the same number.
    libpq returns the socket only while it is open. One that libpq has closed by itself needs nothing.
    """
    with suppress(psycopg.Error, OSError), open(os.devnull, "r+b", buffering=0) as nothing:
        os.dup2(nothing.fileno(), connection.socket, inheritable=False)


def sending_failure(connection: PGconn, error: psycopg.OperationalError) -> ConnectionResetError:
    """Explain why a pipelined request could not be sent, in the words of libpq.

    For a connection that the server has closed, psycopg reports that it is not in pipeline mode.
    """
    lines = connection.get_error_message().strip().splitlines()
    return ConnectionResetError(lines[0] if lines else str(error))


def rows(result: PGresult) -> list[Row]:
    columns = range(result.nfields)
    return [[result.get_value(row, column) for column in columns] for row in range(result.ntuples)]


def array(values: Sequence[str]) -> bytes:
    """Encode values as a text[] literal."""
    quoted = (value.replace("\\", "\\\\").replace('"', '\\"') for value in values)
    return ("{" + ",".join(f'"{value}"' for value in quoted) + "}").encode()
