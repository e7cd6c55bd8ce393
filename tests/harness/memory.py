"""A memory server that clients of one test share."""

from __future__ import annotations

import pytest

from lockstead import (
    DistributedLock,
)
from lockstead.runtimes.threads import ThreadRuntime
from lockstead.stores.memory import MemoryServer, MemoryStore


@pytest.fixture
def server() -> MemoryServer:
    return MemoryServer()


@pytest.fixture
def locks(server: MemoryServer):
    with DistributedLock(MemoryStore(ThreadRuntime(), server)) as locks:
        yield locks


@pytest.fixture
def operator(server: MemoryServer):
    with DistributedLock(MemoryStore(ThreadRuntime(), server)) as locks:
        yield locks
