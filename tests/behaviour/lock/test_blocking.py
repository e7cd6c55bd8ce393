"""The client for threads: blocks, decorators, events, interrupts."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator
from functools import partial
from math import inf
from typing import Any
from unittest.mock import Mock

import pytest

from lockstead import (
    DistributedLock,
    InvalidInputError,
    LockAcquisitionError,
    LockHandle,
    LockLostError,
    StoreError,
    UnknownOptionError,
    lock_name,
)
from lockstead.core.lease import LeaseState
from lockstead.core.model import Ask, PlaceState, Refusal, Standing
from lockstead.runtimes.aio import AsyncRuntime
from lockstead.runtimes.threads import ThreadRuntime
from lockstead.stores.memory import MemoryServer, MemoryStore
from tests.harness.conditions import eventually


def test_a_block_holds_the_lock_and_releases_it(locks: DistributedLock) -> None:
    with locks.lock("x", metadata={"a": 1}) as handle:
        assert isinstance(handle, LockHandle)
        assert locks.is_locked("x")
    assert not locks.is_locked("x")


def test_an_acquired_handle_is_a_context_manager_that_releases(locks: DistributedLock) -> None:
    with locks.acquire("x"):
        assert locks.is_locked("x")
    assert not locks.is_locked("x")


def test_a_block_is_not_entered_without_the_lock(locks: DistributedLock) -> None:
    with locks.lock("x"), pytest.raises(LockAcquisitionError), locks.lock("x", timeout=0.01):
        pytest.fail("entered")


def test_a_block_that_fails_releases_and_lets_its_exception_through(locks: DistributedLock) -> None:
    with pytest.raises(ZeroDivisionError), locks.lock("x"):
        raise ZeroDivisionError
    assert not locks.is_locked("x")


def test_a_block_that_outlived_its_lease_ends_with_an_error(locks: DistributedLock) -> None:
    with pytest.raises(LockLostError), locks.lock("x", ttl=0.2, renew=False) as handle:
        assert handle.lost.wait(5)


def test_a_loss_does_not_mask_the_blocks_own_exception(locks: DistributedLock) -> None:
    with pytest.raises(ZeroDivisionError) as caught, locks.lock("x", ttl=0.2, renew=False) as handle:
        assert handle.lost.wait(5)
        raise ZeroDivisionError
    assert "was lost" in caught.value.__notes__[0]


def test_releasing_inside_the_block_is_allowed(locks: DistributedLock) -> None:
    with locks.lock("x") as handle:
        handle.release()
        with locks.lock("x", timeout=0):
            pass


def test_a_decorated_function_holds_a_lock_named_after_its_arguments(locks: DistributedLock) -> None:
    seen: list[str] = []

    @locks.locked("account:{account_id}:{kind}")
    def transfer(account_id: int, *, kind: str = "in") -> str:
        """Move money."""
        seen.extend(info.name for info in locks.inspect())
        return "done"

    assert transfer(42) == "done"
    assert transfer(account_id=43, kind="out") == "done"
    assert seen == ["account:42:in", "account:43:out"]
    assert transfer.__doc__ == "Move money."
    assert locks.inspect() == []


def test_a_decorated_method_can_use_its_object(locks: DistributedLock) -> None:
    class Account:
        number = 7

        @locks.locked("account:{self.number}")
        def touch(self) -> str:
            return locks.inspect()[0].name

    assert Account().touch() == "account:7"


def test_a_decorator_can_take_the_name_from_a_function(locks: DistributedLock) -> None:
    @locks.locked(lambda *parts: "-".join(parts), timeout=0)
    def job(*parts: str) -> str:
        return locks.inspect()[0].name

    assert job("a", "b") == "a-b"


@pytest.mark.parametrize("template", ["x:{missing}", "x:{missing.part}", "x:{}", "x:{0}", "x:{present:{missing}}"])
def test_a_name_the_arguments_cannot_fill_is_refused_when_decorating(locks: DistributedLock, template: str) -> None:
    with pytest.raises(InvalidInputError, match="names a parameter that"):

        @locks.locked(template)
        def function(present: int) -> None: ...


@pytest.mark.parametrize("template", ["x:{", "x:}", "x:{present", "x:{present.}", "x:{present!z}"])
def test_a_name_that_is_no_template_is_refused_when_decorating(locks: DistributedLock, template: str) -> None:
    with pytest.raises(InvalidInputError, match="is not a valid template"):

        @locks.locked(template)
        def function(present: int) -> None: ...


def test_a_template_may_use_all_that_templates_can(locks: DistributedLock) -> None:
    @locks.locked("{{x}}:{number:0{width}}:{parts[1].real}:{word!r:>5}")
    def function(number: int, width: int, parts: list[int], word: str) -> str:
        return locks.inspect()[0].name

    assert function(7, 3, [1, 2], "a") == "{x}:007:2:  'a'"


def test_an_argument_is_encoded_as_lock_name_does_so_that_none_passes_for_two(locks: DistributedLock) -> None:
    @locks.locked("file:{folder}:{name}")
    def name_of(folder: str, name: str) -> str:
        return locks.inspect()[0].name

    for parts in (("a", "b"), ("a:b", "c"), ("a", "b:c"), ("50%", "\n"), ("a b", "ü")):
        assert name_of(*parts) == lock_name("file", *parts)


@pytest.mark.parametrize("missing", [None, ""])
def test_an_argument_that_is_missing_is_no_part_of_a_name(locks: DistributedLock, missing: str | None) -> None:
    for decorator in (
        locks.locked("user:{user.real}"),
        locks.once("user:{user.real}", 60),
        locks.singleton("user:{user.real}", at_most=9),
    ):
        with pytest.raises(InvalidInputError, match=rf"user.real.* of the name 'user:.*' is {missing!r} in this call"):
            decorator(lambda user: user)(Mock(real=missing))
    assert locks.inspect() == []


def test_a_coroutine_function_is_refused(locks: DistributedLock) -> None:
    with pytest.raises(InvalidInputError, match="AsyncDistributedLock"):

        @locks.locked("x")
        async def function() -> None: ...


def rows() -> Generator[int, None, None]:
    yield 1


async def pages() -> AsyncGenerator[int, None]:
    yield 1


class Rows:
    def __call__(self) -> Generator[int, None, None]:
        yield 1


class Coroutine:
    async def __call__(self, *_: object) -> None: ...


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (rows, "^rows is a generator function, .* inside"),
        (pages, "pages is a generator function"),
        (partial(rows), "partial.* is a generator function"),
        (Rows(), "Rows object .* is a generator function"),
        (Coroutine(), "use AsyncDistributedLock"),
        (partial(Coroutine()), "use AsyncDistributedLock"),
        (partial(asyncio.sleep, 1), "use AsyncDistributedLock"),
        (Coroutine, "Coroutine is a class: decorate its methods"),
        (staticmethod(print), "below @staticmethod"),
        (classmethod(print), "below @classmethod"),
        (None, "None cannot be called"),
    ],
)
def test_decorating_a_generator_a_coroutine_or_a_class_is_refused(
    locks: DistributedLock, function: Callable[[], Any], says: str
) -> None:
    for decorator in (
        locks.lock("x"),
        locks.singleton("x", at_most=1),
        locks.once("x", 1),
        locks.rate_limiter("x", 1, 1),
    ):
        with pytest.raises(InvalidInputError, match=says):
            decorator(function)


def test_a_decorated_wrapper_of_a_coroutine_function_is_refused_when_it_is_called(locks: DistributedLock) -> None:
    async def work() -> None:
        raise AssertionError

    def logged() -> Any:  # as a decorator for plain functions makes of a coroutine function
        return work()

    for decorator in (locks.locked("x"), locks.singleton("x", at_most=60), locks.once("x", 60)):
        with pytest.raises(InvalidInputError, match=r"returned a coroutine, .*work, .* use AsyncDistributedLock"):
            decorator(logged)()
        assert not locks.is_locked("x")


def test_partials_and_callable_objects_are_decorated(locks: DistributedLock) -> None:
    class Job:
        def __call__(self, number: int) -> str:
            return locks.inspect()[0].name

    guard = locks.locked("job:{number}")
    assert guard(Job())(7) == "job:7"
    assert guard(partial(Job(), number=8))() == "job:8"
    assert guard(Job().__call__)(9) == "job:9"
    assert locks.lock("x")(partial(int, "3"))() == 3
    with pytest.raises(InvalidInputError, match="has no signature"):
        locks.lock("x:{y}")(partial(int, "3"))


def test_callbacks_may_be_anything_that_need_not_be_awaited(locks: DistributedLock) -> None:
    callbacks: list[Callable[[Any], Any]] = [Mock(), partial(print), Mock, [].append]
    for callback in callbacks:
        with locks.lock("x", on_lost=callback):
            pass
        locks.election("x", on_elected=callback, on_lost=callback)
    for never_awaited in (Coroutine(), partial(Coroutine().__call__)):
        with pytest.raises(InvalidInputError, match="AsyncDistributedLock"), locks.lock("x", on_lost=never_awaited):
            pass
        with pytest.raises(InvalidInputError, match="AsyncDistributedLock"):
            locks.election("x", on_elected=never_awaited)


def test_a_coroutine_function_is_no_callback_for_threads(locks: DistributedLock) -> None:
    async def on_lost(handle: object) -> None: ...

    with pytest.raises(InvalidInputError, match="AsyncDistributedLock"):
        locks.acquire("x", on_lost=on_lost)
    assert not locks.is_locked("x")


@pytest.mark.parametrize("at_least", [None, False, "", True, "3"])
def test_an_at_least_that_is_not_a_duration_is_refused(locks: DistributedLock, at_least: float) -> None:
    with pytest.raises(InvalidInputError, match="at_least must be seconds"):
        locks.lock("x", at_least=at_least)


def test_errors_name_the_option_that_was_given(locks: DistributedLock) -> None:
    with pytest.raises(InvalidInputError, match=r"^a name must not be empty"):
        locks.rate_limiter("", 1, 1)
    with pytest.raises(InvalidInputError, match=r"^ttl must be at most a year: .* renewed"):
        locks.lock("x", ttl=inf)
    with pytest.raises(InvalidInputError, match=r"^period must be at most a year; got inf s$"):
        locks.once("x", period=inf)
    with pytest.raises(InvalidInputError, match=r"^at_most must be at most a year; got inf s$"):
        locks.singleton("x", at_most=inf)


def test_an_interrupt_on_the_way_into_a_block_releases_the_lock(locks: DistributedLock) -> None:
    class Interrupted(list[Any]):
        def append(self, entry: Any) -> None:
            raise KeyboardInterrupt

    guard = locks.lock("x")
    guard._entered = Interrupted()
    with pytest.raises(KeyboardInterrupt), guard:
        pytest.fail("entered")
    assert not guard._entered
    eventually(lambda: not locks.is_locked("x"), "it is released")


def test_with_lock_returns_what_the_function_returns(locks: DistributedLock) -> None:
    assert locks.with_lock("x", lambda: locks.is_locked("x")) is True
    assert not locks.is_locked("x")


def test_two_of_eight_threads_are_never_inside_together(locks: DistributedLock) -> None:
    inside = 0
    total = 0

    def work() -> None:
        nonlocal inside, total
        for _ in range(50):
            with locks.lock("x"):
                inside += 1
                assert inside == 1
                total += 1
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert total == 400


def test_memory_is_one_space_for_the_whole_process() -> None:
    with DistributedLock("memory://") as first, DistributedLock("memory://") as second:
        with first.lock("x"):
            assert second.try_acquire("x") is None
        with DistributedLock("memory://elsewhere") as third, first.lock("x"):
            assert third.try_acquire("x") is not None


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("redi://localhost", "memory://, sqlite://"),
        ("nonsense", "memory://, sqlite://"),
        ("sqlite://relative/path.db", "three slashes"),
        ("memory://x?ttl=3", "no options"),
    ],
)
def test_an_unknown_url_is_refused_with_the_schemes_that_are_known(url: str, says: str) -> None:
    with pytest.raises(InvalidInputError, match=says):
        DistributedLock(url)


def test_a_store_made_for_the_other_runtime_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="another runtime"):
        DistributedLock(MemoryStore(AsyncRuntime()))


def test_a_store_that_was_handed_in_is_not_closed(server: MemoryServer) -> None:
    store = MemoryStore(ThreadRuntime(), server)
    DistributedLock(store).close()
    with DistributedLock(store) as locks, locks.lock("x"):
        pass


def test_one_keeper_thread_keeps_everything_and_ends_with_the_client(server: MemoryServer) -> None:
    before = set(threading.enumerate())
    with DistributedLock(MemoryStore(ThreadRuntime(), server), ttl=1) as locks:
        handles = [locks.acquire(f"name-{number}") for number in range(1000)]
        time.sleep(1.5)  # longer than the ttl: each must have been renewed
        assert all(handle.is_held for handle in handles)
        keepers = [thread for thread in set(threading.enumerate()) - before if thread.name == "lockstead-keeper"]
        assert len(keepers) == 1
    eventually(lambda: keepers[0].name != "lockstead-keeper", "it keeps nothing any more")
    del locks, handles
    keepers[0].join(5)
    assert not keepers[0].is_alive()


def test_an_interrupt_while_waiting_leaves_no_place(tmp_path) -> None:
    program = """
import _thread, sys, threading, time
from lockstead import DistributedLock
holder, waiter = DistributedLock("memory://"), DistributedLock("memory://")
handle = holder.acquire("x")
def interrupt():
    while holder.info("x").waiting == 0:
        time.sleep(0.01)
    _thread.interrupt_main()
threading.Thread(target=interrupt).start()
try:
    waiter.acquire("x")
except KeyboardInterrupt:
    print("waiting:", holder.info("x").waiting)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)
    assert done.stdout == "waiting: 0\n", done.stderr


def test_a_release_the_store_does_not_answer_says_so_and_goes_on(locks: DistributedLock) -> None:
    handle = locks.acquire("x")
    store = locks._engine.store
    calls = []
    original = store.leave

    async def leave(name: str, owner: str, timeout: float, tombstone: float = 0.0) -> bool:
        calls.append(name)
        if len(calls) < 3:
            raise StoreError("silent", transient=True)
        return await original(name, owner, timeout, tombstone)

    store.leave = leave  # type: ignore[method-assign]
    with pytest.raises(StoreError):
        handle.release()
    assert not handle.is_held
    eventually(lambda: not locks.is_locked("x"), "it is released in the background", within=10)
    assert len(calls) == 3


def test_a_renewal_that_fails_after_its_lock_was_released_is_not_logged(
    server: MemoryServer, caplog: pytest.LogCaptureFixture
) -> None:
    begun, closed, ended = threading.Event(), threading.Event(), threading.Event()

    class ClosesWhileAsked(MemoryStore):
        async def renew(self, renewals, timeout):
            begun.set()
            closed.wait(10)
            ended.set()
            raise StoreError("this store is closed")

    with DistributedLock(ClosesWhileAsked(ThreadRuntime(), server), ttl=0.6) as locks, locks.lock("x"):
        assert begun.wait(10)
    closed.set()
    assert ended.wait(10)
    while any(thread.name == "lockstead-renewal" for thread in threading.enumerate()):
        time.sleep(0.001)
    assert "this store is closed" not in caplog.text


def test_an_empty_list_of_nodes_is_not_the_default_store() -> None:
    with pytest.raises(InvalidInputError, match="3 members"):
        DistributedLock([])


def test_options_for_a_store_that_is_open_already_are_refused(server: MemoryServer) -> None:
    with pytest.raises(InvalidInputError, match="key_prefix"):
        DistributedLock(MemoryStore(ThreadRuntime(), server), key_prefix="mine")


def test_a_dropped_handle_that_a_block_re_entered_is_left_to_expire(locks: DistributedLock) -> None:
    """Only what a block itself acquired is given up with it."""
    outer = locks.acquire("x", reentrant=True)
    with locks.acquire("x", reentrant=True):
        pass
    lease = outer._leases[0]
    del outer
    gc.collect()
    assert lease.state is LeaseState.HELD
    assert locks.is_locked("x")


def test_a_place_that_was_lost_while_waiting_is_not_counted_among_what_is_held(
    locks: DistributedLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim knows one lease of one name, however often its place had to be asked for again."""
    store = locks._engine.store
    original = store.join
    asked = []

    async def join(ask: Ask, timeout: float) -> Standing | Refusal:
        asked.append(ask.owner)
        standing = await original(ask, timeout)
        if len(asked) == 1:
            await store.leave(ask.name, ask.owner, timeout)
            assert isinstance(standing, Standing)
            return standing._replace(state=PlaceState.WAITING)
        return standing

    monkeypatch.setattr(store, "join", join)
    handle = locks.acquire("x", timeout=30)
    assert len(asked) == 2
    assert len(handle._claim.leases) == 1
    handle.release()
    assert not locks.is_locked("x")


def test_a_guard_releases_what_is_held_and_not_what_another_thread_has_lost(
    locks: DistributedLock, server: MemoryServer
) -> None:
    lock, other = locks.lock("x"), DistributedLock(MemoryStore(ThreadRuntime(), server))

    def acquire_and_lose() -> None:
        handle = lock.acquire()
        other.force_release("x")
        with pytest.raises(LockLostError):
            handle.extend(30)

    for _ in range(3):
        in_thread = threading.Thread(target=acquire_and_lose)
        in_thread.start()
        in_thread.join()
    assert len(lock._acquired) == 1, "what is lost is not kept"
    lock.acquire()
    in_thread = threading.Thread(target=lock.release)
    in_thread.start()
    in_thread.join()
    assert not locks.is_locked("x")


def test_each_release_of_a_guard_by_other_threads_releases_another_acquisition(locks: DistributedLock) -> None:
    permits = locks.semaphore("s", 8)
    for _ in range(8):
        permits.acquire()
    threads = [threading.Thread(target=permits.release) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not locks.is_locked("s")


def test_a_wrong_option_of_a_guard_names_the_right_one(locks: DistributedLock) -> None:
    with pytest.raises(
        UnknownOptionError, match=r"acquire\(\) has no option 'blocking_timeout': did you mean 'timeout'"
    ):
        locks.lock("x").acquire(blocking_timeout=5)  # type: ignore[arg-type]
