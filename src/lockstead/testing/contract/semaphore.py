"""Semaphores, on every store that carries them."""

from __future__ import annotations

from contextlib import AsyncExitStack, ExitStack
from functools import partial
from typing import Any

import pytest

from lockstead import (
    CapacityMismatchError,
    InvalidInputError,
    InvalidLockError,
    LockAcquisitionError,
)
from lockstead.core.model import WHOLE, Ask
from lockstead.testing.contract.rigs import Rig, ask, block, cannot, line, line_is, names


def test_permits_are_given_by_weight_and_never_too_many(rig: Rig) -> None:
    async def test() -> None:
        alice, bob = rig.client(), rig.client()
        for bad in ((0,), (-1,), (True,), ("5",), (WHOLE,), (5, 0), (5, 6), (5, 1.0)):
            with pytest.raises(InvalidInputError, match=r"permits|weight"):
                alice.semaphore("x", *bad)
        if await cannot(alice.semaphore("x", 5, 2), alice):
            return
        first = await ask(alice.semaphore("x", 5, 2).acquire())
        second = await ask(bob.semaphore("x", 5, 2).acquire(0))
        assert not first.is_exclusive
        assert await ask(bob.semaphore("x", 5, 2).try_acquire()) is None
        third = await ask(bob.semaphore("x", 5).acquire(0))
        with pytest.raises(LockAcquisitionError) as refusal:
            await ask(bob.semaphore("x", 5).acquire(0.05))
        assert refusal.value.holder == alice.holder_id
        assert await line(alice) == (3, 0)
        got: list[Any] = []

        async def wait() -> None:
            got.append(await ask(bob.semaphore("x", 5, 5, timeout=10).acquire()))

        rig.start(wait)
        await rig.until(partial(line_is, alice, 3, 1))
        await ask(third.release())
        assert await ask(alice.semaphore("x", 5).try_acquire()) is None, "a heavy waiter is not overtaken"
        await ask(first.release())
        await ask(second.release())
        await rig.until(lambda: got)
        assert got[0].is_exclusive
        assert await line(alice) == (1, 0)

    rig.run(test())


def test_permits_of_dead_holders_are_granted_again_after_their_ttl(rig: Rig) -> None:
    async def test() -> None:
        alice, bob = rig.client(), rig.client()
        if await cannot(alice.semaphore("x", 3), alice):
            return
        await rig.store().join(Ask("x", "dead/1", 0.3, 0.3, capacity=3, weight=2), 5.0)
        kept = await ask(alice.semaphore("x", 3).acquire())
        heavy = await ask(bob.semaphore("x", 3, 2, timeout=10).acquire())
        assert kept.is_held
        assert heavy.is_held
        assert await line(bob) == (2, 0)
        await ask(alice.close())
        assert await ask(bob.semaphore("x", 3).try_acquire()) is not None

    rig.run(test())


def test_another_capacity_raises_capacity_mismatch(rig: Rig) -> None:
    async def test() -> None:
        alice, bob = rig.client(), rig.client()
        if await cannot(alice.semaphore("x", 3), alice):
            return
        kinds = {
            1: (alice.lock("x"), bob.lock("x")),
            3: (alice.semaphore("x", 3), bob.semaphore("x", 3)),
            4: (alice.semaphore("x", 4), bob.semaphore("x", 4)),
            WHOLE: (alice.read_lock("x"), bob.write_lock("x")),
        }
        for stored, (held, _) in kinds.items():
            async with block(held):
                for asked, (_, guard) in kinds.items():
                    for attempt in () if asked == stored else (guard.acquire, guard.try_acquire):
                        with pytest.raises(CapacityMismatchError, match="'x' is in use as") as mismatch:
                            await ask(attempt())
                        error = mismatch.value
                        assert (error.name, error.stored, error.asked) == ("x", stored, asked)
                if stored != 1:
                    with pytest.raises(CapacityMismatchError):
                        await ask(bob.multi_lock(["w", "x"]).acquire())
                assert await names(bob) == ["x"]
                assert await line(bob) == (1, 0)
        assert await names(bob) == []

    rig.run(test())


def test_a_guard_may_be_entered_by_many_at_a_time_and_left_by_another(rig: Rig) -> None:
    async def test() -> None:
        client = rig.client()
        guard = client.semaphore("x", 3)
        if await cannot(guard, client):
            return
        inside: list[int] = []
        most: list[int] = []
        done: list[int] = []

        async def enter(number: int) -> None:
            for _ in range(2):
                async with block(guard) as handle:
                    inside.append(number)
                    most.append(len(inside))
                    await rig.until(lambda: len(inside) > 1 or len(done) > 5)
                    handle.check()
                    inside.remove(number)
            done.append(number)

        for number in range(8):
            rig.start(partial(enter, number))
        await rig.until(lambda: len(done) == 8)
        assert 1 < max(most) <= 3
        assert await line(client) == (0, 0)

        stack: Any = ExitStack() if rig.runtime_name == "threads" else AsyncExitStack()
        enter_into = stack.enter_context if rig.runtime_name == "threads" else stack.enter_async_context
        for _ in range(3):
            await ask(enter_into(guard))
        assert await line(client) == (3, 0)
        left: list[Any] = []

        async def leave() -> None:
            left.append(await ask(stack.close() if rig.runtime_name == "threads" else stack.aclose()))

        rig.start(leave)
        await rig.until(lambda: left)
        assert await line(client) == (0, 0)

        entered: list[Any] = []

        async def only_enter() -> None:
            entered.append(await ask(guard.__enter__() if rig.runtime_name == "threads" else guard.__aenter__()))

        for _ in range(3):
            rig.start(only_enter)
        await rig.until(lambda: len(entered) == 3)
        leave_block = guard.__exit__ if rig.runtime_name == "threads" else guard.__aexit__
        for _ in range(3):
            await ask(leave_block(None, None, None))
        assert await line(client) == (0, 0)
        with pytest.raises(InvalidLockError, match="more often"):
            await ask(leave_block(None, None, None))

    rig.run(test())
