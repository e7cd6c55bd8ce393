"""Crowds at what is shared: nobody gets too much, nothing is stranded, and everybody is served.

Once per family of stores; that they all keep the same rule is the contract's business.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import pytest

from lockstead import ClosedError, LockAcquisitionError
from lockstead.core.model import Ask
from lockstead.core.runtime import drive
from lockstead.testing.contract.rigs import Rig, ask, block, line
from tests.contract.rigs import STORES

Work = Callable[[], Coroutine[Any, Any, None]]
FAMILIES = {
    "memory": "threads",
    "sqlite": "threads",
    next(name for name in STORES if name.startswith("redis-")): "asyncio",
    next(name for name in STORES if name.startswith("postgres-")): "asyncio",
}


@pytest.fixture(params=FAMILIES)
def rig(request: pytest.FixtureRequest) -> Rig:
    return Rig(FAMILIES[request.param], STORES[request.param](request.getfixturevalue))


async def crowd(rig: Rig, works: Sequence[Work], cancelled: int = 0) -> None:
    """Run works side by side to their end, but cancel so many on the way where they can be."""
    if rig.driver == "asyncio":
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


def test_fifty_share_five_permits_while_some_give_up_and_some_die(rig: Rig) -> None:
    room = Room(5)
    served: list[int] = []

    async def test() -> None:
        clients = [rig.client() for _ in range(4)]
        doomed, stranger = rig.client(), rig.store()

        async def work(number: int) -> None:
            weight = 1 + number % 3
            for _ in range(2):
                guard = clients[number % 4].semaphore("x", 5, weight, timeout=30)
                async with block(guard) as handle, room.entered(weight):
                    await rig._runtime.sleep(random.random() * 0.004)
                    handle.check()
            served.append(number)

        async def give_up() -> None:
            with suppress(LockAcquisitionError):
                async with block(clients[0].semaphore("x", 5, 4, timeout=random.random() * 0.1)), room.entered(4):
                    pass

        async def die(number: int) -> None:
            await stranger.join(Ask("x", f"dead/{number}", ttl=0.3, heartbeat=0.3, capacity=5), 5.0)

        async def die_with_the_client() -> None:
            with suppress(ClosedError):
                await ask(doomed.semaphore("x", 5).acquire())

        async def close() -> None:
            await rig._runtime.sleep(0.1)
            await ask(doomed.close())

        works: list[Work] = [partial(work, number) for number in range(36)]
        works += [partial(die, number) for number in range(4)]
        works += [*[give_up] * 5, *[die_with_the_client] * 4, close]
        await crowd(rig, works, cancelled=10)
        assert len(served) >= 26
        assert room.most == 5, "it was full"
        everything = await ask(clients[0].semaphore("x", 5, 5, timeout=10).acquire())
        assert await line(clients[0]) == (1, 0)
        await ask(everything.release())

    rig.run(test())


def test_nobody_who_reads_or_writes_is_overtaken(rig: Rig) -> None:
    room = Room(1000)
    mutex = threading.Lock()
    steps: list[tuple[int, bool, bool]] = []

    async def test() -> None:
        clients = [rig.client() for _ in range(4)]

        async def work(number: int) -> None:
            writes = number % 5 == 0
            client = clients[number % 4]
            for _ in range(3):
                guard = (client.write_lock if writes else client.read_lock)("x", timeout=30)
                async with block(guard) as handle, room.entered(1000 if writes else 1):
                    with mutex:
                        steps.append((handle.fence, writes, True))
                    await rig._runtime.sleep(random.random() * 0.002)
                    with mutex:
                        steps.append((handle.fence, writes, False))

        await crowd(rig, [partial(work, number) for number in range(25)])
        assert await line(clients[0]) == (0, 0)

    rig.run(test())
    assert len(steps) == 25 * 3 * 2
    assert room.most == 1000
    for number, (fence, writes, enters) in enumerate(steps):
        if writes and enters:
            assert all(other <= fence for other, _, _ in steps[:number]), "whoever came before him went in before him"
            assert all(other >= fence for other, _, _ in steps[number:]), "and whoever came after him after him"


def test_overlapping_sets_of_names_are_all_had_in_the_end(rig: Rig) -> None:
    names = "abcdef"
    rounds = 50 if rig.driver == "threads" else 15
    rooms = {name: Room(1) for name in names}
    had: list[int] = []

    async def test() -> None:
        clients = [rig.client() for _ in range(4)]

        async def work(number: int) -> None:
            for _ in range(rounds):
                chosen = random.sample(names, random.randint(2, 4))
                async with block(clients[number % 4].multi_lock(chosen, timeout=60)) as handle:
                    for name in handle.names:
                        async with rooms[name].entered(1):
                            handle.check()
                had.append(number)

        await crowd(rig, [partial(work, number) for number in range(20)])
        assert await ask(clients[0].inspect()) == []

    rig.run(test())
    assert len(had) == 20 * rounds
