"""The client for asyncio: cancellation above all."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from functools import partial, wraps
from typing import Any
from unittest.mock import patch

import pytest

from lockstead import (
    AsyncDistributedLock,
    AsyncLockHandle,
    DistributedLock,
    InvalidInputError,
    LockAcquisitionError,
    LockError,
    LockLostError,
)
from lockstead.runtimes.aio import AsyncRuntime
from lockstead.runtimes.threads import ThreadRuntime
from lockstead.stores.memory import MemoryServer, MemoryStore
from tests.harness.conditions import eventually_async


def on_a_loop(test: Callable[[AsyncDistributedLock], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run a test in a loop of its own, with a client on a server of its own."""

    async def run() -> None:
        async with AsyncDistributedLock(MemoryStore(AsyncRuntime())) as locks:
            await test(locks)
            await eventually_async(lambda: not locks._engine.keeper.leases, "nothing is left to be kept")
            assert await locks.inspect() == [], "something was left behind"

    @wraps(test)
    def wrapper() -> None:
        asyncio.run(asyncio.wait_for(run(), 60))

    del wrapper.__wrapped__  # pytest would ask for a fixture named locks
    return wrapper


async def waiters(locks: AsyncDistributedLock) -> int:
    info = await locks.info("x")
    return info.waiting if info else 0


@on_a_loop
async def test_a_block_holds_the_lock_and_releases_it(locks: AsyncDistributedLock) -> None:
    async with locks.lock("x") as handle:
        assert handle.is_held
        assert await locks.is_locked("x")


@on_a_loop
async def test_a_lost_lock_cancels_its_block_and_raises(locks: AsyncDistributedLock) -> None:
    reached = []
    with pytest.raises(LockLostError):
        async with locks.lock("x", ttl=0.2, renew=False):
            reached.append("inside")
            await asyncio.sleep(30)
            reached.append("too far")
    assert reached == ["inside"]
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0)


@on_a_loop
async def test_a_block_that_ends_just_as_it_is_cancelled_raises_the_loss_and_nothing_later(
    locks: AsyncDistributedLock,
) -> None:
    with pytest.raises(LockLostError):
        async with locks.lock("x") as handle:
            locks._engine.keeper.lose(handle._leases[0], "seeded")  # cancels the running task
    await asyncio.sleep(0.01)


@on_a_loop
async def test_a_cancellation_from_outside_wins_over_the_loss(locks: AsyncDistributedLock) -> None:
    async def body() -> None:
        async with locks.lock("x") as handle:
            locks._engine.keeper.lose(handle._leases[0], "seeded")
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(30)

    task = asyncio.create_task(body())
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


@on_a_loop
async def test_a_loss_does_not_mask_the_blocks_own_exception(locks: AsyncDistributedLock) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        async with locks.lock("x") as handle:
            locks._engine.keeper.lose(handle._leases[0], "seeded")
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                raise ZeroDivisionError from None
    assert "was lost" in caught.value.__notes__[0]
    await asyncio.sleep(0.01)


@on_a_loop
async def test_nested_blocks_report_the_one_that_was_lost(locks: AsyncDistributedLock) -> None:
    with pytest.raises(LockLostError) as caught:
        async with locks.lock("outer"), locks.lock("inner", ttl=0.2, renew=False):
            await asyncio.sleep(30)
    assert caught.value.name == "inner"


@on_a_loop
async def test_asyncio_timeout_around_a_wait_leaves_no_place(locks: AsyncDistributedLock) -> None:
    async with locks.lock("x"):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await locks.acquire("x")
        assert await waiters(locks) == 0


@on_a_loop
async def test_asyncio_timeout_inside_a_block_is_only_a_timeout(locks: AsyncDistributedLock) -> None:
    async with locks.lock("x"):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await asyncio.sleep(30)
        assert await locks.is_locked("x")


@on_a_loop
async def test_a_cancelled_waiter_leaves_no_place(locks: AsyncDistributedLock) -> None:
    async with locks.lock("x"):
        waiting = asyncio.create_task(locks.acquire("x"))
        await eventually_async(lambda: has_waiters(locks), "it waits")
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await waiters(locks) == 0


async def has_waiters(locks: AsyncDistributedLock) -> bool:
    return await waiters(locks) > 0


def test_five_hundred_tasks_cancelled_at_random_points_leak_nothing() -> None:
    seed = random.randrange(10**9)
    print("seed", seed)
    chance = random.Random(seed)

    async def work(locks: AsyncDistributedLock) -> None:
        with contextlib.suppress(LockAcquisitionError):
            async with locks.lock(f"name-{chance.randrange(5)}", timeout=chance.choice((None, 0, 0.01, 1))):
                await asyncio.sleep(chance.random() * 0.003)

    async def run() -> None:
        async with AsyncDistributedLock(MemoryStore(AsyncRuntime())) as locks:
            tasks = [asyncio.create_task(work(locks)) for _ in range(500)]
            while not all(task.done() for task in tasks):
                chance.choice(tasks).cancel()
                await asyncio.sleep(chance.choice((0, 0, 0.0005)))
            await eventually_async(lambda: not locks._engine.keeper.leases, "nothing is left to be kept")
            assert await locks.inspect() == []

    asyncio.run(run())


@on_a_loop
async def test_a_decorated_coroutine_function_holds_a_lock_named_after_its_arguments(
    locks: AsyncDistributedLock,
) -> None:
    @locks.locked("account:{account_id}")
    async def transfer(account_id: int) -> list[str]:
        return [info.name for info in await locks.inspect()]

    assert await transfer(42) == ["account:42"]


@on_a_loop
async def test_a_plain_function_is_refused(locks: AsyncDistributedLock) -> None:
    with pytest.raises(InvalidInputError, match="DistributedLock"):
        locks.locked("x")(lambda: None)  # type: ignore[arg-type, return-value]


class Job:
    async def __call__(self, locks: AsyncDistributedLock, number: int) -> str:
        return (await locks.inspect())[0].name


async def pages() -> AsyncGenerator[int, None]:
    yield 1


@on_a_loop
async def test_decorating_anything_but_a_coroutine_function_is_refused(locks: AsyncDistributedLock) -> None:
    refused: dict[Any, str] = {
        pages: "pages is a generator function",
        partial(pages): "partial.* is a generator function",
        partial(print): "partial.* is not a coroutine function",
        Job: "Job is a class",
        staticmethod(Job()): "below @staticmethod",
        None: "None cannot be called",
    }
    for function, says in refused.items():
        for decorator in (
            locks.lock("x"),
            locks.singleton("x", at_most=1),
            locks.once("x", 1),
            locks.rate_limiter("x", 1, 1),
        ):
            with pytest.raises(InvalidInputError, match=says):
                decorator(function)


@on_a_loop
async def test_partials_and_callable_objects_are_decorated(locks: AsyncDistributedLock) -> None:
    guard = locks.locked("job:{number}")
    assert await guard(Job())(locks, 7) == "job:7"
    assert await guard(partial(Job(), locks))(8) == "job:8"


@on_a_loop
async def test_an_interrupt_on_the_way_into_a_block_releases_the_lock(locks: AsyncDistributedLock) -> None:
    guard = locks.lock("x")
    with (
        patch.object(AsyncLockHandle, "_enter_body", side_effect=SystemError),
        pytest.raises(SystemError),
    ):
        async with guard:
            pytest.fail("entered")
    assert not guard._entered
    await eventually_async(lambda: not locks._engine.keeper.leases, "it is released")


@on_a_loop
async def test_with_lock_returns_what_the_function_returns(locks: AsyncDistributedLock) -> None:
    async def function() -> bool:
        return await locks.is_locked("x")

    assert await locks.with_lock("x", function) is True


@on_a_loop
async def test_an_asynchronous_on_lost_is_awaited(locks: AsyncDistributedLock) -> None:
    notified = asyncio.Event()

    async def on_lost(handle: object) -> None:
        await asyncio.sleep(0)
        notified.set()

    handle = await locks.acquire("x", ttl=0.2, renew=False, on_lost=on_lost)
    await asyncio.wait_for(notified.wait(), 5)
    assert not handle.is_held


@on_a_loop
async def test_a_blocked_loop_is_noticed_before_the_lock_is_relied_on(locks: AsyncDistributedLock) -> None:
    handle = await locks.acquire("x", ttl=0.2)
    time.sleep(0.3)  # noqa: ASYNC251 - the loop is blocked on purpose
    assert not handle.is_held
    with pytest.raises(LockLostError):
        handle.check()


def test_threads_and_tasks_share_the_memory_of_a_process() -> None:
    server = MemoryServer()
    blocking = DistributedLock(MemoryStore(ThreadRuntime(), server))

    async def run() -> None:
        async with AsyncDistributedLock(MemoryStore(AsyncRuntime(), server)) as locks:
            held = await asyncio.to_thread(blocking.acquire, "x")
            waiting = asyncio.create_task(locks.acquire("x", timeout=10))
            await eventually_async(lambda: has_waiters(locks), "it waits")
            began = asyncio.get_running_loop().time()
            await asyncio.to_thread(held.release)
            handle = await waiting
            assert asyncio.get_running_loop().time() - began < 0.5, "woken across the border, not by a heartbeat"
            thread = asyncio.create_task(asyncio.to_thread(blocking.acquire, "x", timeout=10))
            await eventually_async(lambda: has_waiters(locks), "it waits")
            await handle.release()
            (await thread).release()

    asyncio.run(run())
    blocking.close()


def test_a_client_belongs_to_its_loop() -> None:
    locks = AsyncDistributedLock(MemoryStore(AsyncRuntime()))

    async def take() -> None:
        async with locks.lock("x"):
            pass

    asyncio.run(take())
    with pytest.raises(LockError, match="another event loop"):
        asyncio.run(take())


def test_a_store_made_for_the_other_runtime_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="another runtime"):
        AsyncDistributedLock(MemoryStore(ThreadRuntime()))
