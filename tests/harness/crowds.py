"""Many clients at what is shared."""

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


async def crowd(rig: Rig, works: Sequence[Work], cancelled: int = 0) -> None:
    """Run works side by side to their end, but cancel so many on the way where they can be."""
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


class Room:
    """Counts who is inside, and fails where that is too much."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._inside = 0
        self._mutex = threading.Lock()
        self.most = 0

    @asynccontextmanager
    async def entered(self, weight: int) -> AsyncIterator[None]:
        with self._mutex:
            self._inside += weight
            self.most = max(self.most, self._inside)
            assert self._inside <= self._capacity
        try:
            yield
        finally:
            with self._mutex:
                self._inside -= weight
