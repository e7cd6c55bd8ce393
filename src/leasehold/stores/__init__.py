"""Where lines are kept, and which URL means which store."""

from __future__ import annotations

import os
from urllib.parse import unquote, urlsplit

from leasehold._runtime import Runtime
from leasehold._store import Store
from leasehold.errors import InvalidInputError
from leasehold.stores.memory import MemoryStore, shared_server
from leasehold.stores.sqlite import SqliteStore

SCHEMES = ("memory", "sqlite")


def open_store(url: str | None, runtime: Runtime) -> Store:
    """Open the store a URL names: the given one, else LEASEHOLD_URL's, else the user's own SQLite file.

    Nothing is connected yet: a server that is down shows at the first request.
    """
    url = url or os.environ.get("LEASEHOLD_URL") or "sqlite://"
    parts = urlsplit(url)
    if parts.query or parts.fragment:
        msg = f"{url!r}: this URL takes no options after '?' or '#'"
        raise InvalidInputError(msg)
    if parts.scheme == "memory":
        return MemoryStore(runtime, shared_server(parts.netloc + parts.path))
    if parts.scheme == "sqlite":
        if parts.netloc:
            msg = f"{url!r}: a path needs three slashes (sqlite:///relative.db) or four (sqlite:////absolute.db)"
            raise InvalidInputError(msg)
        return SqliteStore(runtime, unquote(parts.path[1:]) or None)
    msg = f"{url!r}: no store has this scheme; there are {', '.join(f'{scheme}://' for scheme in SCHEMES)}"
    raise InvalidInputError(msg)
