"""Stand for election until SIGTERM, and write down when it surely led: candidate.py JOURNAL TTL URL [OPTION=VALUE].

A line of the journal is a fence and a moment just before the leadership said that it leads.
"""

import os
import signal
import sys
import threading
import time

from lockstead import DistributedLock, Leadership

journal_path, ttl, url, *pairs = sys.argv[1:]
journal = os.open(journal_path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)


def lead(leadership: Leadership) -> None:
    while True:
        moment = time.clock_gettime(time.CLOCK_BOOTTIME)
        if not leadership.is_leader:
            return
        os.write(journal, f"{leadership.fence} {moment}\n".encode())
        time.sleep(0.003)


stopped = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stopped.set())
with DistributedLock(url, **dict(pair.split("=", 1) for pair in pairs)) as locks:  # type: ignore[arg-type]
    election = locks.election("chief", ttl=float(ttl), metadata={"journal": journal_path}, on_elected=lead)
    election.start()
    stopped.wait()
    election.stop()
