"""What both drivers do with libpq, the client library that psycopg brings along."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Sequence
from math import ceil
from typing import NamedTuple

from psycopg import pq
from psycopg.pq.abc import PGconn, PGresult

from leasehold.stores.postgres._address import Address
from leasehold.stores.postgres._errors import not_connected

Params = Sequence[bytes | None]
Row = list[bytes | None]

ERRORS = {pq.ExecStatus.FATAL_ERROR, pq.ExecStatus.BAD_RESPONSE}


class Statement(NamedTuple):
    """A statement by its text. One with a name is prepared once on each connection."""

    text: bytes
    name: bytes = b""


NOTHING = Statement(b"SELECT")
GREETING = Statement(
    b"SELECT pid <> $1::int, CASE pid WHEN $1::int THEN set_config('idle_session_timeout', '0', false)"
    b" || set_config('default_transaction_isolation', 'read committed', false) END FROM pg_backend_pid() AS pid"
)
"""Tells whether a pooler stands in between: it makes up the process number it greets its clients with. If none does,
the session is ours, and what the server's administrator prefers for others is set aside."""


def connect(address: Address, timeout: float, begun: Callable[[PGconn], object] | None = None) -> PGconn:
    """Connect and log in. Blocks; raises StoreError if the server will not have us, and TimeoutError.

    `begun` is called with what may become a connection.
    """
    deadline = time.monotonic() + timeout
    connection = pq.PGconn.connect_start(address.conninfo)
    if begun is not None:
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


def rows(result: PGresult) -> list[Row]:
    columns = range(result.nfields)
    return [[result.get_value(row, column) for column in columns] for row in range(result.ntuples)]


def array(values: Sequence[str]) -> bytes:
    """Write a text[]."""
    quoted = (value.replace("\\", "\\\\").replace('"', '\\"') for value in values)
    return ("{" + ",".join(f'"{value}"' for value in quoted) + "}").encode()
