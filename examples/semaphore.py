"""Semaphore: ten processes export reports, at most three at a time; a large report takes two of the three permits.

Run it: python examples/semaphore.py
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from lockstead import DistributedLock

PERMITS = 3


def export(folder: Path, weight: int) -> None:
    """Record in a separate file how many permits were held, and from when to when."""
    with (
        DistributedLock(f"sqlite:///{folder}/locks.db") as locks,
        locks.semaphore("report:export", permits=PERMITS, weight=weight) as permit,
    ):
        began = time.monotonic()
        time.sleep(0.05)
        (folder / f"{permit.fence}.held").write_text(f"{began} {time.monotonic()} {weight}")


def most_at_once(folder: Path) -> int:
    held = [tuple(map(float, file.read_text().split())) for file in folder.glob("*.held")]
    return max(int(sum(weight for began, ended, weight in held if began <= at < ended)) for at, _, _ in held)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        export(Path(sys.argv[1]), int(sys.argv[2]))
    else:
        with tempfile.TemporaryDirectory() as name:
            weights = [2 if number % 3 == 0 else 1 for number in range(10)]
            exports = [subprocess.Popen([sys.executable, __file__, name, str(weight)]) for weight in weights]
            assert [process.wait() for process in exports] == [0] * 10
            at_once = most_at_once(Path(name))
        print(f"10 exports done, at most {at_once} of {PERMITS} permits held at a time")
        assert at_once <= PERMITS
