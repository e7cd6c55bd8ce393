"""Many clients share permits: never too many, none stranded, all served."""

from __future__ import annotations

import random
from contextlib import suppress
from functools import partial

import pytest

from lockstead import ClosedError, LockAcquisitionError
from lockstead.core.model import Ask
from lockstead.testing.contract.rigs import Rig, ask, block, line
from tests.harness.contention import OccupancyCounter, Work, run_concurrently

pytestmark = pytest.mark.each_family


def test_fifty_clients_share_five_permits_while_some_give_up_and_some_die(rig: Rig) -> None:
    counter = OccupancyCounter(5)
    served: list[int] = []

    async def test() -> None:
        clients = [rig.client() for _ in range(4)]
        doomed, other_store = rig.client(), rig.store()

        async def work(number: int) -> None:
            weight = 1 + number % 3
            for _ in range(2):
                guard = clients[number % 4].semaphore("x", 5, weight, timeout=30)
                async with block(guard) as handle, counter.count(weight):
                    await rig._runtime.sleep(random.random() * 0.004)
                    handle.check()
            served.append(number)

        async def give_up() -> None:
            with suppress(LockAcquisitionError):
                async with block(clients[0].semaphore("x", 5, 4, timeout=random.random() * 0.1)), counter.count(4):
                    pass

        async def die(number: int) -> None:
            await other_store.join(Ask("x", f"dead/{number}", ttl=0.3, heartbeat=0.3, capacity=5), 5.0)

        async def die_with_the_client() -> None:
            with suppress(ClosedError):
                await ask(doomed.semaphore("x", 5).acquire())

        async def close() -> None:
            await rig._runtime.sleep(0.1)
            await ask(doomed.close())

        works: list[Work] = [partial(work, number) for number in range(36)]
        works += [partial(die, number) for number in range(4)]
        works += [*[give_up] * 5, *[die_with_the_client] * 4, close]
        await run_concurrently(rig, works, cancelled=10)
        assert len(served) >= 26
        assert counter.highest == 5, "it was full"
        everything = await ask(clients[0].semaphore("x", 5, 5, timeout=10).acquire())
        assert await line(clients[0]) == (1, 0)
        await ask(everything.release())

    rig.run(test())
