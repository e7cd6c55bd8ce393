"""What is done once and remembered, on every store that can keep the outcome."""

from __future__ import annotations

from typing import Any

import pytest

from lockstead import InvalidInputError, LockAcquisitionError, UnsupportedError
from lockstead.testing.contract.rigs import Rig, as_function, ask, cannot_reserve


def test_once_returns_the_stored_result_to_later_calls(rig: Rig) -> None:
    async def test() -> None:
        alice, bob = rig.client(), rig.client()
        done: list[str] = []

        def send(to: str) -> dict[str, str]:
            done.append(to)
            return {"sent to": to}

        first, second = (client.once("mail:{to}", 60)(as_function(rig, send)) for client in (alice, bob))
        if cannot_reserve(alice):
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


def test_once_retries_what_failed_and_does_not_repeat_what_could_not_be_stored(rig: Rig) -> None:
    async def test() -> None:
        client = rig.client()
        if cannot_reserve(client):
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
            with pytest.raises(InvalidInputError, match="could not be stored"):
                await ask(once.run(as_function(rig, lambda unkept=unkept: unkept)))
        with pytest.raises(InvalidInputError, match="NUL"):
            await ask(client.once("nul", 60).run(as_function(rig, lambda: "a\0b")))
        await ask((await ask(client.acquire("taken", at_least=0.2))).release())
        done = await ask(client.once("taken", 60).run(as_function(rig, lambda: None)))  # once it is free
        assert (done.value, done.ran) == (None, True)

    rig.run(test())


def test_a_call_of_once_during_another_waits_for_its_outcome(rig: Rig) -> None:
    async def test() -> None:
        alice, bob = rig.client(), rig.client()
        if cannot_reserve(alice):
            return
        handle = await ask(alice.acquire("k"))
        with pytest.raises(LockAcquisitionError):
            await ask(bob.once("k", 60, timeout=0.02).run(as_function(rig, lambda: "bob's")))
        got: list[Any] = []

        async def wait() -> None:
            got.append(await ask(bob.once("k", 60).run(as_function(rig, lambda: "bob's"))))

        rig.start(wait)
        handle._reserve_name(60, '{"outcome":"alice\'s"}')
        await ask(handle.release())
        await rig.until(lambda: got)
        assert (got[0].value, got[0].ran) == ("alice's", False)

    rig.run(test())


def test_an_attempt_of_once_whose_client_died_is_repeated(rig: Rig) -> None:
    async def test() -> None:
        alice, bob = rig.client(), rig.client()
        if cannot_reserve(alice):
            return
        dead = await ask(alice.acquire("k", ttl=0.2, renew=False))
        outcome = await ask(bob.once("k", 60).run(as_function(rig, lambda: "bob's")))
        assert (outcome.value, outcome.ran) == ("bob's", True)
        assert not dead.is_held

    rig.run(test())
