"""Translate the errors of a server or a connection, and decide whether a retry may help."""

from __future__ import annotations

import re

import psycopg
from psycopg import pq
from psycopg.errors import error_from_result

from lockstead.errors import StoreError
from lockstead.stores.postgres.address import Address
from lockstead.stores.transport.pipeline import CONNECTION_REFUSED, QueuedError

FAILURES = (OSError, psycopg.OperationalError)
"""The errors that end a connection."""

_TRANSIENT = re.compile("08|26000|40|53|54000|57|58|55P03|25006|XX000")
"""Prefixes of SQLSTATEs after which the same request may succeed, on this server or another of the URL."""
_NOT_SESSION_POOLING = (
    "a pooler shares this session with other clients: it does not pool sessions, so remove pooler=session"
)
_ADVICE = {
    "25006": "this is a standby, or read-only by default: name all servers, and add target_session_attrs=read-write",
    "42501": "the role that migrates can grant it: `lockstead migrate --url URL --grant ROLE`",
    "53300": "raise max_connections, or let fewer processes wait",
    "54000": "end the session that listens in a transaction that stays open; the server's log names it",
    "55P03": "a client called a lock function in a transaction that is still open: end that transaction",
    "26000": _NOT_SESSION_POOLING,
    "42P05": _NOT_SESSION_POOLING,
    "3D000": "create the database, or name another one",
}
_UNTRANSLATABLE = "22P05"
_MISSING = {"3F000", "42883", "42P01", "42703"}
_PREFIX = re.compile(r"connection to server (at|on) .*? failed: |^FATAL: *", re.MULTILINE)
WRONG_KIND = "not a PostgreSQL server"
_PERMANENT = re.compile(
    "authentication failed|does not exist|pg_hba|no password|not permitted|permission denied|unrecognized|"
    "certificate verify|does not support SSL|server certificate|invalid response|but received|invalid value|root.crt|"
    + WRONG_KIND
)
_QUOTED = re.compile('"[^"\\n]*"')
"""libpq has no codes for why a connection failed, only texts; quoted names in them are removed before the search."""
_CAUSES = {
    re.compile("too many|connection slots"): _ADVICE["53300"],
    re.compile("database .*does not exist"): _ADVICE["3D000"],
    re.compile("invalid response|but received"): "is this the address of a PostgreSQL server?",
}


def server_error(address: Address, result: pq.abc.PGresult) -> StoreError:
    """Translate an error that the server replied with: the request was not carried out."""
    code = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
    text = _text(result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY))
    advice = address.if_missing if code in _MISSING else _ADVICE.get(code, "")
    if code == _UNTRANSLATABLE:
        is_about_encoding = "encoding" in text
        advice = "use a database whose encoding is UTF8" if is_about_encoding else "a NUL character cannot be stored"
    failure = StoreError(f"{address}: {text}{advice and f' ({advice})'}", transient=_TRANSIENT.match(code) is not None)
    failure.__cause__ = error_from_result(result)
    return failure


def is_lock_timeout(error: StoreError) -> bool:
    """Return whether the request was not carried out because another transaction has a row of it locked."""
    return getattr(error.__cause__, "sqlstate", None) == "55P03"


def is_notify_queue_full(error: StoreError) -> bool:
    """Return whether the request was not carried out because the server's NOTIFY queue is full."""
    return getattr(error.__cause__, "sqlstate", None) == "54000"


def ends_session(error: StoreError) -> bool:
    """Return whether a new connection is needed: the server is shutting down, or has become a standby."""
    code = getattr(error.__cause__, "sqlstate", None) or ""
    return code.startswith(("08", "57", "58", "XX", "25006", "26000"))


def connection_failure(address: Address, error: BaseException) -> StoreError:
    """Translate a failure of the connection: the outcome of the request is unknown."""
    text = str(error).strip()
    if isinstance(error, TimeoutError):
        text = text or "no answer in time"
    is_busy = isinstance(error, QueuedError)
    failure = StoreError(f"{address}: {text or type(error).__name__}", transient=True, overloaded=is_busy)
    failure.__cause__ = error
    return failure


def not_connected(address: Address, message: str) -> StoreError:
    """Translate why no connection could be opened."""
    lines = dict.fromkeys(_PREFIX.sub("", _PREFIX.sub("", message)).strip().splitlines())  # each attempt adds a line
    text = "; ".join(filter(None, map(str.strip, lines)))
    if "Connection refused" in text or "No such file" in text:
        text = CONNECTION_REFUSED
    words = _QUOTED.sub("", message)
    advice = next((advice for cause, advice in _CAUSES.items() if cause.search(words)), "")
    is_permanent = _PERMANENT.search(words) is not None
    failure = StoreError(f"{address}: {text}{advice and f' ({advice})'}", transient=not is_permanent)
    failure.was_sent = False
    failure.__cause__ = psycopg.OperationalError(message)
    return failure


def _text(message: bytes | None) -> str:
    return (message or b"").decode("utf-8", "replace")
