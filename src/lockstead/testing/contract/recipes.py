"""Jobs that one of many runs, and things that are done once, on every store that can leave a name taken."""

from __future__ import annotations

from functools import wraps
from typing import Any

import pytest

from lockstead import InvalidInputError, LockAcquisitionError, LockLostError, UnsupportedError
from lockstead.core.store import Lingering
from lockstead.testing.contract.rigs import Rig, ask


def cannot_linger(client: Any) -> bool:
    return not isinstance(client._engine.store, Lingering)


def as_function(rig: Rig, body: Any) -> Any:
    """Make what the driver's decorators take of a plain function."""
    if rig.driver == "threads":
        return body

    @wraps(body)
    async def function(*args: Any, **kwargs: Any) -> Any:
        return body(*args, **kwargs)

    return function


def test_of_many_who_fire_a_tick_one_runs_it(rig: Rig) -> None:
    async def test() -> None:
        clients = [rig.client() for _ in range(3)]
        if cannot_linger(clients[0]):
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
        assert info.holders[0].lingers
        assert 50 < (info.expires_at - info.acquired_at).total_seconds() <= 61

    rig.run(test())


def test_a_job_that_died_is_free_after_at_most(rig: Rig) -> None:
    async def test() -> None:
        alice, bob = rig.client(), rig.client()
        if not alice._engine.store.capabilities.expiry:
            return
        assert await ask(alice.singleton("cron:weekly", at_most=60).try_acquire())
        assert await ask(bob.singleton("cron:weekly", at_most=60).try_acquire()) is None
        tick = {"at_most": 0.3, "at_least": 0.0 if cannot_linger(alice) else 0.3}
        dead = await ask(alice.singleton("cron:daily", **tick).try_acquire())

        async def can_run() -> Any:
            return await ask(bob.singleton("cron:daily", **tick).try_acquire())

        await rig.until(can_run)
        assert not dead.is_held
        with pytest.raises(LockLostError):
            await ask(dead.release())

    rig.run(test())


def test_a_name_left_taken_keeps_waiters_out_until_it_is_over(rig: Rig) -> None:
    async def test() -> None:
        alice, bob = rig.client(), rig.client()
        if cannot_linger(alice):
            with pytest.raises(UnsupportedError):
                await ask(alice.acquire("x", at_least=0.2))
            assert await ask(alice.info("x")) is None
            return
        await ask((await ask(alice.acquire("y", at_least=60))).release())
        with pytest.raises(LockAcquisitionError, match="left it taken"):
            await ask(bob.acquire("y", timeout=0))
        started = bob._engine.runtime.now()
        await ask((await ask(alice.acquire("x", at_least=0.3))).release())
        await ask((await ask(bob.acquire("x", timeout=10))).release())
        assert bob._engine.runtime.now() - started >= 0.3

    rig.run(test())


def test_what_is_done_once_is_remembered(rig: Rig) -> None:
    async def test() -> None:
        alice, bob = rig.client(), rig.client()
        done: list[str] = []

        def send(to: str) -> dict[str, str]:
            done.append(to)
            return {"sent to": to}

        first, second = (client.once("mail:{to}", 60)(as_function(rig, send)) for client in (alice, bob))
        if cannot_linger(alice):
            with pytest.raises(UnsupportedError):
                await ask(first("ann"))
            assert done == []
            return
        assert await ask(first("ann")) == {"sent to": "ann"}
        assert await ask(second("ann")) == {"sent to": "ann"}
        assert await ask(second("bob")) == {"sent to": "bob"}
        assert done == ["ann", "bob"]
        outcome = await ask(bob.once("mail:ann", 60).outcome())
        assert (outcome.value, outcome.ran) == ({"sent to": "ann"}, False)
        assert await ask(bob.once("mail:eve", 60).outcome()) is None

    rig.run(test())


def test_what_failed_is_not_done_and_what_cannot_be_kept_is(rig: Rig) -> None:
    async def test() -> None:
        client = rig.client()
        if cannot_linger(client):
            return
        once = client.once("k", 60)

        def fail() -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await ask(once.run(as_function(rig, fail)))
        assert await ask(client.info("k")) is None
        with pytest.raises(InvalidInputError, match="is done"):
            await ask(once.run(as_function(rig, object)))
        for unkept in ("again", "a\0b"):
            with pytest.raises(InvalidInputError, match="could not be remembered"):
                await ask(once.run(as_function(rig, lambda unkept=unkept: unkept)))
        with pytest.raises(InvalidInputError, match="NUL"):
            await ask(client.once("nul", 60).run(as_function(rig, lambda: "a\0b")))
        await ask((await ask(client.acquire("taken", at_least=0.2))).release())
        done = await ask(client.once("taken", 60).run(as_function(rig, lambda: None)))  # once it is free
        assert (done.value, done.ran) == (None, True)

    rig.run(test())


def test_whoever_comes_while_it_is_being_done_waits_for_the_outcome(rig: Rig) -> None:
    async def test() -> None:
        alice, bob = rig.client(), rig.client()
        if cannot_linger(alice):
            return
        handle = await ask(alice.acquire("k"))
        with pytest.raises(LockAcquisitionError):
            await ask(bob.once("k", 60, timeout=0.02).run(as_function(rig, lambda: "bob's")))
        got: list[Any] = []

        async def wait() -> None:
            got.append(await ask(bob.once("k", 60).run(as_function(rig, lambda: "bob's"))))

        rig.start(wait)
        handle._leave_taken(60, '{"outcome":"alice\'s"}')
        await ask(handle.release())
        await rig.until(lambda: got)
        assert (got[0].value, got[0].ran) == ("alice's", False)

    rig.run(test())


def test_an_attempt_that_died_is_taken_over(rig: Rig) -> None:
    async def test() -> None:
        alice, bob = rig.client(), rig.client()
        if cannot_linger(alice):
            return
        dead = await ask(alice.acquire("k", ttl=0.2, renew=False))
        outcome = await ask(bob.once("k", 60).run(as_function(rig, lambda: "bob's")))
        assert (outcome.value, outcome.ran) == ("bob's", True)
        assert not dead.is_held

    rig.run(test())
