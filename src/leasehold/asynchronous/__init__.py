"""The client for asyncio, and what it gives out."""

from leasehold.asynchronous.client import AsyncDistributedLock, get_async_distributed_lock
from leasehold.asynchronous.guards import AsyncLockGuard
from leasehold.asynchronous.handles import AsyncLockHandle, AsyncMultiLockHandle

__all__ = [
    "AsyncDistributedLock",
    "AsyncLockGuard",
    "AsyncLockHandle",
    "AsyncMultiLockHandle",
    "get_async_distributed_lock",
]
