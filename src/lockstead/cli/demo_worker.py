"""One worker process of `lockstead demo`; demo.py has the scenario.

It reports what it does on stdout, one JSON object per line, and proceeds when it receives a line on stdin.
"""

from __future__ import annotations

import fcntl
import json
import logging
import sys
import time
from pathlib import Path

from lockstead.blocking import DistributedLock
from lockstead.errors import LockLostError


class CounterFile:
    """A counter in a file, which two processes must not increment at once.

    Like every resource that enforces fences, it stores the largest one it has seen.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def create(self) -> None:
        self._path.write_text('{"counter": 0, "fence": 0}', encoding="ascii")

    def read(self) -> int:
        return int(json.loads(self._path.read_text(encoding="ascii"))["counter"])

    def write(self, counter: int, fence: int) -> int:
        """Replace the counter, unless a holder with a larger fence wrote before; return the largest fence seen."""
        with self._path.open("r+", encoding="ascii") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # comparing and writing is one step, as in UPDATE … WHERE fence <= ?
            newest = int(json.load(file)["fence"])
            if fence >= newest:
                file.seek(0)
                file.write(json.dumps({"counter": counter, "fence": fence}))
                file.truncate()
            return max(fence, newest)


def work(worker: str, locks: DistributedLock, name: str, file: CounterFile, increments: int) -> None:
    """Increment the counter `increments` times, each time under the lock."""

    def report(what: str, **details: object) -> None:
        sys.stdout.write(json.dumps({"worker": worker, "what": what, "time": time.monotonic(), **details}) + "\n")
        sys.stdout.flush()

    def wait_to_proceed() -> None:
        if not sys.stdin.readline():
            sys.exit()

    with locks:
        locks.is_locked(name)  # connects
        report("ready")
        wait_to_proceed()
        while increments:
            handle = locks.acquire(name, metadata={"worker": worker})
            counter = file.read()
            report("holds", fence=handle.fence)
            wait_to_proceed()
            newest = file.write(counter + 1, handle.fence)
            if newest > handle.fence:
                report("refused", counter=counter + 1, fence=handle.fence, newest=newest)
            else:
                increments -= 1
                report("wrote", counter=counter + 1)
            try:
                handle.release()
            except LockLostError:
                report("lost")
        report("done")


if __name__ == "__main__":
    worker, name, path, ttl, increments = sys.argv[1:]
    logging.getLogger("lockstead").addHandler(logging.NullHandler())  # the demo reports the loss itself
    work(worker, DistributedLock(ttl=float(ttl)), name, CounterFile(Path(path)), int(increments))
