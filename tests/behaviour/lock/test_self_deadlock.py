"""A thread or task that waits for what only it could release gets an error at once; every other wait goes on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from lockstead import AsyncDistributedLock, DistributedLock, LockAcquisitionError, LockLostError
from lockstead.testing.contract.rigs import Rig, ask, block, cannot
from tests.harness.conditions import eventually, eventually_async
from tests.harness.processes import run

OF_ITSELF = "this thread or task holds it itself, and would wait for its own release"


@pytest.mark.every_store
@pytest.mark.one_version
def test_waiting_inside_of_its_own_block_is_an_error_at_once(rig: Rig) -> None:
    async def test() -> None:
        client = rig.client()
        async with block(client.lock("x")) as handle:
            patience: tuple[float | None, ...] = (None, 600)
            for timeout in patience:
                with pytest.raises(LockAcquisitionError, match=rf"{OF_ITSELF}.*reentrant=True") as caught:
                    await ask(client.acquire("x", timeout=timeout))
                assert caught.value.holder == client.holder_id
            with pytest.raises(LockAcquisitionError, match=OF_ITSELF):
                async with block(client.lock("x")):
                    pass
            with pytest.raises(LockAcquisitionError, match=OF_ITSELF):
                await ask(client.multi_lock(["w", "x"]).acquire())
            for short in (0, 0.05):
                with pytest.raises(LockAcquisitionError, match="this client holds it already"):
                    await ask(client.acquire("x", timeout=short))
            handle.check()
            assert [(info.name, info.waiting) for info in await ask(client.inspect())] == [("x", 0)]
        await ask((await ask(client.acquire("x"))).release())

    rig.run(test())


@pytest.mark.every_store
@pytest.mark.one_version
def test_a_decorated_function_that_calls_itself_fails_at_once(rig: Rig) -> None:
    async def test() -> None:
        client = rig.client()

        def recurse() -> None:
            guarded()

        async def recurse_in_a_task() -> None:
            await guarded()

        guarded: Any = client.locked("x")(recurse_in_a_task if rig.runtime_name == "asyncio" else recurse)
        with pytest.raises(LockAcquisitionError, match=OF_ITSELF):
            await ask(guarded())
        assert not await ask(client.is_locked("x"))

    rig.run(test())


@pytest.mark.every_store
@pytest.mark.one_version
def test_a_reader_that_waits_for_the_write_side_fails_at_once(rig: Rig) -> None:
    async def test() -> None:
        client = rig.client()
        reading = client.read_lock("x")
        if await cannot(reading, client):
            return
        async with block(reading):
            with pytest.raises(LockAcquisitionError, match=rf"{OF_ITSELF}: release it first$"):
                await ask(client.write_lock("x").acquire())
            async with block(client.read_lock("x")):
                pass

    rig.run(test())


def test_a_lock_that_stops_being_renewed_is_waited_for(locks: DistributedLock) -> None:
    with (
        pytest.raises(LockLostError),
        locks.lock("x", ttl=0.3, renew=False) as first,
        locks.lock("x", timeout=30) as second,
    ):
        assert second.fence > first.fence


def test_a_thread_waits_for_a_handle_that_another_thread_releases(locks: DistributedLock) -> None:
    """A dispatcher that starts one job after another, each of which releases the lock at its end."""
    with ThreadPoolExecutor(1) as pool:
        for _ in range(3):
            handle = locks.acquire("x", timeout=30)
            pool.submit(_release_once_awaited, locks, handle)
        locks.acquire("x", timeout=30).release()


def _release_once_awaited(locks: DistributedLock, handle: Any) -> None:
    eventually(lambda: (info := locks.info("x")) is not None and info.waiting, "the dispatcher waits")
    handle.release()


def test_a_thread_waits_for_the_block_of_a_generator_that_another_thread_ends(locks: DistributedLock) -> None:
    """As web frameworks do with the generators of requests: each step of one runs in any thread of a pool."""

    def dependency() -> Iterator[None]:
        with locks.lock("x"):
            yield

    first = dependency()
    next(first)
    thread = threading.Thread(target=_end_once_awaited, args=(locks, first))
    thread.start()
    locks.acquire("x", timeout=30).release()
    thread.join()


def _end_once_awaited(locks: DistributedLock, generator: Iterator[None]) -> None:
    eventually(lambda: (info := locks.info("x")) is not None and info.waiting, "the next request waits")
    next(generator, None)


def test_other_threads_wait_for_a_block(locks: DistributedLock) -> None:
    waiter = threading.Thread(target=lambda: locks.acquire("x", timeout=30).release())
    with locks.lock("x"):
        waiter.start()
        eventually(lambda: (info := locks.info("x")) is not None and info.waiting, "another thread waits")
    waiter.join()


def test_other_tasks_wait_for_a_block_and_a_task_for_a_handle_of_its_own() -> None:
    async def waits(locks: AsyncDistributedLock) -> bool:
        info = await locks.info("x")
        return info is not None and info.waiting == 1

    async def test() -> None:
        async with AsyncDistributedLock("memory://of-other-tasks") as locks:

            async def enter() -> None:
                async with locks.lock("x", timeout=30):
                    pass

            async def release(handle: Any) -> None:
                await eventually_async(lambda: waits(locks), "the task waits")
                await handle.release()

            async with locks.lock("x"):
                waiter = asyncio.create_task(enter())
                await eventually_async(lambda: waits(locks), "another task waits")
            await waiter
            released = asyncio.create_task(release(await locks.acquire("x")))
            await (await locks.acquire("x", timeout=30)).release()
            await released

    asyncio.run(test())


@pytest.mark.parametrize("scenario", ["alone", "with_a_thread"])
def test_where_no_other_thread_could_release_a_handle_waiting_for_it_is_an_error(scenario: str) -> None:
    worker = run("behaviour/lock/programs/waiting_for_itself.py", scenario)
    assert worker.process.returncode == 0, worker.errors
    assert worker.answer() == {"outcome": OF_ITSELF if scenario == "alone" else "acquired"}
