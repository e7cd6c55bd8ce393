"""What is said to the server about advisory locks, and what it shows of them.

Everything is named with its schema, operators too, so that what is planted in a schema of the search_path does not run.

The last statement of a session begins with a comment that names what it holds, so that pg_stat_activity tells people.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import islice
from typing import NamedTuple
from urllib.parse import quote, unquote

from lockstead.core.model import Session as Client
from lockstead.errors import InvalidInputError
from lockstead.stores.postgres.key import Key, advisory_key
from lockstead.stores.postgres.libpq import Row

MOST = 20
"""Locks that are tried to be put into a comment: hardly more could fit."""
COMMENT = 900
"""Bytes of a comment: the server shows the first 1024 of a statement unless told otherwise."""

_FENCE = "pg_catalog.pg_logical_emit_message(false, 'lockstead', '') OPERATOR(pg_catalog.-) '0/0'::pg_catalog.pg_lsn"
"""The position in the server's log behind a message of ours: it grows, and needs no table."""
_NOW = "extract(epoch FROM pg_catalog.clock_timestamp())"


class Prepared(NamedTuple):
    """A statement that every session plans only once."""

    text: str
    params: tuple[bytes, ...] = ()
    remark: str = ""
    """What pg_stat_activity is to show behind the comment."""


TAKEN = "-- pg_try_advisory_lock"

PING = Prepared(f"SELECT {_NOW}")


@lru_cache(1024)
def try_lock(key: Key, *, shared: bool) -> Prepared:
    """Take a lock if it is free, and then draw the fence: NULL if it is not.

    A CASE evaluates what it needs only, so the fence is drawn after the lock was taken.
    """
    return Prepared(
        f"SELECT CASE WHEN pg_catalog.pg_try_advisory_lock{_suffix(shared)}({_marks(key)}) THEN {_FENCE} END, {_NOW}",
        _params(key),
        TAKEN,
    )


def await_lock(key: Key, *, shared: bool) -> str:
    """Wait in the server's queue for a lock, and then draw the fence."""
    taken = f"pg_catalog.pg_advisory_lock{_suffix(shared)}({key.sql})::pg_catalog.text IS NOT NULL"
    return f"SELECT CASE WHEN {taken} THEN {_FENCE} END, {_NOW}"


@lru_cache(1024)
def unlock(key: Key, *, shared: bool) -> Prepared:
    return Prepared(f"SELECT pg_catalog.pg_advisory_unlock{_suffix(shared)}({_marks(key)})", _params(key))


def unlock_if_held(key: Key, *, shared: bool) -> str:
    """Give back what may not be held: the server would write a warning into its log."""
    return (
        f"SELECT pg_catalog.pg_advisory_unlock{_suffix(shared)}({key.sql}) FROM pg_catalog.pg_locks"
        " WHERE locktype OPERATOR(pg_catalog.=) 'advisory' AND granted"
        f" AND pid OPERATOR(pg_catalog.=) pg_catalog.pg_backend_pid() AND {_is(key)}"
    )


UNLOCK_ALL = "SELECT pg_catalog.pg_advisory_unlock_all()"


def cancel(pid: int) -> str:
    return f"SELECT pg_catalog.pg_cancel_backend({pid})"


def terminate(pid: int) -> str:
    return f"SELECT pg_catalog.pg_terminate_backend({pid})"


def look(keys: Iterable[Key] | None = None) -> str:
    """Show who holds and awaits advisory locks of this database: all, or these. Draws a ticket, too."""
    which = ""
    if keys is not None:
        which = f" AND ({' OR '.join(map(_is, keys))})"
    return (
        f"SELECT (SELECT {_FENCE}), {_NOW}, classid, objid, objsubid, lock.pid, granted,"
        " mode OPERATOR(pg_catalog.=) 'ShareLock', extract(epoch FROM"
        " (pg_catalog.to_jsonb(lock) OPERATOR(pg_catalog.->>) 'waitstart')::pg_catalog.timestamptz), application_name,"
        " pg_catalog.host(client_addr), query, extract(epoch FROM state_change), extract(epoch FROM backend_start)"
        # What the views pg_locks and pg_stat_activity show, but planned in half the time.
        " FROM pg_catalog.pg_lock_status() AS lock LEFT JOIN LATERAL pg_catalog.pg_stat_get_activity(lock.pid) ON true"
        " WHERE locktype OPERATOR(pg_catalog.=) 'advisory' AND database OPERATOR(pg_catalog.=) (SELECT oid"
        " FROM pg_catalog.pg_database WHERE datname OPERATOR(pg_catalog.=) pg_catalog.current_database())"
        f"{which}"
    )


def _is(key: Key) -> str:
    return f"(classid::bigint, objid::bigint, objsubid) OPERATOR(pg_catalog.=) {key.pg_locks}"


def _marks(key: Key) -> str:
    return "$1::integer, $2::integer" if key.is_pair else "$1::bigint"


def _params(key: Key) -> tuple[bytes, ...]:
    return tuple(b"%d" % number for number in key.arguments)


def _suffix(shared: bool) -> str:  # noqa: FBT001
    return "_shared" if shared else ""


def label(name: str, owner: str) -> str:
    """Write a name and an owner as a comment can carry them: with no space, asterisk or control character."""
    return f"{quote(name, safe=':/@')} {quote(owner, safe=':/@')}"


def comment(labels: Iterable[str]) -> str:
    """Tell what a session holds, as much of it as is shown."""
    text = ""
    for each in islice(labels, MOST):
        if len(text) + len(each) < COMMENT:
            text += f" {each}"
    return text and f"/* lockstead{text} */ "


_COMMENT_PATTERN = re.compile(r"/\* lockstead ([!-)+-~ ]*)")


def read_comment(query: str) -> list[tuple[str, str]]:
    """Read names and owners out of a statement, which may have been cut off, or be anybody's."""
    found = _COMMENT_PATTERN.match(query)
    if found is None:
        return []
    words = found[1].split(" ")
    if not query.startswith("*/", found.end()):
        words.pop()  # it may be a part only
    pairs = ((unquote(name), unquote(owner)) for name, owner in zip(words[::2], words[1::2], strict=False) if owner)
    return [(name, owner) for name, owner in pairs if name.isprintable() and owner.isprintable()]


class SessionLock(NamedTuple):
    """One session's hold of a key, or its wait for it."""

    key: Key
    pid: int
    granted: bool
    shared: bool
    since: float
    """When it was taken, at the earliest, or when the wait began."""
    client: Client
    name: str
    """As the session's last statement says, else by its key."""
    owner: str


class LockSnapshot(NamedTuple):
    ticket: int
    now: float
    locks: list[SessionLock]
    """Holders first, then who waits, in their order."""


def read_snapshot(rows: Sequence[Row]) -> LockSnapshot:
    locks = sorted(map(_session_lock, rows), key=lambda lock: (not lock.granted, lock.since, lock.pid))
    ticket, now = (float(rows[0][0] or 0), float(rows[0][1] or 0)) if rows else (0, 0.0)
    return LockSnapshot(int(ticket), now, locks)


def _session_lock(row: Row) -> SessionLock:
    _, now, classid, objid, objsubid, pid_, granted_, shared, waiting, application_, address, query_, changed, began = (
        row
    )
    key = Key.from_pg_locks(*(int(part or 0) for part in (classid, objid, objsubid)))
    pid, granted = int(pid_ or 0), granted_ == b"t"
    application, query = _text(application_), _text(query_)
    said = read_comment(query)
    name, owner = next(
        ((name, owner) for name, owner in said if _has_key(name, key)),
        (str(key), f"{application or 'unknown'}:{pid}/0"),
    )
    if not granted:
        since = waiting or now  # it is not there yet for a moment after the wait began
    elif len(said) == 1 and "advisory_lock" in query:
        since = changed or began  # the statement that took it was the last
    else:
        since = began
    return SessionLock(
        key, pid, granted, shared == b"t", float(since or 0), Client(pid, application, _text(address)), name, owner
    )


def _has_key(name: str, key: Key) -> bool:
    try:
        return advisory_key(name) == key
    except InvalidInputError:  # somebody else's comment
        return False


def _text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "replace")
