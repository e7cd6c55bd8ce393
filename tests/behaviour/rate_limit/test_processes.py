"""Many processes, one rate."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lockstead import DistributedLock
from tests.harness.processes import Worker

PROCESSES = 4
LIMIT = 100
TIMES = 40


def test_processes_together_are_allowed_a_burst_and_no_more(
    start_worker: Callable[..., Worker], locks: DistributedLock, path: Path
) -> None:
    workers = [start_worker("behaviour/rate_limit/programs/consume.py", path, LIMIT, TIMES) for _ in range(PROCESSES)]
    assert all(worker.answer()["ready"] for worker in workers)
    for worker in workers:
        worker.send("begin")
    assert sum(worker.answer()["allowed"] for worker in workers) == LIMIT
    assert not locks.rate_limiter("mail", LIMIT, 3600).try_acquire()
