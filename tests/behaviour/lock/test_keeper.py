"""The renewal loop: a store that is down, threads that cannot be started, tasks that are cancelled."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from lockstead import (
    AsyncDistributedLock,
    DistributedLock,
    StoreError,
)
from lockstead.core.model import Ask, Refusal, Renewal, Standing
from lockstead.runtimes.aio import AsyncRuntime
from lockstead.runtimes.threads import ThreadRuntime
from lockstead.stores.memory import MemoryServer, MemoryStore
from tests.harness.conditions import eventually


class UnreliableStore(MemoryStore):
    """Replies until `down` is set, and counts the requests it refused."""

    down = False
    transient = True
    refused_requests = 0

    def _refuse_if_down(self) -> None:
        if self.down:
            self.refused_requests += 1
            raise StoreError("down", transient=self.transient)

    async def join(self, ask: Ask, timeout: float) -> Standing | Refusal:
        self._refuse_if_down()
        return await super().join(ask, timeout)

    async def renew(self, renewals: Sequence[Renewal], timeout: float) -> list[Standing]:
        self._refuse_if_down()
        return await super().renew(renewals, timeout)

    async def leave(self, name: str, owner: str, timeout: float, tombstone: float = 0.0) -> bool:
        self._refuse_if_down()
        return await super().leave(name, owner, timeout, tombstone)


def test_a_keeper_does_not_spin_while_the_store_is_down() -> None:
    store = UnreliableStore(ThreadRuntime())
    locks = DistributedLock(store, ttl=30)
    held, released = locks.acquire("x"), locks.acquire("y")
    store.down = True
    with pytest.raises(StoreError):
        released.release()
    locks._engine.keeper.release_in_background(held._leases[0])
    time.sleep(1.0)  # a leave is tried again every 0.3 s
    assert store.refused_requests < 20
    store.down = False
    eventually(lambda: not locks._engine.keeper.leases, "what was to be released is released", within=10)


def test_a_cancelled_keeper_comes_back() -> None:
    async def main() -> None:
        async with AsyncDistributedLock(MemoryStore(AsyncRuntime())) as locks:
            handle = await locks.acquire("x", ttl=1)
            me = asyncio.current_task()
            for task in asyncio.all_tasks() - {me}:
                task.cancel()
            await asyncio.sleep(2.5)  # longer than two ttls
            assert handle.is_held

    asyncio.run(main())


def test_a_thread_that_cannot_be_started_is_started_later(
    locks: DistributedLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        with pytest.raises(RuntimeError, match="start new thread"):
            locks.acquire("x", ttl=1)
    assert not locks.is_locked("x")
    handle = locks.acquire("x", ttl=1)
    time.sleep(0.1)  # the keeper sleeps by now
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        time.sleep(1.5)  # longer than a ttl: renewed without a thread to do it in
    assert handle.is_held


@pytest.mark.parametrize("has_begun", [False, True])
def test_an_interrupt_while_the_keeper_is_started_leaves_a_client_that_renews(
    has_begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    spawn = ThreadRuntime.spawn

    def interrupted(self: ThreadRuntime, *args: Any) -> None:
        monkeypatch.setattr(ThreadRuntime, "spawn", spawn)
        if has_begun:
            spawn(self, *args)
        raise KeyboardInterrupt

    with DistributedLock(MemoryStore(ThreadRuntime())) as locks:
        monkeypatch.setattr(ThreadRuntime, "spawn", interrupted)
        with pytest.raises(KeyboardInterrupt):
            locks.acquire("x", ttl=1)
        handle = locks.acquire("x", ttl=1)
        assert not handle.lost.wait(1.2)
        handle.release()


def test_a_waiter_that_the_store_refuses_leaves_no_place(server: MemoryServer, locks: DistributedLock) -> None:
    store = UnreliableStore(ThreadRuntime(), server)
    store.transient = False
    waiter = DistributedLock(store, ttl=30)
    with locks.lock("x"):
        failures: list[BaseException] = []

        def wait() -> None:
            try:
                waiter.acquire("x", timeout=10)
            except StoreError as error:
                failures.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        eventually(lambda: (info := locks.info("x")) and info.waiting, "it waits", within=10)
        store.down = True
    thread.join()
    assert failures
    store.down = False
    eventually(lambda: not waiter._engine.keeper.leases, "nothing is left of the waiter", within=10)
    assert not locks.is_locked("x")
