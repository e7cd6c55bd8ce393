"""Keep timeouts and signal losses while the server is silent. Usage: silence URL.

It prints `ready` and reads a line, by which the server has fallen silent.
"""

from __future__ import annotations

import os
import sys
import time

import gevent

from lockstead import DistributedLock, LockAcquisitionError, StoreError
from tests.behaviour.greenlets.programs.hub import run_all, ticking
from tests.harness.conditions import DEADLINE

TTL = 2.0


class Silence:
    def __init__(self, url: str) -> None:
        self.locks = DistributedLock(url)
        self.handle = self.locks.acquire("held", ttl=TTL)
        self.waiter = gevent.spawn(self.wait_in_line)
        gevent.sleep(0.5)  # long enough to stand in line; it would be no less right if it did not

    def wait_in_line(self) -> float:
        try:
            self.locks.acquire("held", timeout=2)
        except (LockAcquisitionError, StoreError):
            return time.monotonic()
        raise AssertionError("it was acquired from a silent server")

    def begin(self) -> None:
        self.began = time.monotonic()

    def an_acquisition_ends_in_time(self) -> None:
        try:
            self.locks.acquire("free", timeout=1)
        except (LockAcquisitionError, StoreError) as error:
            waited = time.monotonic() - self.began
            print(f"acquire: {waited:.2f} s, {error}")
            assert 0.9 < waited < 2.5, waited
        else:
            raise AssertionError("it was acquired from a silent server")

    def a_waiter_ends_in_time(self) -> None:
        if not self.locks._engine.store.capabilities.expiry:
            return  # of an advisory lock: it first tries for seconds to leave the queue, in threads as well
        waited = self.waiter.get(timeout=DEADLINE) - self.began
        print(f"waiter: {waited:.2f} s")
        assert waited < 3.0, waited

    def the_loss_is_signalled_in_time(self) -> None:
        assert self.handle.lost.wait(DEADLINE)
        waited = time.monotonic() - self.began
        print(f"lost: {waited:.2f} s")
        assert waited < TTL + 0.3, waited


if __name__ == "__main__":
    silence = Silence(sys.argv[1])
    print("ready", flush=True)
    sys.stdin.readline()
    silence.begin()
    with ticking():
        run_all(
            [
                silence.an_acquisition_ends_in_time,
                silence.a_waiter_ends_in_time,
                silence.the_loss_is_signalled_in_time,
            ]
        )
    print("done", flush=True)
    os._exit(0)  # or the exit would try for a second to release
