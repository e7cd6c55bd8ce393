"""Many clients want overlapping sets of names: each gets its own in the end."""

from __future__ import annotations

import random
from functools import partial

import pytest

from lockstead.testing.contract.rigs import Rig, ask, block
from tests.harness.contention import OccupancyCounter, run_concurrently

pytestmark = pytest.mark.each_family


def test_overlapping_sets_of_names_are_all_acquired_in_the_end(rig: Rig) -> None:
    names = "abcdef"
    rounds = 50 if rig.runtime_name == "threads" else 15
    counters = {name: OccupancyCounter(1) for name in names}
    had: list[int] = []

    async def test() -> None:
        clients = [rig.client() for _ in range(4)]

        async def work(number: int) -> None:
            for _ in range(rounds):
                chosen = random.sample(names, random.randint(2, 4))
                async with block(clients[number % 4].multi_lock(chosen, timeout=60)) as handle:
                    for name in handle.names:
                        async with counters[name].count(1):
                            handle.check()
                had.append(number)

        await run_concurrently(rig, [partial(work, number) for number in range(20)])
        assert await ask(clients[0].inspect()) == []

    rig.run(test())
    assert len(had) == 20 * rounds
