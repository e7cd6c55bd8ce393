"""Take one lock again and again, and write down when it was surely held: python worker.py URL DRIVER LOG SEED."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from typing import Any, TextIO

from leasehold import AsyncDistributedLock, DistributedLock, LockError, RetryPolicy

NAME = "contended"
TTL = 2.0
RETRY = RetryPolicy(max_retries=5, max_delay=0.2)


def now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Watch:
    """The part of a hold during which the handle said that it is held."""

    def __init__(self, handle: Any, chance: random.Random) -> None:
        self.handle = handle
        self.entered = now()
        self.seen = self.entered if handle.is_held else None
        self.until = self.entered + (1.5 * TTL if chance.random() < 0.03 else chance.random() * 0.05)

    def goes_on(self) -> bool:
        moment = now()
        if not self.handle.is_held:
            return False
        self.seen = moment
        return moment < self.until

    def write(self, log: TextIO) -> None:
        if self.seen is not None:
            log.write(json.dumps([self.handle.fence, self.entered, self.seen]) + "\n")
            log.flush()


def work(url: str, log: TextIO, chance: random.Random) -> None:
    locks = DistributedLock(url, ttl=TTL, retry=RETRY)
    while True:
        try:
            with locks.lock(NAME, timeout=10) as handle:
                watch = Watch(handle, chance)
                while watch.goes_on():
                    time.sleep(0.005)
                watch.write(log)
        except LockError as error:
            print(error, file=sys.stderr)
        time.sleep(chance.random() * 0.02)


async def work_async(url: str, log: TextIO, chance: random.Random) -> None:
    locks = AsyncDistributedLock(url, ttl=TTL, retry=RETRY)
    while True:
        try:
            handle = await locks.acquire(NAME, timeout=10)
            watch = Watch(handle, chance)
            while watch.goes_on():  # noqa: ASYNC110 - time passing is what is waited for
                await asyncio.sleep(0.005)
            watch.write(log)
            await handle.release()
        except LockError as error:
            print(error, file=sys.stderr)
        await asyncio.sleep(chance.random() * 0.02)


def main() -> None:
    url, driver, path, seed = sys.argv[1:]
    chance = random.Random(int(seed))
    with open(path, "w", encoding="utf-8") as log:
        if driver == "threads":
            work(url, log, chance)
        else:
            asyncio.run(work_async(url, log, chance))


if __name__ == "__main__":
    main()
