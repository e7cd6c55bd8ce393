"""Names that stay reserved after their release, on every store that can reserve."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from lockstead import (
    LockAcquisitionError,
    UnsupportedError,
)
from lockstead.core.store import Reserving
from lockstead.testing.contract.rigs import Rig, ask, block, cannot_reserve, names


def test_a_name_is_reserved_however_its_holder_ends(rig: Rig) -> None:
    async def test() -> None:
        alice, bob, carol = rig.client(), rig.client(), rig.client()
        guard = alice.multi_lock(["a", "b"], at_least=30)
        if not isinstance(alice._engine.store, Reserving):
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
        assert all(info.holders[0].reserved for info in taken)
        assert all(info.expires_at < datetime.now(UTC) + timedelta(seconds=31) for info in taken)
        assert await ask(bob.try_acquire("a")) is None
        if shares:
            assert await ask(bob.semaphore("closed", 2).try_acquire()) is not None, "a permit is taken, not the name"
        await ask(bob.force_release("a"))
        assert await ask(bob.try_acquire("a")) is not None

    rig.run(test())


def test_a_reserved_name_keeps_waiters_out_until_the_reservation_ends(rig: Rig) -> None:
    async def test() -> None:
        alice, bob = rig.client(), rig.client()
        if cannot_reserve(alice):
            with pytest.raises(UnsupportedError):
                await ask(alice.acquire("x", at_least=0.2))
            assert await ask(alice.info("x")) is None
            return
        await ask((await ask(alice.acquire("y", at_least=60))).release())
        with pytest.raises(LockAcquisitionError, match=r"reserved the name.*; try again after that"):
            await ask(bob.acquire("y", timeout=0))
        started = bob._engine.runtime.now()
        await ask((await ask(alice.acquire("x", at_least=0.3))).release())
        await ask((await ask(bob.acquire("x", timeout=10))).release())
        assert bob._engine.runtime.now() - started >= 0.3

    rig.run(test())
