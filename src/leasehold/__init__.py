"""Distributed locks with leases, fences and fair waiting, for threads and asyncio."""

from leasehold._election import ElectionOptions, Leader
from leasehold._info import Holder, LockInfo
from leasehold._model import Capabilities, Finding, Wake
from leasehold._naming import lock_name
from leasehold._once import Outcome
from leasehold._primitives import LockOptions, TryOptions
from leasehold._ratelimit import Spending
from leasehold._retry import RetryPolicy
from leasehold._store import Store
from leasehold.asynchronous import (
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
from leasehold.blocking import (
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
from leasehold.errors import (
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
    UnsupportedError,
)
from leasehold.fencing import FenceGate

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
    "ElectionOptions",
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
    "LockOptions",
    "MultiLockHandle",
    "NestedCallError",
    "Once",
    "Outcome",
    "RateLimitError",
    "RateLimiter",
    "RetryPolicy",
    "Singleton",
    "Spending",
    "StaleFenceError",
    "Store",
    "StoreError",
    "TryOptions",
    "UnsupportedError",
    "Wake",
    "get_async_distributed_lock",
    "get_distributed_lock",
    "lock_name",
]
