"""Clients that are closed while others wait, and while locks are acquired and released."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from lockstead import (
    AsyncDistributedLock,
    ClosedError,
    DistributedLock,
    StoreError,
)
from lockstead.core.model import Ask, Refusal, Standing
from lockstead.runtimes.aio import AsyncRuntime
from lockstead.runtimes.threads import ThreadRuntime
from lockstead.stores.memory import MemoryServer, MemoryStore


def test_closing_while_a_lock_is_released_is_no_loss(server: MemoryServer) -> None:
    class SlowStore(MemoryStore):
        async def leave(self, name: str, owner: str, timeout: float, tombstone: float = 0.0) -> bool:
            was_there = await super().leave(name, owner, timeout, tombstone)
            time.sleep(0.1)  # noqa: ASYNC251 - under threads a store blocks
            return was_there

    locks = DistributedLock(SlowStore(ThreadRuntime(), server))
    handle = locks.acquire("x")
    releasing = threading.Thread(target=locks.close)
    releasing.start()
    handle.release()
    releasing.join()


def test_a_release_that_crosses_a_close_is_no_loss(server: MemoryServer) -> None:
    class Crossing(MemoryStore):
        """Carries the first leave out after the second, and answers it before."""

        def __init__(self) -> None:
            super().__init__(AsyncRuntime(), server)
            self.leaves = 0
            self.second_done = asyncio.Event()
            self.first_answered = asyncio.Event()

        async def leave(self, name: str, owner: str, timeout: float, tombstone: float = 0.0) -> bool:
            self.leaves += 1
            if self.leaves == 1:
                await self.second_done.wait()
                return await super().leave(name, owner, timeout, tombstone)
            was_there = await super().leave(name, owner, timeout, tombstone)
            self.second_done.set()
            await self.first_answered.wait()
            return was_there

    async def scenario() -> None:
        store = Crossing()
        client = AsyncDistributedLock(store)
        handle = await client.acquire("x")
        release = asyncio.ensure_future(handle.release())
        release.add_done_callback(lambda _: store.first_answered.set())
        await asyncio.sleep(0)
        await client.close()
        await release

    asyncio.run(scenario())


def test_a_store_is_closed_even_if_a_release_fails(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    locks = DistributedLock(f"sqlite:///{tmp_path}/locks.db")
    locks.acquire("x").release()
    store: Any = locks._engine.store

    async def fail(*args: Any) -> bool:
        raise StoreError("silent", transient=True)

    held = locks.acquire("x")
    monkeypatch.setattr(store, "leave", fail)
    with pytest.raises(StoreError):
        locks.close()
    assert store._connection is None
    assert not held.is_held


def test_an_acquire_that_is_joining_when_its_client_is_closed_raises() -> None:
    async def main() -> None:
        arrives = asyncio.Event()

        class SlowStore(MemoryStore):
            async def join(self, ask: Ask, timeout: float) -> Standing | Refusal:
                await arrives.wait()
                return await super().join(ask, timeout)

        locks = AsyncDistributedLock(SlowStore(AsyncRuntime()))
        waiting = asyncio.create_task(locks.acquire("x"))
        await asyncio.sleep(0)
        await locks.close()
        arrives.set()
        with pytest.raises(ClosedError):
            await waiting

    asyncio.run(main())


def test_clients_open_and_close_while_others_are_woken(server: MemoryServer) -> None:
    failures: list[BaseException] = []
    done = threading.Event()

    def contend(locks: DistributedLock) -> None:
        try:
            while not done.is_set():
                with locks.lock("x"):
                    pass
        except BaseException as error:
            failures.append(error)

    with DistributedLock(MemoryStore(ThreadRuntime(), server)) as locks:
        threads = [threading.Thread(target=contend, args=(locks,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(300):
            DistributedLock(MemoryStore(ThreadRuntime(), server)).close()
        done.set()
        for thread in threads:
            thread.join()
    assert failures == []
