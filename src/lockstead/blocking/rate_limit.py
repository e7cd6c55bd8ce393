"""Rates, for threads."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from lockstead.blocking.guard import check_plain
from lockstead.core.checks import Seconds
from lockstead.core.runtime import drive
from lockstead.primitives.rate_limit import Limiter, RateDecision

P = ParamSpec("P")
T = TypeVar("T")


class RateLimiter(Limiter):
    """A rate by name: ask it by hand, or let every call of a decorated function wait for its turn.

    In any window of w seconds at most burst + w * limit / per are let through.
    """

    def try_acquire(self, cost: int = 1) -> RateDecision:
        """Take so much if it is there now, and say what is left; 0 only looks. Never waits.

        A request that gets no answer is repeated, and may then count twice.
        """
        return drive(self._try_acquire(cost))

    def acquire(self, cost: int = 1, timeout: Seconds | None = None) -> None:
        """Take so much, and sleep until it is there: first come, first served.

        Raises RateLimitError, at once and without taking anything, if that is longer than `timeout` (or a year).
        Whoever is interrupted in his sleep has spent what he took; closing the client does not wake him.
        """
        drive(self._acquire(cost, timeout))

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        """Wait before every call. In a name, ``{parameter}`` stands for the argument of that call."""
        check_plain(function)
        name_call = self._name_calls(function)

        @functools.wraps(function)
        def limited(*args: P.args, **kwargs: P.kwargs) -> T:
            drive(self._acquire_for_call(name_call(*args, **kwargs)))
            return function(*args, **kwargs)

        return limited
