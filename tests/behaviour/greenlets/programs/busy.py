"""Use a file whose write lock another process has. Usage: busy URL.

It prints `ready` and reads a line, by which the file is locked.
"""

from __future__ import annotations

import sys

import gevent

from lockstead import DistributedLock
from tests.behaviour.greenlets.programs.hub import ticking
from tests.harness.conditions import DEADLINE

locks = DistributedLock(sys.argv[1])
locks.is_locked("warm-up")
print("ready", flush=True)
sys.stdin.readline()
with ticking():
    users = [gevent.spawn(locks.acquire, f"job-{number}", timeout=DEADLINE) for number in range(5)]
    gevent.sleep(0.1)
    assert not any(user.ready() for user in users), "the file was not locked"
    gevent.joinall(users, raise_error=True)
print("done")
