"""Re-entrance of threads, corner cases; the promise itself is in `lockstead.testing.contract.lock`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from lockstead import DistributedLock
from tests.harness.conditions import eventually


def in_a_thread(function: Callable[[], Any]) -> Any:
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(function()))
    thread.start()
    thread.join()
    return answers[0]


def test_a_thread_does_not_re_enter_a_lock_of_an_ended_thread_with_the_same_ident(locks: DistributedLock) -> None:
    """Which number a new thread gets is up to the system: so this is tried until one is used again."""

    def enter(name: str) -> tuple[int, Any]:
        return threading.get_ident(), locks.try_acquire(name, reentrant=True)

    for name in map(str, range(100)):
        number, handle = in_a_thread(partial(enter, name))
        others = [in_a_thread(partial(enter, name)) for _ in range(10)]
        assert handle.is_held
        assert {entered for _, entered in others} == {None}
        if number in {other for other, _ in others}:
            return
    pytest.fail("no number was used again: this proves nothing")


def test_a_released_handle_does_not_keep_a_dropped_inner_one_alive(locks: DistributedLock) -> None:
    outer = locks.acquire("x", reentrant=True, ttl=0.5)
    locks.acquire("x", reentrant=True, ttl=0.5)
    outer.release()
    eventually(lambda: not locks.is_locked("x"), "the forgotten inner handle gives its lock up", within=10)


def test_many_threads_re_enter_at_once(locks: DistributedLock) -> None:
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
    assert locks._engine.reentrance._entered == {}
