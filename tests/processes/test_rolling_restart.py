"""A rolling restart of five workers that take turns at one lock: for how long no worker works, in total."""

from __future__ import annotations

import signal
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from lockstead import DistributedLock
from tests.harness.conditions import eventually
from tests.harness.processes import Program
from tests.harness.sqlite import url_of
from tests.servers.binaries import VALKEY9, Flavour
from tests.servers.redis import RedisServer

WORKERS = 5
TTL = 3.0
IDLE = TTL * 0.6
"""What is allowed in total. One lock that is left behind takes at least two thirds of its ttl."""

Url = Callable[[str], str]


@pytest.fixture
def url(tmp_path: Path, shared_servers: Callable[[Flavour], RedisServer]) -> Url:
    def url(store: str) -> str:
        if store == "sqlite":
            return url_of(tmp_path / "locks.db")
        return f"redis://localhost:{shared_servers(VALKEY9).port}?key_prefix=rolling-{tmp_path.name}"

    return url


def restart(url: str, ttl: float, journal: Path, *flags: str) -> float:
    """Restart every worker at a moment when it holds; return for how many seconds no worker held."""
    workers: dict[int, Program] = {}

    def add() -> None:
        worker = Program("processes/programs/rolling.py", url, ttl, journal, *flags)
        workers[worker.pid] = worker

    def holder(among: set[int]) -> int | None:
        info = locks.info("job")
        pid = int(info.holder_id.split(":")[1]) if info else 0
        return pid if pid in among else None

    with DistributedLock(url) as locks:
        try:
            for _ in range(WORKERS):
                add()
            eventually(lambda: (info := locks.info("job")) and info.waiting == WORKERS - 1, "all wait in line")
            old = set(workers)
            while old:
                pid = eventually(lambda: holder(old), "one of the old workers holds")
                worker = workers.pop(pid)
                worker.signal(signal.SIGTERM)
                assert worker.wait() == -signal.SIGTERM
                worker.dispose()
                old.remove(pid)
                add()
            last = len(journal.read_bytes())
            eventually(lambda: len(journal.read_bytes()) > last + 200, "the new workers work")
        finally:
            for worker in workers.values():
                worker.dispose()
    return idle(journal)


def idle(journal: Path) -> float:
    """Sum up the time between one section and the next; one that was killed counts from its begin."""
    notes = [(kind, float(moment)) for kind, moment in map(str.split, journal.read_text().splitlines())]
    return sum(later - sooner for (_, sooner), (kind, later) in pairwise(notes) if kind == "begin")


@pytest.mark.parametrize("store", ["sqlite", "redis"])
def test_a_rolling_restart_leaves_a_lock_idle_for_a_moment_only(store: str, url: Url, tmp_path: Path) -> None:
    seconds = restart(url(store), TTL, tmp_path / "journal", "release_on")
    print(f"{store}: {WORKERS} workers restarted, no worker held for {seconds:.2f} s in total")
    assert seconds < IDLE


def test_without_release_on_each_restart_takes_the_rest_of_a_ttl(url: Url, tmp_path: Path) -> None:
    """Which a store on the network has to wait for: it cannot know that the holder is dead."""
    ttl = 1.5
    seconds = restart(url("redis"), ttl, tmp_path / "journal")
    print(f"redis: {WORKERS} workers restarted without it (ttl {ttl:g} s), no worker held for {seconds:.2f} s in total")
    assert seconds > WORKERS * ttl / 2
