"""Rate limits shared by every client of a store.

A limit of N per period is a GCRA level (`core/gcra.py`): each request costs one emission interval, and the level
may not rise above what a burst costs. So in any window of w seconds, on the store's clock, at most burst + w / interval
are allowed. Not promised: when the caller acts on a decision.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from lockstead.core.checks import MAX_TTL, Seconds, check_count, check_name, check_seconds
from lockstead.core.engine import Engine
from lockstead.core.gcra import ROUNDING
from lockstead.core.model import RateRequest, RateResult
from lockstead.core.retry import RetryPolicy
from lockstead.core.store import RateLimiting
from lockstead.core.timing import REQUEST_TIMEOUT
from lockstead.errors import InvalidInputError, RateLimitError, StoreError, UnsupportedError
from lockstead.primitives.naming import Naming, is_per_call, name_for_calls, static_name
from lockstead.primitives.pickling import NotPickled

MOST = 1_000_000
"""The largest limit and burst: that many costs add up with a rounding error well below `gcra.ROUNDING`."""
MIN_PER = 0.001
MAX_PER = MAX_TTL
"""Also the longest time to fill a burst, and the longest wait."""


class RateDecision(NamedTuple):
    """The decision on a request to a rate limit; true if it was allowed."""

    allowed: bool
    remaining: int
    """How many more would be allowed right now."""
    retry_after: float
    """Seconds until the same request would be allowed, if no other client makes one meanwhile; 0 if it was allowed."""
    reset_after: float
    """Seconds until the whole burst is available again."""

    def __bool__(self) -> bool:
        return self.allowed


class Rate(NamedTuple):
    """A limit, as the store's requests need it."""

    interval: float
    """Seconds per request in the long run (GCRA's emission interval)."""
    burst: int

    def request(self, name: str, cost: int) -> RateRequest:
        """Make the store's request. Raises InvalidInputError for a cost that could never be allowed."""
        check_count(cost, "cost", least=0, most=MOST)
        if cost > self.burst:
            msg = f"a cost of {cost} could never be allowed: at most {self.burst} are allowed at once; raise burst"
            raise InvalidInputError(msg, name=name)
        return RateRequest(name, cost * self.interval, self.burst * self.interval)

    def decision(self, request: RateRequest, result: RateResult) -> RateDecision:
        """Translate the store's answer, in seconds, into numbers of requests."""
        allowed, level = result
        free = request.burst * (1 + ROUNDING) - level
        missing = 0.0 if allowed else level + request.cost - request.burst
        remaining = int(free / self.interval) if free > 0 else 0
        return tuple.__new__(RateDecision, (allowed, remaining, missing, level))  # as in `core/gcra.py`


def rate(limit: int, per: Seconds, burst: int | None) -> Rate:
    """Check a limit as users write it. Raises InvalidInputError."""
    limit = check_count(limit, "limit", most=MOST)
    burst = limit if burst is None else check_count(burst, "burst", most=MOST)
    seconds = check_seconds(per, "per")
    if not MIN_PER <= seconds <= MAX_PER:
        msg = f"per must be from a millisecond to a year, got {seconds:g} s: choose the limit to match"
        raise InvalidInputError(msg)
    if burst * seconds / limit > MAX_PER:
        msg = f"a burst of {burst} would take more than a year to be available again: lower burst, or raise limit"
        raise InvalidInputError(msg)
    return Rate(seconds / limit, burst)


class Limiter(NotPickled):
    """A rate limit by name, shared by every client that uses the name. Many threads or tasks may use one limiter."""

    def __init__(self, engine: Engine, naming: Naming, rate: Rate, retry: RetryPolicy) -> None:
        self._engine = engine
        self._naming = naming
        self._name = check_name(static_name(naming))
        self._rate = rate
        self._retry = retry
        if not isinstance(engine.store, RateLimiting):
            msg = "this store has no rate limits: use memory, SQLite, Redis (not Redlock) or PostgreSQL (not advisory)"
            raise UnsupportedError(msg, name=self._name)
        self._store = engine.store
        self._single = None if callable(naming) else rate.request(self._name, 1)
        """The request of a cost of one, of those that are not named by each call: checked here, not every time."""

    async def _try_acquire(self, cost: int) -> RateDecision:
        request = self._single if cost == 1 and type(cost) is int else None
        if request is None:
            request = self._rate.request(self._own_name(), cost)
        self._engine.check_open(request.name)
        deadline = self._engine.runtime.now() + REQUEST_TIMEOUT
        try:
            result = await self._store.consume(request, REQUEST_TIMEOUT)
        except StoreError as error:
            result = await self._consume_again(request, deadline, error)
        return self._rate.decision(request, result)

    async def _consume_again(self, request: RateRequest, deadline: float, error: StoreError) -> RateResult:
        """Retry a request whose first attempt has failed with this error."""
        failures = [error]

        async def consume(request: RateRequest, timeout: float) -> RateResult:
            if failures:
                raise failures.pop()
            return await self._store.consume(request, timeout)

        result, _ = await self._engine.with_retries(consume, request, deadline, self._retry)
        return result

    async def _acquire(self, cost: int, timeout: Seconds | None) -> None:
        max_wait = MAX_PER if timeout is None else min(check_seconds(timeout, "timeout"), MAX_PER)
        await self._acquire_in_order(self._rate.request(self._own_name(), cost), max_wait)

    async def _acquire_for_call(self, name: str) -> None:
        await self._acquire_in_order(self._rate.request(check_name(name), 1), MAX_PER)

    async def _acquire_in_order(self, request: RateRequest, max_wait: float) -> None:
        """Consume now what will be allowed later, and sleep until then: so requests are served in order."""
        now, sleep = self._engine.runtime.now, self._engine.runtime.sleep
        self._engine.check_open(request.name)
        deadline = now() + max_wait

        async def consume(request: RateRequest, timeout: float) -> RateResult:
            return await self._store.consume(request._replace(max_wait=max(deadline - now(), 0.0)), timeout)

        send_until = now() + (max_wait or REQUEST_TIMEOUT)
        result, _ = await self._engine.with_retries(consume, request, send_until, self._retry)
        allowed_at = now() + result.level - request.burst
        if not result.allowed:
            missing = result.level + request.cost - request.burst
            msg = (
                f"{request.name!r} is over its rate limit: it would be allowed in {missing:.3g} s, and the timeout is "
                f"{max_wait:g} s; retry after that, or raise timeout; nothing was consumed"
            )
            raise RateLimitError(msg, name=request.name, retry_after=missing)
        while (left := allowed_at - now()) > 0:
            await sleep(left)

    def _own_name(self) -> str:
        if callable(self._naming):
            msg = f"{self!r} takes its name from each call: use it as a decorator only"
            raise InvalidInputError(msg)
        return self._name

    def _name_calls(self, function: Callable[..., Any]) -> Callable[..., str]:
        """Make a function that names one call, from whose arguments the name may be made."""
        return name_for_calls(self._naming, function) if is_per_call(self._naming) else lambda *_, **__: self._name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name}>"
