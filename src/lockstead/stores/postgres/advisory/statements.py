"""The statements about advisory locks, and what the server shows of them.

The last statement of a session begins with a comment that names the locks it holds: pg_stat_activity shows it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import islice
from typing import NamedTuple
from urllib.parse import quote, unquote

from lockstead.core.model import SessionInfo
from lockstead.errors import InvalidInputError
from lockstead.stores.postgres.key import Key, advisory_key
from lockstead.stores.postgres.libpq import Row
from lockstead.stores.statements import load

MAX_LABELS = 20
"""How many locks a comment may name: hardly more could fit."""
MAX_COMMENT = 900
"""Bytes of a comment: the server shows the first 1024 of a statement, unless track_activity_query_size is changed."""

SQL = load("lockstead.stores.postgres.advisory")


class Prepared(NamedTuple):
    """A statement that each session prepares once."""

    text: str
    params: tuple[bytes, ...] = ()
    remark: str = ""
    """What pg_stat_activity shows behind the comment."""


_TRY_LOCK_REMARK = "-- pg_try_advisory_lock"

PING = Prepared(SQL["ping"])


@lru_cache(1024)
def try_lock(key: Key, *, shared: bool) -> Prepared:
    text = SQL["try_lock"].format(suffix=_suffix(shared), key=_placeholders(key), fence=SQL["fence"])
    return Prepared(text, _params(key), _TRY_LOCK_REMARK)


def await_lock(key: Key, *, shared: bool) -> str:
    return SQL["await_lock"].format(suffix=_suffix(shared), key=key.sql, fence=SQL["fence"])


@lru_cache(1024)
def unlock(key: Key, *, shared: bool) -> Prepared:
    return Prepared(SQL["unlock"].format(suffix=_suffix(shared), key=_placeholders(key)), _params(key))


def unlock_if_held(key: Key, *, shared: bool) -> str:
    return SQL["unlock_if_held"].format(suffix=_suffix(shared), key=key.sql, matches_key=_matches(key))


UNLOCK_ALL = SQL["unlock_all"]


def cancel(pid: int) -> str:
    return SQL["cancel"].format(pid=pid)


def terminate(pid: int) -> str:
    return SQL["terminate"].format(pid=pid)


def list_locks(keys: Iterable[Key] | None = None) -> str:
    """List the sessions that hold or await advisory locks of this database: all locks, or these."""
    which = ""
    if keys is not None:
        which = f"AND ({' OR '.join(map(_matches, keys))})"
    return SQL["list_locks"].format(fence=SQL["fence"], which=which)


def _matches(key: Key) -> str:
    return SQL["matches_key"].format(key=key.pg_locks)


def _placeholders(key: Key) -> str:
    return "$1::integer, $2::integer" if key.is_pair else "$1::bigint"


def _params(key: Key) -> tuple[bytes, ...]:
    return tuple(b"%d" % number for number in key.arguments)


def _suffix(shared: bool) -> str:  # noqa: FBT001 (private, with one argument)
    return "_shared" if shared else ""


def label(name: str, owner: str) -> str:
    """Write a name and an owner as a comment can carry them: with no space, asterisk or control character."""
    return f"{quote(name, safe=':/@')} {quote(owner, safe=':/@')}"


def comment(labels: Iterable[str]) -> str:
    """Name what a session holds, as much of it as the server shows."""
    text = ""
    for each in islice(labels, MAX_LABELS):
        if len(text) + len(each) < MAX_COMMENT:
            text += f" {each}"
    return text and f"/* lockstead{text} */ "


_COMMENT_PATTERN = re.compile(r"/\* lockstead ([!-)+-~ ]*)")


def read_comment(query: str) -> list[tuple[str, str]]:
    """Read names and owners out of a statement, which may be truncated, or that of another program."""
    found = _COMMENT_PATTERN.match(query)
    if found is None:
        return []
    words = found[1].split(" ")
    if not query.startswith("*/", found.end()):
        words.pop()  # it may be truncated
    pairs = ((unquote(name), unquote(owner)) for name, owner in zip(words[::2], words[1::2], strict=False) if owner)
    return [(name, owner) for name, owner in pairs if name.isprintable() and owner.isprintable()]


class SessionLock(NamedTuple):
    """One session's hold of a key, or its wait for it."""

    key: Key
    pid: int
    granted: bool
    shared: bool
    since: float
    """The earliest time at which it may have been acquired, or when the wait began."""
    client: SessionInfo
    name: str
    """From the comment of the session's last statement, else the key's."""
    owner: str


class LockSnapshot(NamedTuple):
    """The locks that `list_locks` found, and a ticket drawn with it."""

    ticket: int
    now: float
    locks: list[SessionLock]
    """Holders first, then waiters, in the order in which they began."""


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
    labels = read_comment(query)
    name, owner = next(
        ((name, owner) for name, owner in labels if _has_key(name, key)),
        (str(key), f"{application or 'unknown'}:{pid}/0"),
    )
    if not granted:
        since = waiting or now  # the server sets waitstart a moment after the wait began
    elif len(labels) == 1 and "advisory_lock" in query:
        since = changed or began  # the session's last statement acquired it
    else:
        since = began
    return SessionLock(
        key, pid, granted, shared == b"t", float(since or 0), SessionInfo(pid, application, _text(address)), name, owner
    )


def _has_key(name: str, key: Key) -> bool:
    try:
        return advisory_key(name) == key
    except InvalidInputError:  # the comment of another program
        return False


def _text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "replace")
