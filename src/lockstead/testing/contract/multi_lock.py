"""Several names held at once, on every store."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from lockstead import (
    InvalidInputError,
    InvalidLockError,
    LockAcquisitionError,
    LockLostError,
)
from lockstead.testing.contract.rigs import Rig, ask, line_is, names


def test_several_names_are_held_together_or_not_at_all(rig: Rig) -> None:
    async def test() -> None:
        alice, bob = rig.client(), rig.client()
        for bad in ([], "abc", [""], ["a", 7]):
            with pytest.raises(InvalidInputError, match="name"):
                alice.multi_lock(bad)
        with pytest.raises(InvalidInputError, match="not re-entrant"):
            alice.multi_lock(["a"], reentrant=True)
        handle = await ask(alice.multi_lock(["c", "b", "c"]).acquire())
        assert handle.names == ("b", "c")
        assert handle.is_exclusive
        if rig.can.records:
            assert handle.fences == {info.name: info.fence for info in await ask(bob.inspect())}
        everything = bob.multi_lock(["d", "c", "a"], timeout=10)
        for timeout in (0, 0.4):
            with pytest.raises(LockAcquisitionError) as refusal:
                await ask(everything.acquire(timeout))
            assert (refusal.value.name, refusal.value.holder) == ("c", alice.holder_id)
            assert await names(bob) == ["b", "c"], "all or nothing"
        assert await ask(everything.try_acquire()) is None
        got: list[Any] = []

        async def wait() -> None:
            got.append(await ask(everything.acquire()))

        rig.start(wait)
        await rig.until(partial(line_is, bob, 1, int(rig.has_line), "c"))
        await rig.until(partial(line_is, bob, 1, 0, "a"))
        await ask(handle.release())
        await rig.until(lambda: got)
        assert await names(alice) == ["a", "c", "d"]
        assert got[0].fences["c"] > handle.fences["c"]
        assert got[0].remaining > 20, "the full ttl of all was claimed"
        await ask(got[0].extend(100))
        assert got[0].remaining > 95
        for info in await ask(alice.inspect()) if rig.can.expiry else ():
            assert info.expires_at > datetime.now(UTC) + timedelta(seconds=95)
        await ask(got[0].release())
        one = await ask(alice.multi_lock(["a"]).acquire())
        assert (one.names, await names(bob)) == (("a",), ["a"])

    rig.run(test())


def test_the_loss_of_one_name_of_a_multi_lock_is_the_loss_of_all(rig: Rig) -> None:
    async def test() -> None:
        alice, bob = rig.client(), rig.client()
        notified: list[Any] = []
        guard = alice.multi_lock(["a", "b", "c"], ttl=0.3, on_lost=notified.append)
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
        if rig.runtime_name == "asyncio":
            with pytest.raises(LockLostError):
                async with guard as cancelled:
                    await bob.force_release("b")
                    await asyncio.sleep(10)
            assert await names(bob) == []
            await rig.until(lambda: notified == [handle, cancelled])
        await rig.until(lambda: notified)
        assert notified.count(handle) == 1
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

        body = look if rig.runtime_name == "threads" else look_on
        guard = client.multi_lock(["account:{taker}", "account:{giver}", lambda giver, taker: f"pair:{giver}-{taker}"])
        move = guard(body)
        assert await ask(move("b", "a")) == "ba"
        assert await ask(move("a", taker="a")) == "aa"
        assert held == [["account:a", "account:b", "pair:b-a"], ["account:a", "pair:a-a"]]
        with pytest.raises(InvalidInputError, match="decorator"):
            await ask(guard.acquire())
        assert await names(client) == []

    rig.run(test())
