"""Many readers and writers: none is overtaken."""

from __future__ import annotations

import random
import threading
from functools import partial

import pytest

from lockstead.testing.contract.rigs import Rig, block, line
from tests.harness.contention import OccupancyCounter, run_concurrently

pytestmark = pytest.mark.each_family


def test_no_reader_and_no_writer_is_overtaken(rig: Rig) -> None:
    counter = OccupancyCounter(1000)
    mutex = threading.Lock()
    steps: list[tuple[int, bool, bool]] = []

    async def test() -> None:
        clients = [rig.client() for _ in range(4)]

        async def work(number: int) -> None:
            writes = number % 5 == 0
            client = clients[number % 4]
            for _ in range(3):
                guard = (client.write_lock if writes else client.read_lock)("x", timeout=30)
                async with block(guard) as handle, counter.count(1000 if writes else 1):
                    with mutex:
                        steps.append((handle.fence, writes, True))
                    await rig._runtime.sleep(random.random() * 0.002)
                    with mutex:
                        steps.append((handle.fence, writes, False))

        await run_concurrently(rig, [partial(work, number) for number in range(25)])
        assert await line(clients[0]) == (0, 0)

    rig.run(test())
    assert len(steps) == 25 * 3 * 2
    assert counter.highest == 1000
    for number, (fence, writes, enters) in enumerate(steps):
        if writes and enters:
            assert all(other <= fence for other, _, _ in steps[:number]), (
                "earlier requests were granted before the writer"
            )
            assert all(other >= fence for other, _, _ in steps[number:]), "later requests were granted after the writer"
