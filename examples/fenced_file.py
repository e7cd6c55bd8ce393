"""A worker is paused while it holds a lock; when it is resumed, its late write is refused because of its fence.

Run it: python examples/fenced_file.py
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from lockstead import DistributedLock

WORKER = """
import sys
from lockstead import DistributedLock

with DistributedLock(sys.argv[1]) as locks:
    handle = locks.acquire("ledger", ttl=1)
    print(handle.fence, flush=True)
    input()                                 # paused here, by SIGSTOP
    print("held" if handle.is_held else "lost", flush=True)
"""


class FencedFile:
    """A resource that stores the greatest fence it has seen, and refuses smaller ones."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, fence: int, text: str) -> bool:
        newest = int(self._path.read_text().partition("\n")[0]) if self._path.exists() else 0
        if fence < newest:
            return False
        self._path.write_text(f"{fence}\n{text}")
        return True


with tempfile.TemporaryDirectory() as folder, DistributedLock(f"sqlite:///{folder}/locks.db") as locks:
    url = f"sqlite:///{folder}/locks.db"
    ledger = FencedFile(Path(folder) / "ledger")
    command = [sys.executable, "-c", WORKER, url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        old_fence = int(worker.stdout.readline())
        print("the worker holds fence", old_fence, "and is now paused")
        os.kill(worker.pid, signal.SIGSTOP)

        with locks.lock("ledger", timeout=30) as successor:
            print("its lease expired; the next holder has fence", successor.fence)
            assert ledger.write(successor.fence, "by the next holder")

        os.kill(worker.pid, signal.SIGCONT)
        worker.stdin.write("\n")
        worker.stdin.flush()
        print("the worker is resumed; its lock is", worker.stdout.readline().strip())
        assert not ledger.write(old_fence, "too late")
        print("its late write is refused")
