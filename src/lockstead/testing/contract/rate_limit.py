"""What a rate limiter promises, on every store that has rate limits; the others refuse to make one."""

from __future__ import annotations

import time
from typing import Any
from uuid import uuid4

import pytest

from lockstead import RateLimitError, UnsupportedError
from lockstead.core.store import RateLimiting
from lockstead.testing.contract.rigs import Rig, ask


def limiters(rig: Rig, limit: int, per: float, burst: int) -> tuple[Any, Any]:
    """Return two clients' limiters of one rate limit that was not used before."""
    alice, bob = rig.client(), rig.client()
    name = f"rate:{uuid4().hex}"
    return alice.rate_limiter(name, limit, per, burst), bob.rate_limiter(name, limit, per, burst)


def refuses(rig: Rig) -> bool:
    """Return whether a store has no rate limits. If so, it must refuse as soon as a limiter is made."""
    if isinstance(rig.store(), RateLimiting):
        return False
    with pytest.raises(UnsupportedError, match="has no rate limits"):
        rig.client().rate_limiter("x", 1, 1)
    return True


def test_a_burst_is_allowed_once_whichever_client_uses_it(rig: Rig) -> None:
    async def test() -> None:
        if refuses(rig):
            return
        alice, bob = limiters(rig, 4, 3600, 3)
        first = await ask(alice.try_acquire(2))
        assert (bool(first), first.remaining, first.retry_after) == (True, 1, 0)
        assert first.reset_after == pytest.approx(1800)
        refused = await ask(bob.try_acquire(2))
        assert (bool(refused), refused.remaining) == (False, 1)
        assert refused.retry_after == pytest.approx(900, abs=60)
        assert refused.reset_after == pytest.approx(1800, abs=60)
        assert (await ask(bob.try_acquire())).remaining == 0, "what was refused was not consumed"
        assert not await ask(alice.try_acquire())
        assert await ask(alice.try_acquire(0)), "to look is allowed"

    rig.run(test())


def test_a_caller_that_waits_is_allowed_in_its_turn_or_refused_at_once(rig: Rig) -> None:
    async def test() -> None:
        if refuses(rig):
            return
        alice, bob = limiters(rig, 100, 1, 3)
        began = time.monotonic()
        for _ in range(2):
            await ask(alice.acquire())
            await ask(bob.acquire(2))
        assert time.monotonic() - began > 0.0299
        alice, bob = limiters(rig, 1, 3600, 3)
        await ask(alice.acquire(2))
        with pytest.raises(RateLimitError) as refusal:
            await ask(bob.acquire(2, timeout=60))
        assert refusal.value.retry_after == pytest.approx(3600, abs=60)
        assert time.monotonic() - began < 30
        await ask(bob.acquire(timeout=0))  # nothing was consumed

    rig.run(test())


def test_exactly_a_burst_is_allowed_when_many_clients_ask_at_once(rig: Rig) -> None:
    async def test() -> None:
        if refuses(rig):
            return
        allowed: list[bool] = []
        both = limiters(rig, 20, 3600, 20)

        def consumer(limiter: Any) -> Any:
            async def consume() -> None:
                allowed.extend([bool(await ask(limiter.try_acquire())) for _ in range(4)])

            return consume

        for number in range(8):
            rig.start(consumer(both[number % 2]))
        await rig.until(lambda: len(allowed) == 32)
        assert sum(allowed) == 20

    rig.run(test())
