"""A client dropped without `close`: what it has, it lets go of at once when it holds nothing."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import weakref
from collections.abc import Iterator
from functools import partial

import pytest

from lockstead import AsyncDistributedLock, DistributedLock
from tests.harness.conditions import eventually


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Leave nothing to the garbage collector, which comes when it likes."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def _threads() -> set[threading.Thread]:
    """List our threads; those of the tests before may go on for a while."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("lockstead")}


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.usefixtures("no_collector")
def test_a_dropped_client_ends_its_thread_and_closes_its_sockets(url: str) -> None:
    others = _threads()
    before = _descriptors()
    locks = DistributedLock(url, ttl=120)
    with locks.lock("job"):
        pass
    waiting = locks.acquire("job")
    wait = partial(locks.acquire, "job", timeout=10)
    thread = threading.Thread(target=lambda wait=wait: wait().release())
    thread.start()
    waiting.release()
    thread.join()
    keeper = weakref.ref(locks._engine.keeper)
    del locks, waiting, wait, thread
    eventually(lambda: keeper() is None, "the keeper is collected", within=5)
    eventually(lambda: _threads() <= others, "its threads have ended", within=5)
    eventually(lambda: _descriptors() <= before, "its sockets are closed", within=5)


@pytest.mark.usefixtures("no_collector")
def test_a_dropped_client_of_a_loop_ends_its_task_and_closes_its_sockets(url: str) -> None:
    others = _threads()

    async def main() -> None:
        before = _descriptors()
        locks = AsyncDistributedLock(url, ttl=120)
        async with locks.lock("job"):
            pass
        keeper = weakref.ref(locks._engine.keeper)
        del locks
        async with asyncio.timeout(5):
            while keeper() or not _threads() <= others or _descriptors() > before or len(asyncio.all_tasks()) > 1:  # noqa: ASYNC110
                await asyncio.sleep(0.002)

    asyncio.run(main())
