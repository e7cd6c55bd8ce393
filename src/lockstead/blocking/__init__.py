# Generated from src/lockstead/asynchronous/__init__.py by `python tools/unasync.py`: edit that one.
"""The client for threads, and the objects that it returns."""

from lockstead.blocking.client import DistributedLock
from lockstead.blocking.default import get_distributed_lock
from lockstead.blocking.election import Election, Leadership
from lockstead.blocking.guard import LockGuard
from lockstead.blocking.handle import LockHandle, MultiLockHandle
from lockstead.blocking.rate_limit import RateLimiter
from lockstead.blocking.recipes import Once, Singleton

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
