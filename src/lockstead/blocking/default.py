"""The shared client of a process."""

from __future__ import annotations

import threading

from lockstead.blocking.client import DistributedLock

_default: DistributedLock | None = None
_default_mutex = threading.Lock()


def get_distributed_lock() -> DistributedLock:
    """Return the shared client of the process: on LOCKSTEAD_URL, else on the user's own SQLite file."""
    global _default
    with _default_mutex:
        if _default is None or _default._engine.is_closed:
            _default = DistributedLock()
        return _default
