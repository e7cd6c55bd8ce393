"""Let so much through in so much time.

An event costs the interval in which one is let through: seconds of debt, which wears off by itself (`gcra.py`) and may
not be deeper than a burst costs. So in any window of w seconds, on the store's clock, at most burst + w / interval are
let through. Not promised: what is done with a permission once it was given, and when.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from lockstead.core.checks import MAX_TTL, Seconds, check_count, check_name, check_seconds
from lockstead.core.engine import Engine
from lockstead.core.gcra import ROUNDING
from lockstead.core.lease import PATIENCE
from lockstead.core.model import RateRequest, RateResult
from lockstead.core.retry import RetryPolicy
from lockstead.core.store import RateLimiting
from lockstead.errors import InvalidInputError, RateLimitError, UnsupportedError
from lockstead.primitives.naming import Naming, literal, name_for_calls, varies

MOST = 1_000_000
"""Of a limit and a burst: what sums of so many costs may be off by stays a small part of what their rule allows for."""
MIN_PER = 0.001
MAX_PER = MAX_TTL
"""Also of what a burst costs, and of any wait for it."""


@dataclass(frozen=True, slots=True)
class RateDecision:
    """What came of spending; true if it was allowed."""

    allowed: bool
    remaining: int
    """How many could be spent right now."""
    retry_after: float
    """Seconds until the same would be allowed, if nobody else spends meanwhile; 0 if it was."""
    reset_after: float
    """Seconds until all of the burst could be spent again."""

    def __bool__(self) -> bool:
        return self.allowed


class Rate(NamedTuple):
    """How much is let through."""

    interval: float
    """Seconds in which, in the long run, one is."""
    burst: int

    def charge(self, name: str, cost: int) -> RateRequest:
        """Plan to spend. Raises InvalidInputError for a cost that could never be allowed."""
        check_count(cost, "cost", least=0, most=MOST)
        if cost > self.burst:
            msg = f"a cost of {cost} could never be allowed: at most {self.burst} are let through at once; raise burst"
            raise InvalidInputError(msg, name=name)
        return RateRequest(name, cost * self.interval, self.burst * self.interval)

    def describe(self, charge: RateRequest, balance: RateResult) -> RateDecision:
        """Tell in events what the store told in seconds of debt."""
        free = charge.limit * (1 + ROUNDING) - balance.debt
        missing = 0.0 if balance.allowed else balance.debt + charge.cost - charge.limit
        return RateDecision(balance.allowed, max(int(free / self.interval), 0), missing, balance.debt)


def rate(limit: int, per: Seconds, burst: int | None) -> Rate:
    """Check how much is to be let through. Raises InvalidInputError."""
    limit = check_count(limit, "limit", most=MOST)
    burst = limit if burst is None else check_count(burst, "burst", most=MOST)
    seconds = check_seconds(per, "per")
    if not MIN_PER <= seconds <= MAX_PER:
        msg = f"per must be from a millisecond to a year, got {seconds:g} s: choose the limit to match"
        raise InvalidInputError(msg)
    if burst * seconds / limit > MAX_PER:
        msg = f"a burst of {burst} would take more than a year to be earned again: lower burst, or raise limit"
        raise InvalidInputError(msg)
    return Rate(seconds / limit, burst)


class Limiter:
    """A rate by name, shared by all who use the name. Many threads or tasks may use one limiter."""

    def __init__(self, engine: Engine, naming: Naming, rate: Rate, retry: RetryPolicy) -> None:
        self._engine = engine
        self._naming = naming
        self._name = check_name(literal(naming))
        self._rate = rate
        self._retry = retry
        if not isinstance(engine.store, RateLimiting):
            msg = "this store keeps no rates: memory, SQLite, Redis (not Redlock) and PostgreSQL (not advisory) do"
            raise UnsupportedError(msg, name=self._name)
        self._store = engine.store

    async def _try_acquire(self, cost: int) -> RateDecision:
        charge = self._rate.charge(self._own_name(), cost)
        return self._rate.describe(charge, await self._ask(self._store.spend, charge, PATIENCE))

    async def _acquire(self, cost: int, timeout: Seconds | None) -> None:
        patience = MAX_PER if timeout is None else min(check_seconds(timeout, "timeout"), MAX_PER)
        await self._reserve(self._rate.charge(self._own_name(), cost), patience)

    async def _acquire_for_call(self, name: str) -> None:
        await self._reserve(self._rate.charge(check_name(name), 1), MAX_PER)

    async def _reserve(self, charge: RateRequest, patience: float) -> None:
        """Spend now what will be allowed in a while, and sleep until then: whoever comes later waits for longer."""
        now, sleep = self._engine.runtime.now, self._engine.runtime.sleep
        deadline = now() + patience

        async def spend(charge: RateRequest, timeout: float) -> RateResult:
            return await self._store.spend(charge._replace(patience=max(deadline - now(), 0.0)), timeout)

        balance = await self._ask(spend, charge, patience or PATIENCE)
        turn = now() + balance.debt - charge.limit
        if not balance.allowed:
            missing = balance.debt + charge.cost - charge.limit
            why = f"it would be allowed in {missing:.3g} s, and the time-out is {patience:g} s"
            msg = f"{charge.name!r} was not waited for, and nothing was spent: {why}"
            raise RateLimitError(msg, name=charge.name, retry_after=missing)
        while (left := turn - now()) > 0:
            await sleep(left)

    async def _ask(
        self, spend: Callable[[RateRequest, float], Awaitable[RateResult]], charge: RateRequest, patience: float
    ) -> RateResult:
        """Ask the store, and again if there is no answer. That may count twice: less is let through, never more."""
        self._engine.check_open(charge.name)
        deadline = self._engine.runtime.now() + patience
        balance, _ = await self._engine.with_retries(spend, charge, deadline, self._retry)
        return balance

    def _own_name(self) -> str:
        if callable(self._naming):
            msg = f"{self!r} is named by its calls: use it as a decorator only"
            raise InvalidInputError(msg)
        return self._name

    def _name_calls(self, function: Callable[..., Any]) -> Callable[..., str]:
        """Make a function that names a call, whose arguments may be in the name."""
        return name_for_calls(self._naming, function) if varies(self._naming) else lambda *_, **__: self._name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name}>"
