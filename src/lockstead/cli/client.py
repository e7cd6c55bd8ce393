"""The client that every subcommand uses."""

from __future__ import annotations

import os

from lockstead.blocking import DistributedLock
from lockstead.cli.outcome import Exit, Failure
from lockstead.stores.registry import Default, redact


def open_client(url: str | None, ttl: float = 30.0) -> DistributedLock:
    """Open the store of --url, else of LOCKSTEAD_URL, else the user's own SQLite file.

    Refuses the memory store: it ends with this process, so it could never hold a lock of another one.
    """
    chosen = url or os.environ.get("LOCKSTEAD_URL") or ""
    if chosen.startswith("memory:"):
        msg = f"{redact(chosen)} exists inside one process only, which no other can reach: choose sqlite:// or a server"
        raise Failure(Exit.BAD_INPUT, msg)
    return DistributedLock(Default.STORE if url is None else url, ttl=ttl)
