"""Distributed locks with leases, fences and fair waiting, for threads and asyncio."""

from leasehold._info import LockInfo
from leasehold._model import Capabilities, Finding, Wake
from leasehold._primitives import LockOptions, TryOptions
from leasehold._retry import RetryPolicy
from leasehold._store import Store
from leasehold.asynchronous import AsyncDistributedLock, AsyncLockHandle, get_async_distributed_lock
from leasehold.blocking import DistributedLock, LockHandle, get_distributed_lock
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
    "AsyncLockHandle",
    "Capabilities",
    "CapacityMismatchError",
    "ClosedError",
    "DistributedLock",
    "Finding",
    "InvalidInputError",
    "InvalidLockError",
    "LockAcquisitionError",
    "LockError",
    "LockHandle",
    "LockInfo",
    "LockLostError",
    "LockOptions",
    "RetryPolicy",
    "Store",
    "StoreError",
    "TryOptions",
    "UnsupportedError",
    "Wake",
    "get_async_distributed_lock",
    "get_distributed_lock",
]
