"""Guess which URL was meant by a text that is none, or that names no store.

No suggestion quotes what may be part of a password: only texts without a user are repeated.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

_PLAIN = re.compile(r"[\w.~/-]*")
"""A path."""
_LOCATION = re.compile(r"[\w.-]*(:\d{1,5})?(/\w*)?")
"""What follows the slashes after a scheme: a host, and perhaps a port and a database."""
_HOST = re.compile(r"(localhost|[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+|[A-Za-z][A-Za-z0-9-]*(?=:))(?::(\d{1,5}))?(/\w*)?")
"""A host that has a dot or a port, or is this one, and perhaps a database."""
_SCHEME_OF_PORT = {"5432": "postgresql", "6432": "postgresql", "26379": "redis+sentinel"}
_DRIVERS = {"postgresql": "postgresql://", "postgres": "postgresql://", "sqlite": "sqlite://"}
"""The dialects of SQLAlchemy that there is a store for."""
_FILES = (".db", ".sqlite", ".sqlite3")


def suggestion(text: str, schemes: Sequence[str]) -> str:
    """Return the question whether a similar URL was meant, or ""."""
    scheme, colon, rest = text.partition(":")
    scheme = scheme.lower()
    if scheme in schemes and not rest.startswith("//"):
        return _asked(_with_slashes(scheme, rest) if colon else f"{scheme}://")
    if "://" in text:
        dialect, plus, driver = scheme.partition("+")
        if plus and dialect in _DRIVERS:
            engine = "" if dialect == "sqlite" else ", or pass the SQLAlchemy engine"
            return f"the URL of a store does not name the driver {driver}: write {_DRIVERS[dialect]}…{engine};"
        close = difflib.get_close_matches(scheme, schemes, 1)
        return _asked(f"{close[0]}://…") if close else ""
    return _asked(_from_path_or_host(text))


def _asked(url: str) -> str:
    return f"did you mean {url!r}?" if url else ""


def _with_slashes(scheme: str, rest: str) -> str:
    if scheme == "sqlite":
        return f"sqlite:///{rest}" if _PLAIN.fullmatch(rest) else "sqlite:///…"
    location = rest.lstrip("/")
    return f"{scheme}://{location if _LOCATION.fullmatch(location) else '…'}"


def _from_path_or_host(text: str) -> str:
    if text == ":memory:":
        return "memory://"
    if _PLAIN.fullmatch(text) and text.endswith(_FILES):
        return f"sqlite:///{text}"
    host = _HOST.fullmatch(text)
    return f"{_SCHEME_OF_PORT.get(host[2], 'redis')}://{text}" if host else ""
