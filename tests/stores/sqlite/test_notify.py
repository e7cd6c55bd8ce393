"""The socket behind SQLite's wake-ups: what becomes of it when it is not closed, and after a fork."""

from __future__ import annotations

import gc
import threading
import time
from pathlib import Path

from lockstead import DistributedLock
from tests.harness.conditions import eventually
from tests.harness.forks import in_child, succeeds


def listeners() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "lockstead-notify"}


def wait_once(locks: DistributedLock) -> None:
    """Stand in line behind oneself, so that the client listens."""
    with locks.lock("x"):
        assert locks.try_acquire("x") is None
        waiting = threading.Thread(target=lambda: locks.acquire("x", timeout=10).release())
        waiting.start()
        while not (info := locks.info("x")) or info.waiting == 0:
            time.sleep(0.005)
    waiting.join()


def test_a_client_that_is_dropped_unclosed_leaves_no_thread_and_no_socket(tmp_path: Path) -> None:
    before = listeners()
    locks = DistributedLock(f"sqlite:///{tmp_path}/locks.db")
    wait_once(locks)
    (mine,) = listeners() - before
    del locks

    def has_ended() -> bool:
        gc.collect()
        return not mine.is_alive()

    eventually(has_ended, "the keeper, which has a reference until it has been idle for a while, ends", within=20)


def test_a_child_that_ends_does_not_silence_its_parent(tmp_path: Path) -> None:
    with DistributedLock(f"sqlite:///{tmp_path}/locks.db") as locks:
        wait_once(locks)
        (mine,) = [thread for thread in listeners() if thread.is_alive()][-1:]
        succeeds(in_child(locks.close))
        wait_once(locks)
        assert mine.is_alive()
