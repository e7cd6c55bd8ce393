"""Use locks under trio: the client for asyncio says what to do, and that works. Usage: in_trio URL."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable

import trio

from lockstead import AsyncDistributedLock, DistributedLock, UnsupportedError, get_async_distributed_lock


async def expect_advice(use: Callable[[], Awaitable[object]]) -> None:
    try:
        await use()
    except UnsupportedError as error:
        assert "trio.to_thread.run_sync" in str(error), error
    else:
        raise AssertionError("it went on without a loop")


async def main(url: str) -> None:
    async def use_default() -> None:
        await get_async_distributed_lock().acquire("job")

    async with AsyncDistributedLock(url) as locks:
        uses: list[Callable[[], Awaitable[object]]] = [
            lambda: locks.acquire("job", timeout=1),
            lambda: locks.try_acquire("job"),
            lambda: locks.lock("job").__aenter__(),
            lambda: locks.multi_lock(["job", "other"]).__aenter__(),
            lambda: locks.semaphore("permits", 2).acquire(),
            lambda: locks.info("job"),
            locks.inspect,
            lambda: locks.election("leader").campaign(timeout=1),
            lambda: locks.rate_limiter("rate", 1, 1).acquire(),
            use_default,
        ]
        for use in uses:
            await expect_advice(use)
    inside: list[int] = []

    def take_turn() -> None:
        with blocking.lock("job", timeout=10):
            assert not inside
            inside.append(1)
            inside.clear()

    with DistributedLock(url) as blocking:
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(trio.to_thread.run_sync, take_turn)


trio.run(main, sys.argv[1])
print("done")
