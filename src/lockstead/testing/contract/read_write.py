"""Read-write locks, on every store that carries them."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from lockstead import (
    LockAcquisitionError,
)
from lockstead.testing.contract.rigs import Rig, ask, block, cannot, line, line_is


def test_readers_hold_together_and_writers_alone_in_the_order_they_came(rig: Rig) -> None:
    async def test() -> None:
        alice, bob = rig.client(), rig.client()
        if await cannot(alice.read_lock("x"), alice):
            return
        first, second = await ask(alice.read_lock("x").acquire()), await ask(bob.read_lock("x").acquire(0))
        assert not first.is_exclusive
        assert await ask(bob.write_lock("x").try_acquire()) is None
        inside: list[int] = []
        seen: list[list[int]] = []

        def waits(number: int, guard: Any, together: int) -> Any:
            async def wait() -> None:
                async with block(guard):
                    inside.append(number)
                    await rig.until(lambda: len(inside) == together or any(number in group for group in seen))
                    seen.append(sorted(inside))
                    inside.remove(number)

            return wait

        queue = [bob.write_lock("x"), alice.read_lock("x"), bob.read_lock("x"), alice.write_lock("x")]
        for number, guard in enumerate(queue):
            rig.start(waits(number, guard, 2 if number in {1, 2} else 1))
            await rig.until(partial(line_is, alice, 2, number + 1))
        assert await ask(bob.read_lock("x").try_acquire()) is None, "a writer is not overtaken"
        await ask(first.release())
        await ask(second.release())
        await rig.until(partial(line_is, alice, 0, 0))
        assert seen[0] == [0]
        assert seen[1] == [1, 2]
        assert seen[-1] == [3]

    rig.run(test())


def test_a_writer_may_read_too_and_a_reader_that_requests_the_write_side_is_refused(rig: Rig) -> None:
    async def test() -> None:
        client, other = rig.client(), rig.client()
        reading, writing = (kind("x", reentrant=True) for kind in (client.read_lock, client.write_lock))
        if await cannot(reading, client):
            return
        async with block(writing) as outer, block(reading) as inner:
            assert inner.fence == outer.fence
            assert outer.is_exclusive
            assert await line(client) == (1, 0)
            assert await ask(other.read_lock("x").try_acquire()) is None
        async with block(reading):
            async with block(reading):
                assert await line(client) == (1, 0)
            with pytest.raises(LockAcquisitionError, match="would wait for itself"):
                await ask(writing.acquire())
            assert await ask(writing.try_acquire()) is None
            assert await line(client) == (1, 0)
        assert await line(client) == (0, 0)
        assert await ask(other.write_lock("x").try_acquire()) is not None

    rig.run(test())
