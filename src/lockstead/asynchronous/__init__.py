"""The client for asyncio, and the objects that it returns."""

from lockstead.asynchronous.client import AsyncDistributedLock
from lockstead.asynchronous.default import get_async_distributed_lock
from lockstead.asynchronous.election import AsyncElection, AsyncLeadership
from lockstead.asynchronous.guard import AsyncLockGuard
from lockstead.asynchronous.handle import AsyncLockHandle, AsyncMultiLockHandle
from lockstead.asynchronous.rate_limit import AsyncRateLimiter
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
