"""Recognize a server that does not answer because the URL says that it is another kind of server."""

from __future__ import annotations

import socket
from contextlib import suppress

HANDSHAKE_PATIENCE = 1.0
"""Seconds after which the server that has not answered a handshake is asked what it is: a server that waits for the
rest of a line, where the handshake has none, never answers."""
REPLY_TIMEOUT = 0.5

_REDIS_REPLIES = (b"+PONG", b"-NOAUTH", b"-DENIED", b"-ERR", b"-LOADING", b"-MISCONF")


class WrongServerError(ConnectionError):
    """The server is of another kind than its URL says: no retry helps."""


def is_plain_redis(host: str, port: int) -> bool:
    """Return whether a Redis server answers there without TLS. Blocks for `REPLY_TIMEOUT` at most."""
    with suppress(OSError), socket.create_connection((host, port), REPLY_TIMEOUT) as connection:
        connection.sendall(b"PING\r\n")
        return connection.recv(64).startswith(_REDIS_REPLIES)
    return False
