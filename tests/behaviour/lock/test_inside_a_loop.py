"""The blocking client inside an event loop, whose tasks are one thread to it."""

from __future__ import annotations

import asyncio
import time

import pytest

from lockstead import DistributedLock, LockAcquisitionError, UnsupportedError
from tests.harness.conditions import eventually


def test_two_tasks_with_a_blocking_client_get_an_error_that_names_the_other_client(locks: DistributedLock) -> None:
    async def hold(holds: asyncio.Event, may_end: asyncio.Event) -> None:
        with locks.lock("x", ttl=30):
            holds.set()
            await may_end.wait()

    async def test() -> None:
        holds, may_end = asyncio.Event(), asyncio.Event()
        holder = asyncio.create_task(hold(holds, may_end))
        await holds.wait()
        began = time.monotonic()
        timeouts: list[float | None] = [None, 5]
        for timeout in timeouts:
            with pytest.raises(LockAcquisitionError, match=r"block its event loop.*use AsyncDistributedLock"):
                locks.acquire("x", timeout=timeout)
        assert time.monotonic() - began < 4
        with pytest.raises(LockAcquisitionError, match="use AsyncDistributedLock"):
            locks.acquire("x", timeout=0)
        may_end.set()
        await holder
        locks.acquire("x").release()

    asyncio.run(test())


def test_re_entrance_is_refused_inside_a_loop_before_it_lets_a_second_task_in(locks: DistributedLock) -> None:
    async def enter() -> None:
        with locks.lock("x", reentrant=True):
            raise AssertionError

    async def test() -> None:
        for call in (locks.acquire, locks.try_acquire):
            with pytest.raises(UnsupportedError, match=r"reentrant=True is refused .* use AsyncDistributedLock$"):
                call("x", reentrant=True)
        with pytest.raises(UnsupportedError, match="AsyncDistributedLock"):
            await enter()
        assert not locks.is_locked("x")

    asyncio.run(test())


def test_a_thread_that_a_loop_starts_may_re_enter(locks: DistributedLock) -> None:
    def enter() -> bool:
        with locks.lock("x", reentrant=True), locks.lock("x", reentrant=True) as inner:
            return inner.is_held

    async def test() -> None:
        assert await asyncio.to_thread(enter)

    asyncio.run(test())


def test_what_is_free_or_held_by_another_client_is_taken_inside_a_loop(
    locks: DistributedLock, operator: DistributedLock
) -> None:
    async def test() -> None:
        with locks.lock("x") as handle:
            assert handle.is_held
        operator.acquire("x")
        release = asyncio.to_thread(_release_once_awaited, operator)
        releasing = asyncio.create_task(release)
        await asyncio.sleep(0)
        locks.acquire("x", timeout=30).release()
        await releasing

    asyncio.run(test())


def _release_once_awaited(operator: DistributedLock) -> None:
    eventually(lambda: (info := operator.info("x")) is not None and info.waiting, "the loop waits")
    operator.release_all()
