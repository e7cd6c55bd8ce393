"""An exception raised by a signal handler, anywhere, and survived: everything is free, and the client works."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import pytest

from lockstead import DistributedLock
from lockstead.blocking.guard import LockGuard
from tests.behaviour.interrupts.points import at_point
from tests.harness.conditions import eventually
from tests.harness.processes import run

pytestmark = [
    # Interrupted between making a coroutine of the core and driving it, Python says that it was never awaited.
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

Connect = Callable[[], DistributedLock]


class Interrupted(BaseException):
    """Caught by the caller, as KeyboardInterrupt is, or Celery's SoftTimeLimitExceeded."""


def interrupt() -> None:
    raise Interrupted


def _is_free(locks: DistributedLock, name: str) -> bool:
    with locks.lock(name, timeout=0.1):
        return True


def interrupted_everywhere(
    connect: Connect, use: Callable[[DistributedLock, str], object], stride: int, seed: int
) -> None:
    """Interrupt a use at one point after another, and look each time at what is left of it."""
    mine, others = connect(), connect()
    use(mine, "at first")
    number = seed % stride
    while True:
        name = f"job {number}"
        try:
            if not at_point(number, partial(use, mine, name), interrupt):
                break
        except Interrupted:
            pass
        eventually(partial(others.try_acquire, name), f"free after an interrupt at point {number}").release()
        assert _is_free(mine, name), f"the client cannot acquire after an interrupt at point {number}"
        number += stride
    eventually(lambda: not mine._engine.keeper.leases, "nothing is left to be kept")
    works: list[bool] = []
    thread = threading.Thread(target=lambda: works.append(_is_free(mine, "elsewhere")))
    thread.start()
    thread.join(5)
    assert works == [True], "another thread cannot use the client any more"
    assert number > stride


def block(locks: DistributedLock, name: str) -> None:
    with locks.lock(name):
        pass


def by_hand(locks: DistributedLock, name: str) -> None:
    handle = locks.acquire(name)
    try:
        handle.check()
    except BaseException:
        handle.release()
        raise
    try:
        handle.release()
    finally:
        handle.release()  # for an interrupt may come before the first has begun


def one_inside_another(locks: DistributedLock, name: str) -> None:
    with locks.lock(name, reentrant=True), locks.lock(name, reentrant=True):
        pass


def call(locks: DistributedLock, name: str) -> None:
    def job() -> None:
        pass

    locks.with_lock(name, job)
    locks.locked(name)(job)()
    locks.singleton(name, at_most=120)(job)()


def once(locks: DistributedLock, name: str) -> None:
    def fail() -> None:
        raise LookupError

    with pytest.raises(LookupError):
        locks.once(name, 120).run(fail)


def several(locks: DistributedLock, name: str) -> None:
    with locks.multi_lock([f"{name} too", name]):
        pass


def lead(locks: DistributedLock, name: str) -> None:
    with locks.election(name).lead():
        pass


def lead_with_callbacks(locks: DistributedLock, name: str) -> None:
    with locks.election(name, on_elected=lambda _: None, on_lost=lambda _: None).lead():
        pass


@pytest.mark.parametrize("use", [block, by_hand, one_inside_another])
def test_an_interrupt_anywhere_leaves_nothing_held(
    connect: Connect, use: Callable[[DistributedLock, str], object], stride: int, seed: int
) -> None:
    interrupted_everywhere(connect, use, stride, seed)


@pytest.mark.parametrize("use", [call, several, lead, lead_with_callbacks, once])
@pytest.mark.parametrize("opener", ["memory", "sqlite"], indirect=True)
def test_an_interrupt_anywhere_in_what_is_built_on_locks_leaves_nothing_held(
    connect: Connect, use: Callable[[DistributedLock, str], object], stride: int, seed: int
) -> None:
    interrupted_everywhere(connect, use, 2 * stride - 1, seed)


def test_an_interrupt_of_the_first_use_leaves_nothing_held(connect: Connect, stride: int, seed: int) -> None:
    others = connect()
    number, step = seed % (3 * stride), 3 * stride - 2
    while True:
        locks = connect()
        try:
            if not at_point(number, partial(block, locks, "job"), interrupt):
                break
        except Interrupted:
            pass
        eventually(lambda: others.try_acquire("job"), f"free after an interrupt at point {number}").release()
        assert _is_free(locks, "job"), f"the client cannot acquire after an interrupt at point {number}"
        locks.close()
        number += step


def test_an_interrupt_of_a_wait_leaves_no_place_and_the_next_is_served(
    connect: Connect, stride: int, seed: int
) -> None:
    """The one that waits may be listening for the others."""
    mine, others = connect(), connect()
    number, step = seed % (5 * stride), 5 * stride - 4
    while True:
        held = others.acquire("job")
        timer = threading.Timer(0.05, held.release)
        timer.start()
        try:
            if not at_point(number, partial(block, mine, "job"), interrupt):
                break
        except Interrupted:
            pass
        finally:
            timer.join()
        assert _is_free(others, "job"), f"not free after an interrupt at point {number}"
        assert _is_free(mine, "job"), f"the client cannot acquire after an interrupt at point {number}"
        number += step


def test_random_interrupts_are_survived(url: str, seed: int) -> None:
    worker = run(
        "behaviour/interrupts/programs/signals.py", "interrupted", url, within=60, env={"LOCKSTEAD_SEED": str(seed)}
    )
    assert worker.process.returncode == 0, worker.errors


@pytest.mark.parametrize("callbacks", [(), ("on_lost",), ("on_elected",), ("on_elected", "on_lost")], ids="+".join)
def test_a_leader_whose_block_is_left_before_its_end_has_begun_resigns(callbacks: tuple[str, ...]) -> None:
    """Whatever its callbacks keep alive."""
    tracing = sys.gettrace()

    def trace(frame: FrameType, event: str, arg: object) -> None:
        if frame.f_code is LockGuard.__exit__.__code__:
            sys.settrace(tracing)
            raise Interrupted

    with DistributedLock("memory://", ttl=120) as locks:
        options: dict[str, Any] = dict.fromkeys(callbacks, lambda _: None)
        with pytest.raises(Interrupted), locks.election("x", **options).lead():
            sys.settrace(trace)
        eventually(lambda: not locks.is_locked("x"), "it has resigned")
