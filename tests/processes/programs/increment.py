"""Increment a counter under a lock a number of times; on request, die at a given point of a given section."""

import os
import signal
import sys
import time

from lockstead import DistributedLock
from tests.processes.journal import END, INTENT, Entry, note, read_counter, write_counter

database, counter_path, log_path, ttl, times, dies_in, dies_at = sys.argv[1:]


def now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def maybe_die(section: int, point: int) -> None:
    if section == int(dies_in) and point == int(dies_at):
        os.kill(os.getpid(), signal.SIGKILL)


counter = os.open(counter_path, os.O_RDWR)
log = os.open(log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
pid = os.getpid()
with DistributedLock(f"sqlite:///{database}", ttl=float(ttl)) as locks:
    for section in range(int(times)):
        with locks.lock("counter") as handle:
            maybe_die(section, 0)
            found = read_counter(counter)
            note(log, Entry(INTENT, handle.fence, found, pid, now()))
            maybe_die(section, 1)
            handle.check()
            write_counter(counter, found + 1)
            maybe_die(section, 2)
            note(log, Entry(END, handle.fence, found, pid, now()))
            maybe_die(section, 3)
