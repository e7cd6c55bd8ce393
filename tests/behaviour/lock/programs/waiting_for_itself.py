"""Acquires by hand what it holds by hand: alone, or with a thread that could release it, and does."""

from __future__ import annotations

import json
import sys
import threading
import time

from lockstead import DistributedLock, LockAcquisitionError

locks = DistributedLock("memory://of-itself", ttl=2)
handle = locks.acquire("x")


def release_once_awaited() -> None:
    while not ((info := locks.info("x")) and info.waiting):
        time.sleep(0.002)
    handle.release()


if sys.argv[1] == "with_a_thread":
    threading.Thread(target=release_once_awaited).start()
try:
    locks.acquire("x", timeout=30).release()
    outcome = "acquired"
except LockAcquisitionError as error:
    outcome = str(error).partition(": ")[2].partition(": ")[0]
print(json.dumps({"outcome": outcome}), flush=True)
