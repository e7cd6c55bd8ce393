"""Rates, for tasks."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from lockstead.asynchronous.guard import check_coroutine
from lockstead.core.checks import Seconds
from lockstead.primitives.rate_limit import Limiter, RateDecision

P = ParamSpec("P")
T = TypeVar("T")


class AsyncRateLimiter(Limiter):
    """A rate by name: ask it by hand, or let every call of a decorated function wait for its turn.

    In any window of w seconds at most burst + w * limit / per are let through.
    """

    async def try_acquire(self, cost: int = 1) -> RateDecision:
        """Take so much if it is there now, and say what is left; 0 only looks. Never waits.

        A request that gets no answer is repeated, and may then count twice.
        """
        return await self._try_acquire(cost)

    async def acquire(self, cost: int = 1, timeout: Seconds | None = None) -> None:
        """Take so much, and sleep until it is there: first come, first served.

        Raises RateLimitError, at once and without taking anything, if that is longer than `timeout` (or a year).
        Whoever is cancelled in his sleep has spent what he took; closing the client does not wake him.
        """
        await self._acquire(cost, timeout)

    def __call__(self, function: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        """Wait before every call. In a name, ``{parameter}`` stands for the argument of that call."""
        check_coroutine(function)
        name_call = self._name_calls(function)

        @functools.wraps(function)
        async def limited(*args: P.args, **kwargs: P.kwargs) -> T:
            await self._acquire_for_call(name_call(*args, **kwargs))
            return await function(*args, **kwargs)

        return limited
