"""What both drivers do with libpq, the client library that psycopg brings along."""

from __future__ import annotations

import select
import time
from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

from psycopg import pq
from psycopg.pq.abc import PGconn, PGresult

from leasehold.errors import StoreError
from leasehold.stores.postgres._address import Address
from leasehold.stores.postgres._errors import not_connected

Params = Sequence[bytes | None]
Row = list[bytes | None]

SILENCE = 10.0
"""How long a server that gave no answer is tried after the others."""

ERRORS = {pq.ExecStatus.FATAL_ERROR, pq.ExecStatus.BAD_RESPONSE}


class Statement(NamedTuple):
    """A statement by its text. One with a name is prepared once on each connection."""

    text: bytes
    name: bytes = b""


WHO = Statement(b"SELECT pg_backend_pid()")


def connect(address: Address, timeout: float) -> PGconn:
    """Connect to the first server that lets us, and log in. Blocks.

    Raises StoreError if no server will have us, and TimeoutError.
    """
    deadline = time.monotonic() + timeout
    if not address.each:
        return _connect(address, address.conninfo, deadline)
    failures = []
    silent = address.silent_until
    servers = sorted(address.each, key=lambda server: silent.get(server, 0.0) > time.monotonic())
    for number, server in enumerate(servers):
        now = time.monotonic()
        try:
            return _connect(address, server, now + (deadline - now) / (len(servers) - number))
        except TimeoutError:
            silent[server] = time.monotonic() + SILENCE
            failures.append("no answer in time")
        except StoreError as error:
            if not error.transient:
                raise
            failures.append(str(error.__cause__))
    raise not_connected(address, "\n".join(failures))


def _connect(address: Address, conninfo: bytes, deadline: float) -> PGconn:
    connection = pq.PGconn.connect_start(conninfo)
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


def rows(result: PGresult) -> list[Row]:
    columns = range(result.nfields)
    return [[result.get_value(row, column) for column in columns] for row in range(result.ntuples)]


def is_pooled(connection: PGconn, backend_pid: bytes | None) -> bool:
    """Tell whether a pooler stands in between: it makes up the process number it greets its clients with."""
    return backend_pid is None or connection.backend_pid != int(backend_pid)


def array(values: Sequence[str]) -> bytes:
    """Write a text[]."""
    quoted = (value.replace("\\", "\\\\").replace('"', '\\"') for value in values)
    return ("{" + ",".join(f'"{value}"' for value in quoted) + "}").encode()
