"""How a lock passes from process to process."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from lockstead import DistributedLock
from lockstead.core.timing import POLLING
from tests.harness.conditions import eventually
from tests.harness.processes import Worker, boottime

Peer = Callable[..., Worker]


def are_waiting(locks: DistributedLock, places: int) -> bool:
    return [info.waiting for info in locks.inspect("job")] == [places]


def join_in_order(locks: DistributedLock, waiters: list[Worker]) -> None:
    """Let every waiter be seen in line before the next one joins."""
    for place, waiter in enumerate(waiters, start=1):
        waiter.send("acquire", "job", ttl=30)
        eventually(partial(are_waiting, locks, place), f"{place} wait")


@pytest.mark.parametrize("flags", [(), ("--poll",)], ids=["push", "poll"])
def test_processes_get_the_lock_in_the_order_in_which_they_joined(
    peer: Peer, locks: DistributedLock, flags: tuple[str, ...]
) -> None:
    mine = locks.acquire("job")
    waiters = [peer(*flags) for _ in range(6)]
    join_in_order(locks, waiters)
    mine.release()
    fences, at = [mine.fence], [0.0]
    for waiter in waiters:
        grant = waiter.answer()
        others = [other for other in waiters if other is not waiter and other.has_answered()]
        assert others == [], "no other process holds meanwhile"
        fences.append(grant["fence"])
        at.append(grant["at"])
        waiter.ask("release")
    assert fences == sorted(set(fences))
    assert at == sorted(at)
    assert not locks.is_locked("job")


def test_a_waiting_process_is_woken_rather_than_left_to_poll(peer: Peer, locks: DistributedLock) -> None:
    waiter = peer()
    delays = []
    for _ in range(15):
        with locks.lock("job"):
            waiter.send("acquire", "job")
            eventually(partial(are_waiting, locks, 1), "it waits")
            left = boottime()
        delays.append(waiter.answer()["at"] - left)
        waiter.ask("release")
    print(f"hand-overs took {[round(1000 * delay, 2) for delay in delays]} ms")
    assert sorted(delays)[len(delays) // 2] < POLLING.max_delay / 4


def test_waiters_that_only_poll_get_the_lock_soon_after_its_release(peer: Peer, locks: DistributedLock) -> None:
    waiter = peer("--poll")
    with locks.lock("job"):
        waiter.send("acquire", "job")
        eventually(partial(are_waiting, locks, 1), "it waits")
        assert not waiter.has_answered()
    assert waiter.answer(within=POLLING.max_delay + 1.0)["fence"]


def test_a_process_that_polls_and_one_that_is_woken_share_one_line(peer: Peer, locks: DistributedLock) -> None:
    waiters = [peer("--poll"), peer(), peer("--poll"), peer()]
    with locks.lock("job"):
        join_in_order(locks, waiters)
    fences = []
    for waiter in waiters:
        fences.append(waiter.answer()["fence"])
        waiter.ask("release")
    assert fences == sorted(fences)
