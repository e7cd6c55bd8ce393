"""Readers and writers, permits, several names at once, and names that stay taken: on every store that carries them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from lockstead import (
    CapacityMismatchError,
    InvalidInputError,
    InvalidLockError,
    LockAcquisitionError,
    LockLostError,
    UnsupportedError,
)
from lockstead.core.model import WHOLE, Ask
from lockstead.core.store import Lingering
from lockstead.testing.contract.rigs import Rig, ask


async def cannot(guard: Any, client: Any) -> bool:
    """Tell whether the store does not carry what a guard would hold. If so, it must say so."""
    (wish, *_) = guard._plan.asks
    if client._engine.store.capabilities.carry(wish.capacity, wish.weight):
        return False
    for attempt in (guard.acquire, guard.try_acquire):
        with pytest.raises(UnsupportedError):
            await ask(attempt())
    assert await ask(client.inspect()) == []
    return True


@asynccontextmanager
async def block(guard: Any) -> AsyncIterator[Any]:
    """Hold something for a block of either driver."""
    if hasattr(guard, "__aenter__"):
        async with guard as handle:
            yield handle
    else:
        with guard as handle:
            yield handle


async def line(client: Any, name: str = "x") -> tuple[int, int]:
    """Count who holds a name, and who waits for it."""
    found = await client._engine.find(name)
    places = found.places if found else ()
    held = sum(place.acquired_at is not None for place in places)
    return held, len(places) - held


async def stands(client: Any, held: int, waiting: int, name: str = "x") -> bool:
    return await line(client, name) == (held, waiting)


async def names(client: Any) -> list[str]:
    return [info.name for info in await ask(client.inspect())]


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
            await rig.until(partial(stands, alice, 2, number + 1))
        assert await ask(bob.read_lock("x").try_acquire()) is None, "nobody overtakes a writer"
        await ask(first.release())
        await ask(second.release())
        await rig.until(partial(stands, alice, 0, 0))
        assert seen[0] == [0]
        assert seen[1] == [1, 2]
        assert seen[-1] == [3]

    rig.run(test())


def test_a_reader_of_its_own_writing_reads_and_a_writer_of_its_own_reading_is_refused_at_once(rig: Rig) -> None:
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
        await rig.until(partial(stands, alice, 3, 1))
        await ask(third.release())
        assert await ask(alice.semaphore("x", 5).try_acquire()) is None, "nobody overtakes a heavy one"
        await ask(first.release())
        await ask(second.release())
        await rig.until(lambda: got)
        assert got[0].is_exclusive
        assert await line(alice) == (1, 0)

    rig.run(test())


def test_permits_of_the_dead_come_back(rig: Rig) -> None:
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


def test_a_name_is_one_kind_of_thing_at_a_time(rig: Rig) -> None:
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


def test_several_names_are_held_together_or_not_at_all(rig: Rig) -> None:
    async def test() -> None:
        alice, bob = rig.client(), rig.client()
        for bad in ([], "abc", [""], ["a", 7]):
            with pytest.raises(InvalidInputError, match="name"):
                alice.multi_lock(bad)
        with pytest.raises(InvalidInputError, match="re-entered"):
            alice.multi_lock(["a"], reentrant=True)
        handle = await ask(alice.multi_lock(["c", "b", "c"]).acquire())
        assert handle.names == ("b", "c")
        assert handle.is_exclusive
        if rig.can.records:
            assert handle.fences == {info.name: info.fence for info in await ask(bob.inspect())}
        everything = bob.multi_lock(["d", "c", "a"], timeout=10)
        for patience in (0, 0.4):
            with pytest.raises(LockAcquisitionError) as refusal:
                await ask(everything.acquire(patience))
            assert (refusal.value.name, refusal.value.holder) == ("c", alice.holder_id)
            assert await names(bob) == ["b", "c"], "all or nothing"
        assert await ask(everything.try_acquire()) is None
        got: list[Any] = []

        async def wait() -> None:
            got.append(await ask(everything.acquire()))

        rig.start(wait)
        await rig.until(partial(stands, bob, 1, int(rig.has_line), "c"))
        await rig.until(partial(stands, bob, 1, 0, "a"))
        await ask(handle.release())
        await rig.until(lambda: got)
        assert await names(alice) == ["a", "c", "d"]
        assert got[0].fences["c"] > handle.fences["c"]
        assert got[0].remaining > 20, "all have been bought their full lives"
        await ask(got[0].extend(100))
        assert got[0].remaining > 95
        for info in await ask(alice.inspect()) if rig.can.expiry else ():
            assert info.expires_at > datetime.now(UTC) + timedelta(seconds=95)
        await ask(got[0].release())
        one = await ask(alice.multi_lock(["a"]).acquire())
        assert (one.names, await names(bob)) == (("a",), ["a"])

    rig.run(test())


def test_the_loss_of_one_of_several_names_is_the_loss_of_all(rig: Rig) -> None:
    async def test() -> None:
        alice, bob = rig.client(), rig.client()
        told: list[Any] = []
        guard = alice.multi_lock(["a", "b", "c"], ttl=0.3, on_lost=told.append)
        handle = await ask(guard.acquire())
        await ask(bob.force_release("b"))
        await ask(bob.force_release("c"))
        await rig.until(handle.lost.is_set)
        assert not handle.is_held
        with pytest.raises(LockLostError):
            handle.check()
        with pytest.raises(LockLostError):
            await ask(handle.release())
        assert await names(bob) == []
        if rig.driver == "asyncio":
            with pytest.raises(LockLostError):
                async with guard as cancelled:
                    await bob.force_release("b")
                    await asyncio.sleep(10)
            assert await names(bob) == []
            await rig.until(lambda: told == [handle, cancelled])
        await rig.until(lambda: told)
        assert told.count(handle) == 1
        successor = await ask(bob.multi_lock(["a", "b", "c"]).acquire(0))
        await ask(handle.release())
        assert successor.is_held
        with pytest.raises(InvalidLockError):
            await ask(handle.extend(5))

    rig.run(test())


def test_a_decorated_call_holds_names_made_of_its_arguments(rig: Rig) -> None:
    async def test() -> None:
        client = rig.client()
        held: list[list[str]] = []

        def look(giver: str, taker: str) -> str:
            held.append([info.name for info in client.inspect()])
            return giver + taker

        async def look_on(giver: str, taker: str) -> str:
            held.append([info.name for info in await client.inspect()])
            return giver + taker

        body = look if rig.driver == "threads" else look_on
        guard = client.multi_lock(["account:{taker}", "account:{giver}", lambda giver, taker: f"pair:{giver}-{taker}"])
        move = guard(body)
        assert await ask(move("b", "a")) == "ba"
        assert await ask(move("a", taker="a")) == "aa"
        assert held == [["account:a", "account:b", "pair:b-a"], ["account:a", "pair:a-a"]]
        with pytest.raises(InvalidInputError, match="decorator"):
            await ask(guard.acquire())
        assert await names(client) == []

    rig.run(test())


def test_a_name_stays_taken_however_its_holder_goes(rig: Rig) -> None:
    async def test() -> None:
        alice, bob, carol = rig.client(), rig.client(), rig.client()
        guard = alice.multi_lock(["a", "b"], at_least=30)
        if not isinstance(alice._engine.store, Lingering):
            with pytest.raises(UnsupportedError):
                await ask(guard.acquire())
            assert await names(bob) == []
            return
        async with block(guard) as handle:
            await ask(handle.extend(100))
        assert not handle.is_held
        await ask(alice.acquire("released", at_least=30))
        assert await ask(alice.release_all()) == 1
        outer = await ask(alice.acquire("entered", reentrant=True))
        await ask((await ask(alice.acquire("entered", reentrant=True, at_least=30))).release())
        await ask(outer.release())
        shares = rig.can.semaphore
        closed = carol.semaphore("closed", 2, at_least=30) if shares else carol.lock("closed", at_least=30)
        await ask(closed.acquire())
        await ask(carol.close())
        taken = await ask(bob.inspect())
        assert [info.name for info in taken] == ["a", "b", "closed", "entered", "released"]
        assert all(info.holders[0].lingers for info in taken)
        assert all(info.expires_at < datetime.now(UTC) + timedelta(seconds=31) for info in taken)
        assert await ask(bob.try_acquire("a")) is None
        if shares:
            assert await ask(bob.semaphore("closed", 2).try_acquire()) is not None, "a permit is taken, not the name"
        await ask(bob.force_release("a"))
        assert await ask(bob.try_acquire("a")) is not None

    rig.run(test())


def test_a_time_out_around_a_wait_or_inside_a_block_leaves_nothing(rig: Rig) -> None:
    """Tasks only: nobody can be interrupted in the midst of a thread's wait."""
    if rig.driver == "threads":
        return

    async def test() -> None:
        alice, bob = rig.client(), rig.client()
        kinds = [
            (alice.lock("x"), bob.multi_lock(["w", "x", "y"])),
            (alice.write_lock("x"), bob.read_lock("x")),
            (alice.semaphore("x", 3, 2), bob.semaphore("x", 3, 2)),
        ]
        for holder, waiter in kinds:
            if await cannot(holder, alice):
                continue
            async with holder:
                with pytest.raises(TimeoutError) as outcome:
                    async with asyncio.timeout(0.03), waiter:
                        pytest.fail("it is taken")
                assert not isinstance(outcome.value, LockAcquisitionError)
                assert await names(bob) == ["x"]
                assert await line(bob) == (1, 0)
            async with asyncio.timeout(5):
                async with waiter as handle:
                    with pytest.raises(TimeoutError):
                        async with asyncio.timeout(0.01):
                            await asyncio.sleep(10)
                    assert handle.is_held
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.03), waiter:
                    await asyncio.sleep(10)
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

        stack: Any = ExitStack() if rig.driver == "threads" else AsyncExitStack()
        enter_into = stack.enter_context if rig.driver == "threads" else stack.enter_async_context
        for _ in range(3):
            await ask(enter_into(guard))
        assert await line(client) == (3, 0)
        left: list[Any] = []

        async def leave() -> None:
            left.append(await ask(stack.close() if rig.driver == "threads" else stack.aclose()))

        rig.start(leave)
        await rig.until(lambda: left)
        assert await line(client) == (0, 0)

        entered: list[Any] = []

        async def only_enter() -> None:
            entered.append(await ask(guard.__enter__() if rig.driver == "threads" else guard.__aenter__()))

        for _ in range(3):
            rig.start(only_enter)
        await rig.until(lambda: len(entered) == 3)
        leave_block = guard.__exit__ if rig.driver == "threads" else guard.__aexit__
        for _ in range(3):
            await ask(leave_block(None, None, None))
        assert await line(client) == (0, 0)
        with pytest.raises(InvalidLockError, match="more often"):
            await ask(leave_block(None, None, None))

    rig.run(test())


def test_releasing_inside_the_block_is_fine(rig: Rig) -> None:
    async def test() -> None:
        client = rig.client()
        for guard in (client.lock("x"), client.multi_lock(["x", "y"])):
            async with block(guard) as handle:
                await ask(handle.release())
                assert await names(client) == []

    rig.run(test())
