"""When and where the loss of a lock is signalled."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from lockstead import (
    AsyncDistributedLock,
    DistributedLock,
    LockLostError,
)
from lockstead.runtimes.aio import AsyncRuntime
from lockstead.stores.memory import MemoryStore
from tests.harness.conditions import eventually


def test_a_lock_can_be_acquired_again_after_a_lost_block(locks: DistributedLock, operator: DistributedLock) -> None:
    with pytest.raises(LockLostError), locks.lock("x", reentrant=True) as first:
        operator.force_release("x")
    with locks.lock("x", reentrant=True) as second:
        assert second.fence > first.fence


def test_a_check_in_a_worker_thread_signals_the_loss_in_the_loop() -> None:
    async def main() -> None:
        notified = asyncio.Event()
        async with AsyncDistributedLock(MemoryStore(AsyncRuntime())) as locks:
            handle = await locks.acquire("x", ttl=0.3, renew=False, on_lost=lambda _: notified.set())
            lost = handle.lost

            def check_until_lost() -> str:
                while True:
                    try:
                        handle.check()
                    except LockLostError as error:
                        return error.reason

            checking = asyncio.get_running_loop().run_in_executor(None, check_until_lost)
            time.sleep(0.4)  # noqa: ASYNC251 - the loop is kept busy: the worker is the first to notice
            assert (await checking).startswith("its lease expired after renewal had stopped (max_hold, renew=False")
            async with asyncio.timeout(5):
                await notified.wait()
                await lost.wait()

    asyncio.run(main())


def test_a_loss_that_shows_at_the_release_is_signalled_too(locks: DistributedLock, operator: DistributedLock) -> None:
    notified: list[Any] = []
    handle = locks.acquire("x", on_lost=notified.append)
    lost = handle.lost
    operator.force_release("x")
    with pytest.raises(LockLostError):
        handle.release()
    assert lost.is_set()
    eventually(lambda: notified, "on_lost is called", within=10)


def test_a_released_handle_is_not_notified_of_a_later_loss(locks: DistributedLock, operator: DistributedLock) -> None:
    notified: list[str] = []
    outer = locks.acquire("x", reentrant=True, ttl=1, on_lost=lambda _: notified.append("outer"))
    inner = locks.acquire("x", reentrant=True, ttl=1, on_lost=lambda _: notified.append("inner"))
    inner.release()
    operator.force_release("x")
    eventually(lambda: notified, "on_lost is called", within=10)
    assert notified == ["outer"]
    assert outer.lost.is_set()
    assert not inner.is_held
