"""Distributed locks with leases, fencing tokens and fair queues, for threads and asyncio."""

from lockstead.asynchronous import (
    AsyncDistributedLock,
    AsyncElection,
    AsyncLeadership,
    AsyncLockGuard,
    AsyncLockHandle,
    AsyncMultiLockHandle,
    AsyncOnce,
    AsyncRateLimiter,
    AsyncSingleton,
    get_async_distributed_lock,
)
from lockstead.blocking import (
    DistributedLock,
    Election,
    Leadership,
    LockGuard,
    LockHandle,
    MultiLockHandle,
    Once,
    RateLimiter,
    Singleton,
    get_distributed_lock,
)
from lockstead.core.model import Capabilities, Finding, Wake
from lockstead.core.retry import RetryPolicy
from lockstead.core.store import Store
from lockstead.errors import (
    CapacityMismatchError,
    ClosedError,
    DamagedError,
    InvalidInputError,
    InvalidLockError,
    LockAcquisitionError,
    LockError,
    LockLostError,
    NestedCallError,
    RateLimitError,
    StaleFenceError,
    StoreError,
    UnknownOptionError,
    UnsupportedError,
)
from lockstead.fencing import FenceGate
from lockstead.primitives.election import Leader
from lockstead.primitives.info import Holder, LockInfo
from lockstead.primitives.naming import lock_name
from lockstead.primitives.once import Outcome
from lockstead.primitives.rate_limit import RateDecision

__version__ = "0.1.0"

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
    "Capabilities",
    "CapacityMismatchError",
    "ClosedError",
    "DamagedError",
    "DistributedLock",
    "Election",
    "FenceGate",
    "Finding",
    "Holder",
    "InvalidInputError",
    "InvalidLockError",
    "Leader",
    "Leadership",
    "LockAcquisitionError",
    "LockError",
    "LockGuard",
    "LockHandle",
    "LockInfo",
    "LockLostError",
    "MultiLockHandle",
    "NestedCallError",
    "Once",
    "Outcome",
    "RateDecision",
    "RateLimitError",
    "RateLimiter",
    "RetryPolicy",
    "Singleton",
    "StaleFenceError",
    "Store",
    "StoreError",
    "UnknownOptionError",
    "UnsupportedError",
    "Wake",
    "get_async_distributed_lock",
    "get_distributed_lock",
    "lock_name",
]
