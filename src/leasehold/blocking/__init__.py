"""The client for threads, and what it gives out."""

from leasehold.blocking.client import DistributedLock, get_distributed_lock
from leasehold.blocking.elections import Election, Leadership
from leasehold.blocking.guards import LockGuard
from leasehold.blocking.handles import LockHandle, MultiLockHandle
from leasehold.blocking.rates import RateLimiter
from leasehold.blocking.recipes import Once, Singleton

__all__ = [
    "DistributedLock",
    "Election",
    "Leadership",
    "LockGuard",
    "LockHandle",
    "MultiLockHandle",
    "Once",
    "RateLimiter",
    "Singleton",
    "get_distributed_lock",
]
