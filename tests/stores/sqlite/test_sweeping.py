"""What is abandoned does not pile up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lockstead import DistributedLock
from lockstead.core.model import Ask
from lockstead.core.runtime import drive
from lockstead.runtimes.threads import ThreadRuntime
from lockstead.stores.sqlite.store import SWEEP_EVERY, SWEEP_ROWS, SqliteStore
from tests.harness.processes import Worker
from tests.harness.sqlite import client_of, rows

NAMES = 3000


class Clock:
    """A clock that all stores of a test share, moved by hand."""

    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


def places(path: Path) -> int:
    return len(rows(path))


def abandon(store: SqliteStore, name: str) -> None:
    """Take a place as a client does that is then killed: it is neither renewed nor released."""
    drive(store.join(Ask(name, f"killed:{name}/1", ttl=30, heartbeat=3), timeout=5))


def test_one_long_lived_client_sweeps_abandoned_names(path: Path) -> None:
    clock = Clock()
    store = SqliteStore(ThreadRuntime(), path, clock=clock)
    most = 0
    for number in range(NAMES):
        abandon(store, f"job-{number * 7919 % NAMES:05}")
        clock.time += 0.1
        if number % 50 == 0:
            most = max(most, places(path))
    drive(store.close())
    assert most < 300 + 2 * SWEEP_ROWS + SWEEP_EVERY, "about 300 are alive at a time"


def test_3000_names_abandoned_at_once_are_swept_in_the_course_of_ordinary_use(path: Path) -> None:
    clock = Clock()
    store = SqliteStore(ThreadRuntime(), path, clock=clock, push=False)
    for number in range(NAMES):
        abandon(store, f"job-{number:05}")
    assert places(path) == NAMES
    drive(store.close())
    clock.time += 31
    with client_of(path, clock=clock) as locks:
        for _ in range(2 * NAMES * SWEEP_EVERY // SWEEP_ROWS):
            locks.acquire("job-in-use", renew=False).release()
    assert places(path) == 0


def test_names_abandoned_by_processes_that_each_took_only_one_are_swept_too(path: Path) -> None:
    clock = Clock()
    most = 0
    for number in range(NAMES // 5):
        store = SqliteStore(ThreadRuntime(), path, clock=clock, push=False)
        abandon(store, f"job-{number:05}")
        drive(store.close())
        clock.time += 1
        if number % 50 == 0:
            most = max(most, places(path))
    assert most < 30 + 2 * SWEEP_ROWS + SWEEP_EVERY, "about 30 are alive at a time"


def test_tombstones_are_swept(path: Path) -> None:
    clock = Clock()
    store = SqliteStore(ThreadRuntime(), path, clock=clock)
    for number in range(1000):
        drive(store.leave("job", f"owner/{number}", 5, tombstone=5))
        abandon(store, f"job-{number}")
        clock.time += 0.5
    drive(store.close())
    ((left,),) = rows(path, "SELECT count(*) FROM tombstone")
    assert left <= 10 + SWEEP_EVERY


def test_names_abandoned_by_killed_processes_are_acquired_again_once_they_expire(
    peer: Callable[..., Worker], locks: DistributedLock
) -> None:
    doomed = peer()
    names = [f"job-{number}" for number in range(20)]
    fences = [doomed.ask("acquire", name, ttl=0.5, renew=False)["fence"] for name in names]
    doomed.kill()
    doomed.wait()
    for name, fence in zip(names, fences, strict=True):
        with locks.lock(name, timeout=5) as handle:
            assert handle.fence > fence


@pytest.mark.parametrize("others", [0, 2])
def test_the_write_ahead_log_does_not_grow_with_use(path: Path, peer: Callable[..., Worker], others: int) -> None:
    for number in range(others):
        peer().ask("acquire", f"elsewhere-{number}", ttl=0.3)
    log = path.with_name(f"{path.name}-wal")
    largest = 0
    with client_of(path) as locks:
        for number in range(3000):
            locks.acquire(f"job-{number % 100}").release()
            if number % 100 == 0:
                largest = max(largest, log.stat().st_size)
    print(f"the log grew to {largest} bytes")
    assert largest < 6_000_000
