"""What both drivers do with libpq, the client library that psycopg brings along."""

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

from lockstead.errors import StoreError
from lockstead.stores.postgres.address import LISTS, Address
from lockstead.stores.postgres.errors import not_connected

Params = Sequence[bytes | None]
Row = list[bytes | None]

SILENCE = 10.0
"""How long a server that gave no answer is tried after the others."""

ERRORS = {pq.ExecStatus.FATAL_ERROR, pq.ExecStatus.BAD_RESPONSE}


class Statement(NamedTuple):
    """A statement by its text. One with a name is prepared once on each connection."""

    text: bytes
    name: bytes = b""


class Lane(Enum):
    """Which requests share a connection, so that none is held up by what it has nothing to do with."""

    COMMON = "those that wait for a name at most for a moment"
    RENEWALS = "those that wait for nobody"
    BLOCKED = "those that found a name in use, in somebody's open transaction perhaps"


EMPTY_QUERY = Statement(b"SELECT")
DETECT_POOLER = Statement(
    b"SELECT pid OPERATOR(pg_catalog.<>) $1::int, CASE WHEN pid OPERATOR(pg_catalog.=) $1::int THEN pg_catalog.concat("
    b"pg_catalog.set_config('idle_session_timeout', '0', false),"
    b" pg_catalog.set_config('extra_float_digits', '1', false),"
    b" pg_catalog.set_config('default_transaction_isolation', 'read committed', false))"
    b" END FROM pg_catalog.pg_backend_pid() AS pid"
)
"""Tells whether a pooler stands in between: it makes up the process number it greets its clients with. If none does,
the session is ours, and what the server's administrator prefers for others is set aside."""


Begun = Callable[[PGconn], object]
"""Called with what may become a connection."""


def connect(address: Address, timeout: float, begun: Begun = lambda _: None) -> PGconn:
    """Connect and log in to the first of the hosts that will have us; none may take the others' time.

    Blocks. Raises StoreError if none will have us, OSError if their names lead nowhere, and TimeoutError.
    """
    deadline = time.monotonic() + timeout
    silent = address.unresponsive_until
    failures: list[str] = []
    attempts = sorted(
        _attempts(address.settings, failures), key=lambda one: silent.get(_endpoint(one), 0.0) > time.monotonic()
    )
    wanted = int(address.settings.get("connect_timeout") or 0)
    limit = wanted if wanted > 0 else inf
    for number, attempt in enumerate(attempts):
        try:
            left = (deadline - time.monotonic()) / (len(attempts) - number)
            return _connect(address, attempt, min(left, limit), begun)
        except TimeoutError:
            if len(attempts) == 1 and not failures:
                raise
            silent[_endpoint(attempt)] = time.monotonic() + SILENCE
            failures.append("no answer in time")
        except StoreError as error:
            if (len(attempts) == 1 and not failures) or not error.transient:
                raise
            failures.append(str(error.__cause__))
    raise not_connected(address, "\n".join(failures))


def _endpoint(attempt: Mapping[str, Any]) -> str:
    return f"{attempt.get('hostaddr') or attempt.get('host')}:{attempt.get('port')}"


def _attempts(settings: Mapping[str, Any], failures: list[str]) -> Iterator[Mapping[str, Any]]:
    """Give the settings for each host by itself, and look up what its name leads to: libpq would stop all threads."""
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
        for *_, place in found:
            yield {**settings, **one, "hostaddr": place[0]}


def _connect(address: Address, settings: Mapping[str, Any], timeout: float, begun: Begun) -> PGconn:
    deadline = time.monotonic() + timeout
    connection = pq.PGconn.connect_start(make_conninfo("", **settings).encode())
    begun(connection)
    while True:
        if connection.status == pq.ConnStatus.BAD:
            raise not_connected(address, connection.get_error_message())
        state = connection.connect_poll()
        if state == pq.PollingStatus.OK:
            return connection
        if state == pq.PollingStatus.FAILED:
            raise not_connected(address, connection.get_error_message())
        await_socket(connection, deadline, select.POLLIN if state == pq.PollingStatus.READING else select.POLLOUT)


def await_socket(connection: PGconn, deadline: float, event: int = select.POLLIN) -> None:
    """Wait until the socket can be read from, or written to. Raises TimeoutError."""
    poll = select.poll()
    poll.register(connection.socket, event)
    left = deadline - time.monotonic()
    if left <= 0 or not poll.poll(ceil(left * 1000)):
        raise TimeoutError


def close_socket(connection: PGconn) -> None:
    """Let go of a connection in a forked child, since psycopg finishes one only in the process that made it.

    libpq tells the socket only while it is open. One that it closed, unknown to us, has nothing to let go of.
    """
    with suppress(psycopg.Error, OSError):
        os.close(connection.socket)


def rows(result: PGresult) -> list[Row]:
    columns = range(result.nfields)
    return [[result.get_value(row, column) for column in columns] for row in range(result.ntuples)]


def array(values: Sequence[str]) -> bytes:
    """Write a text[]."""
    quoted = (value.replace("\\", "\\\\").replace('"', '\\"') for value in values)
    return ("{" + ",".join(f'"{value}"' for value in quoted) + "}").encode()
