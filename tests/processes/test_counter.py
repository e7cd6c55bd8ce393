"""Many processes, one counter, one lock, and a reaper."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from lockstead import DistributedLock
from tests.harness.conditions import eventually
from tests.harness.processes import Worker
from tests.processes import journal

PROCESSES = 20
TIMES = 200
TTL = 0.6
SUICIDES = 5
"""Killed by themselves while they hold, at a given point of the section."""
MURDERS = 3
"""Killed by the test as they come first in line, wherever they are by then."""
NEVER = -1


class Crew:
    """Workers with a record each; one that was killed is replaced until its increments are done."""

    def __init__(self, start: Callable[..., Worker], path: Path, chance: random.Random) -> None:
        self.path = path
        self.counter = path.with_name("counter")
        self.counter.write_bytes(journal.COUNTER.pack(0))
        self.killed = 0
        self._start = start
        self._suicides = dict.fromkeys(chance.sample(range(PROCESSES), SUICIDES), True)
        self._chance = chance
        self._workers = {slot: self._hire(slot) for slot in range(PROCESSES)}

    def log_of(self, slot: int) -> Path:
        return self.path.with_name(f"log-{slot}")

    def entries(self, slot: int) -> list[journal.Entry]:
        return journal.read(self.log_of(slot))

    def _hire(self, slot: int) -> Worker:
        left = TIMES - sum(entry.kind == journal.END for entry in self.entries(slot))
        dies_in = self._chance.randrange(left) if self._suicides.pop(slot, False) else NEVER
        dies_at = self._chance.randrange(4)
        return self._start(
            "processes/programs/increment.py", self.path, self.counter, self.log_of(slot), TTL, left, dies_in, dies_at
        )

    def replace_the_killed(self) -> bool:
        """Replace the workers that were killed; False once all have done their share."""
        for slot, worker in list(self._workers.items()):
            status = worker.process.poll()
            if status == 0:
                del self._workers[slot]
            elif status is not None:
                worker.wait()
                assert status == -signal.SIGKILL, f"a worker failed by itself: {worker.errors}"
                self.killed += 1
                self._workers[slot] = self._hire(slot)
        return bool(self._workers)

    def progress(self) -> float:
        logs = [self.log_of(slot) for slot in range(PROCESSES)]
        written = sum(log.stat().st_size for log in logs if log.exists())
        return written / (2 * journal.ENTRY.size * PROCESSES * TIMES)

    def pids(self) -> set[int]:
        return {worker.pid for worker in self._workers.values() if worker.process.poll() is None}


def test_no_increment_is_lost_or_done_twice_whenever_holders_are_killed(
    start_worker: Callable[..., Worker], locks: DistributedLock, path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    crew = Crew(start_worker, path, chance)
    murders = sorted(chance.uniform(0.1, 0.8) for _ in range(MURDERS))
    began = time.monotonic()
    while crew.replace_the_killed():
        if murders and crew.progress() > murders[0]:
            info = locks.info("counter")
            victim = int(info.holder_id.split(":")[1]) if info else 0
            if victim in crew.pids():
                os.kill(victim, signal.SIGKILL)
                murders.pop(0)
        time.sleep(0.005)

    print(f"{crew.killed} were killed; {time.monotonic() - began:.1f} s")
    assert not murders
    assert SUICIDES <= crew.killed <= SUICIDES + MURDERS, "one that is murdered first cannot kill itself"
    entries = [entry for slot in range(PROCESSES) for entry in crew.entries(slot)]
    sections = journal.sections(entries)
    with crew.counter.open("rb") as file:
        total = journal.read_counter(file.fileno())

    finished = [section for section in sections if section.left is not None]
    assert len(finished) == PROCESSES * TIMES
    assert len(sections) - len(finished) <= crew.killed

    committed = 0
    for section, found_next in zip(sections, [*(later.found for later in sections[1:]), total], strict=True):
        assert section.found == committed, "it read what the last one wrote"
        assert found_next in ({committed + 1} if section.left is not None else {committed, committed + 1})
        committed = found_next
    assert total == committed

    for earlier, later in pairwise(sections):
        assert (earlier.left or earlier.entered) <= later.entered, "sections overlap, or fences are out of order"
    eventually(lambda: not locks.is_locked("counter"), "the last one killed expires")
