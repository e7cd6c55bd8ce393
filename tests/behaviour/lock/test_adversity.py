"""Stories in which something unlikely happens at a bad moment."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import lockstead
from lockstead import (
    AsyncDistributedLock,
    ClosedError,
    DistributedLock,
    InvalidInputError,
    LockLostError,
    StoreError,
    get_async_distributed_lock,
    get_distributed_lock,
)
from lockstead.core.model import Ask, Refusal, Renewal, Reservation, Standing
from lockstead.runtimes.aio import AsyncRuntime
from lockstead.runtimes.threads import ThreadRuntime
from lockstead.stores.memory import MemoryServer, MemoryStore


class UnreliableStore(MemoryStore):
    """Answers until it is told not to, and counts what it was asked in vain."""

    down = False
    transient = True
    asked_in_vain = 0

    def _refuse_if_down(self) -> None:
        if self.down:
            self.asked_in_vain += 1
            raise StoreError("down", transient=self.transient)

    async def join(self, ask: Ask, timeout: float) -> Standing | Refusal:
        self._refuse_if_down()
        return await super().join(ask, timeout)

    async def renew(self, renewals: Sequence[Renewal], timeout: float) -> list[Standing | None]:
        self._refuse_if_down()
        return await super().renew(renewals, timeout)

    async def leave(self, name: str, owner: str, timeout: float, tombstone: float = 0.0) -> bool:
        self._refuse_if_down()
        return await super().leave(name, owner, timeout, tombstone)


@pytest.fixture
def server() -> MemoryServer:
    return MemoryServer()


@pytest.fixture
def locks(server: MemoryServer):
    with DistributedLock(MemoryStore(ThreadRuntime(), server)) as locks:
        yield locks


@pytest.fixture
def operator(server: MemoryServer):
    with DistributedLock(MemoryStore(ThreadRuntime(), server)) as locks:
        yield locks


def eventually(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


def in_a_thread(function: Callable[[], Any]) -> Any:
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(function()))
    thread.start()
    thread.join()
    return answers[0]


def test_a_thread_does_not_re_enter_what_an_ended_one_of_the_same_number_holds(locks: DistributedLock) -> None:
    locks.acquire("other")  # so that the keeper's thread is there before, and takes no number in between

    def enter() -> tuple[int, Any]:
        return threading.get_ident(), locks.try_acquire("x", reentrant=True)

    number, handle = in_a_thread(enter)
    others = [in_a_thread(enter) for _ in range(100)]
    assert handle.is_held
    assert number in {other for other, _ in others}, "no number was used again: this proves nothing"
    assert {entered for _, entered in others} == {None}


def test_a_keeper_does_not_spin_while_the_store_is_down() -> None:
    store = UnreliableStore(ThreadRuntime())
    locks = DistributedLock(store, ttl=30)
    held, released = locks.acquire("x"), locks.acquire("y")
    store.down = True
    with pytest.raises(StoreError):
        released.release()
    locks._engine.keeper.release_in_background(held._leases[0])
    time.sleep(1.0)  # a leave is tried again every 0.3 s
    assert store.asked_in_vain < 20
    store.down = False
    eventually(lambda: not locks._engine.keeper.leases)


def test_a_cancelled_keeper_comes_back() -> None:
    async def main() -> None:
        async with AsyncDistributedLock(MemoryStore(AsyncRuntime())) as locks:
            handle = await locks.acquire("x", ttl=1)
            me = asyncio.current_task()
            for task in asyncio.all_tasks() - {me}:
                task.cancel()
            await asyncio.sleep(2.5)  # longer than two lives
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
        time.sleep(1.5)  # longer than a life: renewed without a thread to do it in
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


def test_a_loss_is_over_once_its_block_is_left(locks: DistributedLock, operator: DistributedLock) -> None:
    with pytest.raises(LockLostError), locks.lock("x", reentrant=True) as first:
        operator.force_release("x")
    with locks.lock("x", reentrant=True) as second:
        assert second.fence > first.fence


def test_a_check_in_a_worker_thread_signals_the_loss_in_the_loop() -> None:
    async def main() -> None:
        told = asyncio.Event()
        async with AsyncDistributedLock(MemoryStore(AsyncRuntime())) as locks:
            handle = await locks.acquire("x", ttl=0.3, renew=False, on_lost=lambda _: told.set())
            lost = handle.lost

            def check_until_lost() -> str:
                while True:
                    try:
                        handle.check()
                    except LockLostError as error:
                        return error.reason

            checking = asyncio.get_running_loop().run_in_executor(None, check_until_lost)
            time.sleep(0.4)  # noqa: ASYNC251 - the loop is kept busy: the worker is the first to notice
            assert await checking == "its time was up"
            async with asyncio.timeout(5):
                await told.wait()
                await lost.wait()

    asyncio.run(main())


def test_closing_while_a_lock_is_released_is_no_loss(server: MemoryServer) -> None:
    class SlowStore(MemoryStore):
        async def leave(self, name: str, owner: str, timeout: float, tombstone: float = 0.0) -> bool:
            was_there = await super().leave(name, owner, timeout, tombstone)
            time.sleep(0.1)  # noqa: ASYNC251 - under the threads driver a store blocks
            return was_there

    locks = DistributedLock(SlowStore(ThreadRuntime(), server))
    handle = locks.acquire("x")
    releasing = threading.Thread(target=locks.close)
    releasing.start()
    handle.release()
    releasing.join()


def test_a_released_handle_does_not_keep_a_forgotten_inner_one_alive(locks: DistributedLock) -> None:
    outer = locks.acquire("x", reentrant=True, ttl=0.5)
    locks.acquire("x", reentrant=True, ttl=0.5)
    outer.release()
    eventually(lambda: not locks.is_locked("x"))


def test_re_entering_from_many_threads_at_once(locks: DistributedLock) -> None:
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for turn in range(100):
                name = f"name-{number}-{turn}"
                with locks.lock(name, reentrant=True), locks.lock(name, reentrant=True):
                    pass
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert locks._engine._entered == {}


def test_clients_come_and_go_while_others_are_woken(server: MemoryServer) -> None:
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


def test_a_loss_that_shows_at_the_release_is_signalled_too(locks: DistributedLock, operator: DistributedLock) -> None:
    told: list[Any] = []
    handle = locks.acquire("x", on_lost=told.append)
    lost = handle.lost
    operator.force_release("x")
    with pytest.raises(LockLostError):
        handle.release()
    assert lost.is_set()
    eventually(lambda: told)


def test_a_released_handle_is_not_told_of_a_later_loss(locks: DistributedLock, operator: DistributedLock) -> None:
    told: list[str] = []
    outer = locks.acquire("x", reentrant=True, ttl=1, on_lost=lambda _: told.append("outer"))
    inner = locks.acquire("x", reentrant=True, ttl=1, on_lost=lambda _: told.append("inner"))
    inner.release()
    operator.force_release("x")
    eventually(lambda: told)
    assert told == ["outer"]
    assert outer.lost.is_set()
    assert not inner.is_held


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


@pytest.mark.parametrize("transient", [False, True])
def test_a_name_that_cannot_be_left_taken_is_given_up_and_its_holder_told(
    server: MemoryServer, operator: DistributedLock, transient: bool
) -> None:
    class Unlingering(MemoryStore):
        async def reserve(self, reservation: Reservation, timeout: float) -> bool:
            raise StoreError("too old", transient=transient)

    with DistributedLock(Unlingering(ThreadRuntime(), server)) as locks:
        handle = locks.acquire("x", at_least=30)
        with pytest.raises(StoreError, match="too old"):
            handle.release()
        assert operator.is_locked("x") == transient
        assert bool(locks._engine.keeper.leases) == transient, "only what may yet succeed is tried again"


def test_a_default_client_that_was_closed_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEAD_URL", "memory://replaced")
    monkeypatch.setattr(lockstead.blocking.client, "_default", None)
    with get_distributed_lock() as first:
        pass
    with get_distributed_lock().lock("x"):
        assert get_distributed_lock() is not first


def test_default_clients_do_not_outlive_their_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEAD_URL", "memory://per-loop")

    async def take() -> None:
        async with get_async_distributed_lock().lock("x"):
            pass

    for _ in range(5):
        asyncio.run(take())
    assert len(lockstead.asynchronous.client._defaults) == 1


def test_a_waiter_whom_the_store_turns_away_leaves_no_place(server: MemoryServer, locks: DistributedLock) -> None:
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
        eventually(lambda: (info := locks.info("x")) and info.waiting)
        store.down = True
    thread.join()
    assert failures
    store.down = False
    eventually(lambda: not waiter._engine.keeper.leases)
    assert not locks.is_locked("x")


def test_whoever_is_on_his_way_into_line_when_his_client_is_closed_is_told_so() -> None:
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


def test_a_coroutine_function_is_no_callback_for_threads(locks: DistributedLock) -> None:
    async def on_lost(handle: object) -> None: ...

    with pytest.raises(InvalidInputError, match="AsyncDistributedLock"):
        locks.acquire("x", on_lost=on_lost)
    assert not locks.is_locked("x")


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

    async def story() -> None:
        store = Crossing()
        client = AsyncDistributedLock(store)
        handle = await client.acquire("x")
        release = asyncio.ensure_future(handle.release())
        release.add_done_callback(lambda _: store.first_answered.set())
        await asyncio.sleep(0)
        await client.close()
        await release

    asyncio.run(story())
