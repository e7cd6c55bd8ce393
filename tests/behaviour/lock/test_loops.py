"""One asyncio client in one event loop after another: module-level decorators, test clients, asyncio.run twice."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

import lockstead.asynchronous.default
from lockstead import (
    AsyncDistributedLock,
    AsyncLockHandle,
    LockError,
    StoreError,
    get_async_distributed_lock,
)
from lockstead.core.runtime import Runtime
from lockstead.core.store import Store
from lockstead.stores import registry
from lockstead.stores.sqlite.store import SqliteStore
from tests.harness.conditions import eventually, eventually_async
from tests.harness.forks import in_child, succeeds

NewLoop = Callable[[], asyncio.AbstractEventLoop]
LOOPS: list[NewLoop] = [asyncio.new_event_loop, uvloop.new_event_loop]


@pytest.fixture(params=LOOPS, ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Any], Any]:
    def run(work: Any) -> Any:
        with asyncio.Runner(loop_factory=request.param) as runner:
            return runner.run(work)

    return run


def repeat(work: Callable[[], object]) -> None:
    """Do it ten times; afterwards as many descriptors are open as after the first three."""
    seen: list[int] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # also of a socket that the garbage collector closes
        for _ in range(10):
            work()
            gc.collect()
            seen.append(len(os.listdir("/proc/self/fd")))
    assert seen[-1] <= seen[2], seen


async def use(locks: AsyncDistributedLock) -> None:
    async with locks.lock("job", timeout=5) as handle:
        assert handle.is_held
        other = asyncio.create_task(locks.acquire("job", timeout=5))
        if locks._engine.store.capabilities.fifo:
            await eventually_async(lambda: waits(locks), "another task waits")
    await (await other).release()


async def waits(locks: AsyncDistributedLock) -> bool:
    info = await locks.info("job")
    return info is not None and info.waiting == 1


def test_a_client_is_used_in_one_loop_after_another(url: str, run: Callable[[Any], Any]) -> None:
    locks = AsyncDistributedLock(url)
    repeat(lambda: run(use(locks)))


def test_a_decorator_at_the_level_of_a_module_works_in_every_loop(url: str, run: Callable[[Any], Any]) -> None:
    locks, calls = AsyncDistributedLock(url), []

    @locks.locked("account:{number}")
    async def work(number: int) -> None:
        calls.append(number)

    for number in range(3):
        run(work(number))
    assert calls == [0, 1, 2]


def test_the_clients_of_ended_loops_leave_no_descriptor(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEAD_URL", url)
    monkeypatch.setattr(lockstead.asynchronous.default, "_defaults", {})

    async def take() -> None:
        await use(get_async_distributed_lock())

    repeat(lambda: asyncio.run(take()))


def test_a_handle_is_renewed_and_released_in_the_next_loop(tmp_path: Path) -> None:
    locks = AsyncDistributedLock(f"sqlite:///{tmp_path / 'locks.db'}", ttl=1.5)

    async def acquire() -> AsyncLockHandle:
        return await locks.acquire("job")

    async def keep(handle: AsyncLockHandle) -> None:
        until = handle.remaining

        async def is_renewed() -> bool:
            return await locks.is_locked("job") and handle.remaining > until

        await eventually_async(is_renewed, "the lease is renewed")
        handle.check()
        await handle.release()
        assert not await locks.is_locked("job")

    asyncio.run(keep(asyncio.run(acquire())))


@pytest.mark.parametrize("url", ["sqlite:///locks.db", "sqlite://"], ids=["relative", "default"])
def test_the_next_loop_has_the_same_file_in_another_directory_and_environment(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def move(name: str) -> None:
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / name))

    move("one")
    locks = AsyncDistributedLock(url)

    async def acquire() -> AsyncLockHandle | None:
        return await locks.try_acquire("job")

    handle = asyncio.run(acquire())
    assert handle is not None
    move("another")
    assert asyncio.run(acquire()) is None
    asyncio.run(handle.release())


def test_a_store_in_a_directory_whose_name_is_not_utf_8_is_used_in_the_next_loop(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"\xff")
    folder.mkdir()
    locks = AsyncDistributedLock(f"sqlite:///{folder / 'locks.db'}")
    for _ in range(2):
        asyncio.run(use(locks))
    assert "locks.db" in os.listdir(folder)


def test_a_store_that_cannot_be_opened_for_the_next_loop_is_opened_by_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = [False, True, True, False]

    def open_later(url: str, runtime: Runtime) -> Store:
        if missing.pop(0):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "/run/ca.pem")
        return SqliteStore(runtime, tmp_path / "locks.db")

    monkeypatch.setitem(registry._registered, "later", open_later)
    locks = AsyncDistributedLock("later://")
    asyncio.run(use(locks))

    async def use_at_last() -> None:
        with pytest.raises(StoreError, match=r"opened again for this event loop: .*/run/ca\.pem"):
            await locks.acquire("job")
        with pytest.raises(StoreError, match=r"opened again for this event loop: .*/run/ca\.pem"):
            await locks.is_locked("job")
        await use(locks)

    asyncio.run(use_at_last())
    assert missing == []


def test_while_the_former_loop_is_alive_another_is_refused(url: str) -> None:
    locks, ready, done = AsyncDistributedLock(url), threading.Event(), threading.Event()

    async def elsewhere() -> None:
        async with locks.lock("job"):
            ready.set()
            await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=asyncio.run, args=(elsewhere(),))
    thread.start()
    try:
        assert ready.wait(5)
        with pytest.raises(LockError, match="another event loop"):
            asyncio.run(use(locks))
    finally:
        done.set()
        thread.join()
    asyncio.run(use(locks))


def test_a_forked_child_uses_a_client_of_its_parent_in_a_loop_of_its_own(tmp_path: Path) -> None:
    locks = AsyncDistributedLock(f"sqlite:///{tmp_path / 'locks.db'}")

    async def fork() -> int:
        await use(locks)
        return await asyncio.to_thread(in_child, lambda: asyncio.run(use(locks)))

    succeeds(asyncio.run(fork()))
    asyncio.run(use(locks))


def test_a_loop_that_is_closed_without_an_end_is_left_too(url: str) -> None:
    """Without `shutdown_asyncgens`, only the garbage collector closes what the loop had open, with a warning."""
    locks = AsyncDistributedLock(url)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        for _ in range(2):
            loop = asyncio.new_event_loop()
            loop.run_until_complete(use(locks))
            loop.close()
        asyncio.run(use(locks))
        gc.collect()
    eventually(lambda: not locks._engine.keeper.leases, "nothing is left")
