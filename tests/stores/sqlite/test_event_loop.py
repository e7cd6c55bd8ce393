"""asyncio on a file that others lock: the loop turns on, and what is cancelled leaves nothing."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from lockstead import AsyncDistributedLock, AsyncLockHandle, LockLostError, StoreError
from lockstead.stores.sqlite.store import SqliteStore
from tests.harness.conditions import eventually_async
from tests.harness.processes import Worker, boottime
from tests.harness.sqlite import rows, transaction_of_another_program, url_of

BUSY = 0.6
"""How long the other program keeps the file."""
AWAY = BUSY / 2
"""How long the loop may be away: less than if it waited for the file, more than a busy machine keeps it."""


@asynccontextmanager
async def ticking() -> AsyncIterator[list[float]]:
    """Watch how long the loop is away: a task that wants to run every millisecond notes its gaps."""
    gaps = [0.0]

    async def tick() -> None:
        last = time.monotonic()
        while True:
            await asyncio.sleep(0.001)
            gaps.append(time.monotonic() - last)
            last = time.monotonic()

    task = asyncio.create_task(tick())
    await asyncio.sleep(0)
    try:
        yield gaps
    finally:
        task.cancel()


def keep_busy(path: Path, busy: threading.Event) -> None:
    with transaction_of_another_program(path):
        busy.set()
        time.sleep(BUSY)


async def use_while_busy(path: Path, use: Callable[[AsyncDistributedLock], Coroutine[Any, Any, None]]) -> float:
    """Start some use of a client while another program keeps the file, and return the loop's longest gap."""
    async with AsyncDistributedLock(url_of(path)) as locks:
        await locks.is_locked("warm-up")
        async with ticking() as gaps:
            with transaction_of_another_program(path):
                task = asyncio.create_task(use(locks))
                await asyncio.sleep(BUSY)
            await asyncio.wait_for(task, 10)
    return max(gaps)


async def take_and_release(locks: AsyncDistributedLock) -> None:
    await (await locks.acquire("job")).release()


async def try_once(locks: AsyncDistributedLock) -> None:
    handle = await locks.try_acquire("job")
    assert handle is not None
    await handle.release()


async def take_many(locks: AsyncDistributedLock) -> None:
    await asyncio.gather(*(take_and_release(locks) for _ in range(20)))


async def look(locks: AsyncDistributedLock) -> None:
    await asyncio.gather(locks.inspect(), locks.info("job"), locks.is_locked("job"))


@pytest.mark.parametrize("use", [take_and_release, try_once, take_many, look])
def test_the_loop_turns_on_while_another_program_locks_the_file(
    path: Path, use: Callable[[AsyncDistributedLock], Coroutine[Any, Any, None]]
) -> None:
    gap = asyncio.run(use_while_busy(path, use))
    assert gap < AWAY
    assert rows(path) == []


def test_the_loop_turns_on_when_it_first_waits_in_line_while_the_file_is_locked(path: Path) -> None:
    async def main() -> float:
        async with AsyncDistributedLock(url_of(path)) as holder, AsyncDistributedLock(url_of(path)) as locks:
            held = await holder.acquire("job")
            store = locks._engine.store
            assert isinstance(store, SqliteStore)
            join, joined, may_wait = store.join, asyncio.Event(), asyncio.Event()
            transact, asking = store._transact, threading.Event()

            async def join_slowly(*args: Any) -> Any:
                answer = await join(*args)
                joined.set()
                await may_wait.wait()
                return answer

            def transact_and_notify(*args: Any, **kwargs: Any) -> Any:
                asking.set()
                return transact(*args, **kwargs)

            store.join = join_slowly  # type: ignore[method-assign, assignment]
            async with ticking() as gaps:
                waiter = asyncio.create_task(locks.acquire("job"))
                await joined.wait()
                busy = threading.Event()
                other_program = asyncio.create_task(asyncio.to_thread(keep_busy, path, busy))
                await eventually_async(busy.is_set, "the other program has the file", within=10)
                store._transact = transact_and_notify  # type: ignore[method-assign]
                looker = asyncio.create_task(locks.inspect())
                await eventually_async(asking.is_set, "another task asks for it too", within=10)
                may_wait.set()
                await asyncio.gather(looker, other_program)
            await held.release()
            await (await waiter).release()
            return max(gaps)

    assert asyncio.run(main()) < AWAY


def test_an_acquire_cancelled_while_the_file_is_locked_leaves_no_place(path: Path) -> None:
    async def main() -> None:
        async with AsyncDistributedLock(url_of(path), ttl=60) as locks:
            await locks.is_locked("warm-up")
            async with ticking() as gaps:
                with transaction_of_another_program(path):
                    tasks = [asyncio.create_task(locks.acquire("job")) for _ in range(5)]
                    await asyncio.sleep(BUSY / 3)
                    for task in tasks:
                        task.cancel()
                    await asyncio.sleep(BUSY / 3)
                answers = await asyncio.gather(*tasks, return_exceptions=True)
            assert [type(answer) for answer in answers] == [asyncio.CancelledError] * 5
            assert max(gaps) < AWAY
            await eventually_async(lambda: rows(path) == [], "no place is left", within=10)
            async with asyncio.timeout(2):
                await (await locks.acquire("job")).release()

    asyncio.run(main())


def test_a_holder_kept_from_its_file_beyond_its_ttl_is_cancelled_in_time(path: Path) -> None:
    ttl = 0.9

    async def main() -> None:
        async with AsyncDistributedLock(url_of(path)) as locks:
            others: list[asyncio.Task[AsyncLockHandle]] = []
            trusted_until = cancelled_at = 0.0

            async def hold_while_the_file_is_locked() -> None:
                nonlocal trusted_until, cancelled_at
                async with locks.lock("job", ttl=ttl) as handle:
                    others.extend(asyncio.create_task(locks.acquire(f"other-{n}", timeout=1)) for n in range(3))
                    with transaction_of_another_program(path):
                        trusted_until = boottime() + handle.remaining
                        try:
                            await asyncio.sleep(5)
                        finally:
                            cancelled_at = boottime()

            async with ticking() as gaps:
                with pytest.raises(LockLostError):
                    await hold_while_the_file_is_locked()
            assert max(gaps) < AWAY
            assert cancelled_at <= trusted_until + max(gaps), "it is cancelled before another client can hold"
            for answer in await asyncio.gather(*others, return_exceptions=True):
                if isinstance(answer, AsyncLockHandle):
                    await answer.release()
                else:
                    assert isinstance(answer, StoreError)

    asyncio.run(main())


def test_tasks_cancelled_at_random_points_leave_no_place(path: Path, seed: int) -> None:
    chance = random.Random(seed)
    names = [f"job-{number}" for number in range(5)]

    async def main() -> None:
        async with AsyncDistributedLock(url_of(path), ttl=60) as locks:
            inside: dict[str, int] = dict.fromkeys(names, 0)
            finished = 0

            async def work(name: str, rest: float) -> None:
                nonlocal finished
                async with locks.lock(name):
                    inside[name] += 1
                    assert inside[name] == 1
                    try:
                        await asyncio.sleep(rest)
                    finally:
                        inside[name] -= 1
                finished += 1

            async def cancel(task: asyncio.Task[None], delay: float) -> None:
                await asyncio.sleep(delay)
                task.cancel()
                if chance.random() < 0.3:
                    await asyncio.sleep(0)
                    task.cancel()

            tasks = [asyncio.create_task(work(chance.choice(names), chance.uniform(0, 0.004))) for _ in range(500)]
            cancels = [asyncio.create_task(cancel(task, chance.uniform(0, 1.0))) for task in tasks]
            answers = await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.gather(*cancels)
            cancelled = sum(isinstance(answer, asyncio.CancelledError) for answer in answers)
            print(f"{cancelled} were cancelled, {finished} finished")
            assert cancelled + finished == 500
            assert cancelled > 50
            await eventually_async(lambda: rows(path) == [], "no place is left", within=10)
            assert locks._engine.keeper.leases == {}
            async with asyncio.timeout(5):
                for name in names:
                    await (await locks.acquire(name)).release()

    asyncio.run(main())


def test_a_process_waiting_behind_a_cancelled_task_is_not_held_up(path: Path, peer: Callable[..., Worker]) -> None:
    waiter = peer()

    async def main() -> float:
        async with AsyncDistributedLock(url_of(path), ttl=60) as locks:
            held = await locks.acquire("job")
            doomed = asyncio.create_task(locks.acquire("job"))
            await eventually_async(lambda: len(rows(path)) == 2, "the task waits", within=10)
            waiter.send("acquire", "job")
            await eventually_async(lambda: len(rows(path)) == 3, "the process waits behind it", within=10)
            doomed.cancel()
            with pytest.raises(asyncio.CancelledError):
                await doomed
            left = boottime()
            await held.release()
            return left

    left = asyncio.run(main())
    assert waiter.answer()["at"] - left < 1.0
