"""Jobs that one of many clients runs, on every store that can carry them."""

from __future__ import annotations

import time
from typing import Any

import pytest

from lockstead import InvalidInputError, LockLostError, UnsupportedError
from lockstead.testing.contract.rigs import Rig, as_function, ask, cannot_reserve


def test_of_many_clients_that_fire_a_tick_one_runs_it(rig: Rig) -> None:
    async def test() -> None:
        clients = [rig.client() for _ in range(3)]
        if cannot_reserve(clients[0]):
            job = clients[0].singleton("cron:daily", at_most=60, at_least=60)(as_function(rig, lambda: "ran"))
            with pytest.raises(UnsupportedError):
                await ask(job())
            plain = clients[0].singleton("cron:daily", at_most=60)(as_function(rig, lambda: "ran"))
            assert await ask(plain()) == "ran"
            return
        jobs = [
            client.singleton("cron:daily", at_most=60, at_least=60)(as_function(rig, lambda: "ran"))
            for client in clients
        ]
        assert [await ask(job()) for job in jobs] == ["ran", None, None]
        info = await ask(clients[0].info("cron:daily"))
        assert info.holders[0].reserved
        assert 50 < (info.expires_at - info.acquired_at).total_seconds() <= 61

    rig.run(test())


def test_a_ttl_apart_from_at_most_is_renewed_until_then(rig: Rig) -> None:
    async def test() -> None:
        alice, bob = rig.client(), rig.client()
        if not alice._engine.store.capabilities.expiry:
            return
        job = alice.singleton("cron:daily", at_most=1.5, ttl=0.5)
        running = await ask(job.try_acquire())
        began = time.monotonic()

        async def can_run() -> Any:
            return await ask(bob.singleton("cron:daily", at_most=60).try_acquire())

        await rig.until(can_run)
        assert 1.2 < time.monotonic() - began < 10
        assert not running.is_held
        with pytest.raises(InvalidInputError, match="ttl must not be longer than at_most"):
            alice.singleton("cron:daily", at_most=5, ttl=6)

    rig.run(test())


def test_a_job_that_died_is_free_after_at_most(rig: Rig) -> None:
    async def test() -> None:
        alice, bob = rig.client(), rig.client()
        if not alice._engine.store.capabilities.expiry:
            return
        assert await ask(alice.singleton("cron:weekly", at_most=60).try_acquire())
        assert await ask(bob.singleton("cron:weekly", at_most=60).try_acquire()) is None
        tick = {"at_most": 0.3, "at_least": 0.0 if cannot_reserve(alice) else 0.3}
        dead = await ask(alice.singleton("cron:daily", **tick).try_acquire())

        async def can_run() -> Any:
            return await ask(bob.singleton("cron:daily", **tick).try_acquire())

        await rig.until(can_run)
        assert not dead.is_held
        with pytest.raises(LockLostError):
            await ask(dead.release())

    rig.run(test())
