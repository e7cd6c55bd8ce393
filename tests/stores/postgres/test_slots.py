"""Threads that take turns at a server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from lockstead.stores.postgres.slots import Slots
from tests.harness.conditions import eventually

LONG = 10.0


def in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def _stand_in_line(slots: Slots, number: int) -> bool:
    return len(slots._queue) == number


def test_slots_admit_at_most_their_limit_in_fifo_order() -> None:
    slots = Slots(2)
    order: list[int] = []
    inside: list[int] = []
    most: list[int] = []
    with slots.slot(LONG), ExitStack() as second:
        second.enter_context(slots.slot(LONG))

        def go(number: int) -> None:
            with slots.slot(LONG):
                order.append(number)
                inside.append(number)
                most.append(len(inside))
                time.sleep(0.005)
                inside.remove(number)

        threads = []
        for number in range(5):
            threads.append(in_thread(partial(go, number)))
            eventually(partial(_stand_in_line, slots, number + 1), "it stands in line")
        assert order == []
        second.close()
        for thread in threads:
            thread.join(LONG)
    assert order == [0, 1, 2, 3, 4]
    assert max(most) == 1
    assert slots._free == 2


def test_a_caller_that_waited_out_its_timeout_gets_an_extra_slot_and_the_next_does_not_wait() -> None:
    slots = Slots(1)
    with ExitStack() as stuck:
        stuck.enter_context(slots.slot(LONG))
        began = time.monotonic()
        with slots.slot(0.05):
            assert time.monotonic() - began >= 0.05
        began = time.monotonic()
        with slots.slot(LONG):
            assert time.monotonic() - began < 1.0
    assert slots._free == 1, "one at a time again"


def test_a_slot_given_to_a_caller_that_has_just_stopped_waiting_is_not_lost() -> None:
    slots = Slots(1)
    for _ in range(200):
        stuck = slots.slot(LONG)
        stuck.__enter__()

        def wait() -> None:
            with slots.slot(0.001):
                pass

        thread = in_thread(wait)
        time.sleep(0.0008)
        stuck.__exit__(None, None, None)
        thread.join(LONG)
        assert (slots._free, len(slots._queue)) == (1, 0)
