"""End the servers and remove the directories of a process that is gone.

Runs as a script of its own. Lines on its standard input control it; the input ends when that process does, also by
SIGKILL. The parent-death signal of the kernel will not do: it is sent when the *thread* that started a server ends.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import suppress


class Reaper:
    """The other end of the pipe."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._script = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,
        )
        atexit.register(self._leave)

    def send(self, verb: str, what: object) -> None:
        assert self._script.stdin is not None
        self._script.stdin.write(f"{verb} {what}\n".encode())

    def _leave(self) -> None:
        if os.getpid() == self._owner:
            self._script.communicate()


_reaper: Reaper | None = None
_lock = threading.Lock()


def reaper() -> Reaper:
    """Return this process's reaper, started with the first server."""
    global _reaper
    with _lock:
        if _reaper is None:
            _reaper = Reaper()
        return _reaper


def children(pid: int) -> list[int]:
    """List the processes that a process forked: those of PostgreSQL are in sessions of their own."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        # It may be gone by now.
        with suppress(OSError), open(f"/proc/{name}/stat") as stat:
            if int(stat.read().rpartition(")")[2].split()[1]) == pid:
                found.append(int(name))
    return found


def kill_all(leader: int) -> list[int]:
    """Kill a process with all it forked, and return those."""
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGSTOP)  # so that it forks no more
    forked = children(leader)
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
    for pid in forked:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return forked


def remove_segment(identifier: int) -> None:
    """Remove shared memory of System V, which outlives the killed processes that had it."""
    ctypes.CDLL(None).shmctl(identifier, 0, None)


def _stand_by() -> None:
    sessions: set[int] = set()
    segments: set[int] = set()
    directories: set[str] = set()
    for line in sys.stdin:
        verb, _, what = line.rstrip("\n").partition(" ")
        if verb == "watch":
            sessions.add(int(what))
        elif verb == "forget":
            sessions.discard(int(what))
        elif verb == "segment":
            segments.add(int(what))
        elif verb == "remove":
            directories.add(what)
        elif verb == "removed":
            directories.discard(what)
    for session in sessions:
        kill_all(session)
    for segment in segments:
        remove_segment(segment)
    for directory in directories:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    _stand_by()
