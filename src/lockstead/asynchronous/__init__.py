"""The client for asyncio, and what it gives out."""

from lockstead.asynchronous.client import AsyncDistributedLock, get_async_distributed_lock
from lockstead.asynchronous.elections import AsyncElection, AsyncLeadership
from lockstead.asynchronous.guards import AsyncLockGuard
from lockstead.asynchronous.handles import AsyncLockHandle, AsyncMultiLockHandle
from lockstead.asynchronous.rates import AsyncRateLimiter
from lockstead.asynchronous.recipes import AsyncOnce, AsyncSingleton

__all__ = [
    "AsyncDistributedLock",
    "AsyncElection",
    "AsyncLeadership",
    "AsyncLockGuard",
    "AsyncLockHandle",
    "AsyncMultiLockHandle",
    "AsyncOnce",
    "AsyncRateLimiter",
    "AsyncSingleton",
    "get_async_distributed_lock",
]
