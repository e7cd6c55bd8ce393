"""The client for asyncio, and what it gives out."""

from leasehold.asynchronous.client import AsyncDistributedLock, get_async_distributed_lock
from leasehold.asynchronous.elections import AsyncElection, AsyncLeadership
from leasehold.asynchronous.guards import AsyncLockGuard
from leasehold.asynchronous.handles import AsyncLockHandle, AsyncMultiLockHandle
from leasehold.asynchronous.rates import AsyncRateLimiter
from leasehold.asynchronous.recipes import AsyncOnce, AsyncSingleton

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
