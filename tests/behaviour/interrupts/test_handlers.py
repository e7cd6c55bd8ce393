"""Signal handlers and finalizers that use the client whose call they have interrupted."""

from __future__ import annotations

import gc
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

import pytest

from lockstead import ClosedError, DistributedLock, LockHandle, NestedCallError
from tests.behaviour.interrupts.points import at_point
from tests.harness.conditions import eventually
from tests.harness.processes import run

Connect = Callable[[], DistributedLock]
LONG = 10.0


class HungError(BaseException):
    pass


@contextmanager
def never_hanging(what: str) -> Iterator[None]:
    """Raise from whatever the main thread waits for, if it takes too long."""

    def hung(*_: object) -> None:
        raise HungError(what)

    before = signal.signal(signal.SIGALRM, hung)
    signal.setitimer(signal.ITIMER_REAL, LONG)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Finalized:
    """Releases when it is collected, which takes the garbage collector."""

    def __init__(self, handle: LockHandle) -> None:
        self._handle = handle
        self._cycle = self

    def __del__(self) -> None:
        self._handle.release()


def release(locks: DistributedLock, kept: LockHandle) -> None:
    kept.release()


def release_all(locks: DistributedLock, kept: LockHandle) -> None:
    locks.release_all()


def finalize(locks: DistributedLock, kept: LockHandle) -> None:
    Finalized(kept)
    gc.collect(0)


def ask(locks: DistributedLock, kept: LockHandle) -> None:
    with suppress(NestedCallError):
        assert locks.is_locked("kept")
    kept.release()


def acquire(locks: DistributedLock, kept: LockHandle) -> None:
    with suppress(NestedCallError):
        handle = locks.try_acquire("one more")
        assert handle is not None
        handle.release()
    kept.release()


def close(locks: DistributedLock, kept: LockHandle) -> None:
    locks.close()


def use(locks: DistributedLock) -> None:
    with suppress(ClosedError), locks.lock("job"):
        pass


ACTIONS = [release, release_all, finalize, ask, acquire]


def test_a_handler_may_release_wherever_it_interrupts_and_nothing_in_it_hangs(
    connect: Connect, stride: int, seed: int
) -> None:
    locks, others = connect(), connect()
    use(locks)
    number, step = seed % stride, max(stride - 1, 1)
    while True:
        action = ACTIONS[(number + seed) % len(ACTIONS)]
        what = f"{action.__name__} at point {number}"
        kept = locks.acquire("kept")
        with never_hanging(what):
            if not at_point(number, partial(use, locks), partial(action, locks, kept)):
                kept.release()
                break
        for name in ("kept", "job", "one more"):
            eventually(partial(others.try_acquire, name), f"{name} is free after {what}").release()
        number += step
    eventually(lambda: not locks._engine.keeper.leases, "nothing is left to be kept")


def test_a_handler_may_close_the_client_wherever_it_interrupts(connect: Connect, stride: int, seed: int) -> None:
    others = connect()
    number, step = seed % (2 * stride), 2 * stride - 1
    while True:
        locks = connect()
        locks._owns_store = True
        use(locks)
        kept = locks.acquire("kept")
        with never_hanging(f"close at point {number}"):
            is_closed = at_point(number, partial(use, locks), partial(close, locks, kept))
        if not is_closed:
            break
        for name in ("kept", "job"):
            eventually(partial(others.try_acquire, name), f"{name} is free after close at point {number}").release()
        with pytest.raises(ClosedError):
            locks.acquire("job")
        number += step


def test_a_handler_that_interrupts_at_random_never_hangs(url: str, seed: int) -> None:
    worker = run(
        "behaviour/interrupts/programs/signals.py", "handling", url, within=60, env={"LOCKSTEAD_SEED": str(seed)}
    )
    assert worker.process.returncode == 0, worker.errors


def test_a_process_that_closes_its_client_on_sigterm_exits_and_leaves_nothing(url: str, seed: int) -> None:
    worker = run(
        "behaviour/interrupts/programs/signals.py", "terminated", url, within=60, env={"LOCKSTEAD_SEED": str(seed)}
    )
    assert worker.process.returncode == 0, worker.errors
