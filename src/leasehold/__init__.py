"""Distributed locks with leases, fences and fair waiting, for threads and asyncio."""

from leasehold._info import Holder, LockInfo
from leasehold._model import Capabilities, Finding, Wake
from leasehold._primitives import LockOptions, TryOptions
from leasehold._retry import RetryPolicy
from leasehold._store import Store
from leasehold.asynchronous import (
    AsyncDistributedLock,
    AsyncLockGuard,
    AsyncLockHandle,
    AsyncMultiLockHandle,
    get_async_distributed_lock,
)
from leasehold.blocking import DistributedLock, LockGuard, LockHandle, MultiLockHandle, get_distributed_lock
from leasehold.errors import (
    CapacityMismatchError,
    ClosedError,
    InvalidInputError,
    InvalidLockError,
    LockAcquisitionError,
    LockError,
    LockLostError,
    StoreError,
    UnsupportedError,
)

__version__ = "0.1.0"

__all__ = [
    "AsyncDistributedLock",
    "AsyncLockGuard",
    "AsyncLockHandle",
    "AsyncMultiLockHandle",
    "Capabilities",
    "CapacityMismatchError",
    "ClosedError",
    "DistributedLock",
    "Finding",
    "Holder",
    "InvalidInputError",
    "InvalidLockError",
    "LockAcquisitionError",
    "LockError",
    "LockGuard",
    "LockHandle",
    "LockInfo",
    "LockLostError",
    "LockOptions",
    "MultiLockHandle",
    "RetryPolicy",
    "Store",
    "StoreError",
    "TryOptions",
    "UnsupportedError",
    "Wake",
    "get_async_distributed_lock",
    "get_distributed_lock",
]
