"""The shared client of an event loop."""

from __future__ import annotations

import asyncio

from lockstead.asynchronous.client import AsyncDistributedLock
from lockstead.runtimes.aio import running_loop

_defaults: dict[asyncio.AbstractEventLoop, AsyncDistributedLock] = {}


def get_async_distributed_lock() -> AsyncDistributedLock:
    """Return the shared client of the running event loop: on LOCKSTEAD_URL, else on the user's own SQLite file."""
    for loop in [loop for loop, locks in _defaults.items() if loop.is_closed() or locks._engine.is_closed]:
        _defaults.pop(loop, None)
    running = running_loop()
    if running not in _defaults:
        _defaults[running] = AsyncDistributedLock()
    return _defaults[running]
