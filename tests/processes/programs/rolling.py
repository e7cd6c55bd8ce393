"""Work under one lock and note when each section begins and ends: rolling.py URL TTL JOURNAL [release_on]."""

import os
import signal
import sys
import time

from lockstead import DistributedLock

url, ttl, journal, *flags = sys.argv[1:]
notes = os.open(journal, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
locks = DistributedLock(url, ttl=float(ttl))
if flags:
    locks.release_on(signal.SIGTERM)


def now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


while True:
    with locks.lock("job"):
        os.write(notes, f"begin {now()!r}\n".encode())
        time.sleep(0.05)
        os.write(notes, f"end {now()!r}\n".encode())
