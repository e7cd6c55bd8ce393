"""Many clients that contend for one name."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from lockstead.core.runtime import drive
from lockstead.testing.contract.rigs import Rig

Work = Callable[[], Coroutine[Any, Any, None]]


async def run_concurrently(rig: Rig, works: Sequence[Work], cancelled: int = 0) -> None:
    """Run works concurrently to their end; under asyncio, cancel the first `cancelled` of them on the way."""
    if rig.runtime_name == "asyncio":
        tasks = [asyncio.create_task(work()) for work in works]
        for task in tasks[:cancelled]:
            asyncio.get_running_loop().call_later(random.random() * 0.3, task.cancel)
        await asyncio.wait(tasks)
        for task in tasks:
            with suppress(asyncio.CancelledError):
                task.result()
        return
    failures: list[BaseException] = []

    def run(work: Work) -> None:
        try:
            drive(work())
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


class OccupancyCounter:
    """Counts the weight that is inside, and fails where it exceeds the capacity."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._inside = 0
        self._mutex = threading.Lock()
        self.highest = 0

    @asynccontextmanager
    async def count(self, weight: int) -> AsyncIterator[None]:
        with self._mutex:
            self._inside += weight
            self.highest = max(self.highest, self._inside)
            assert self._inside <= self._capacity
        try:
            yield
        finally:
            with self._mutex:
                self._inside -= weight
