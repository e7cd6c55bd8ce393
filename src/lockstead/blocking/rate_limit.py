# Generated from src/lockstead/asynchronous/rate_limit.py by `python tools/unasync.py`: edit that one.
"""Rate limits, for threads."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from lockstead.core.checks import Seconds
from lockstead.core.runtime import drive
from lockstead.primitives.callables import check_plain
from lockstead.primitives.rate_limit import Limiter, RateDecision

P = ParamSpec("P")
T = TypeVar("T")


class RateLimiter(Limiter):
    """A rate limit by name: call `try_acquire` or `acquire`, or decorate a function to wait before every call.

    In any window of w seconds at most burst + w * limit / per are allowed.
    """

    def try_acquire(self, cost: int = 1) -> RateDecision:
        """Consume `cost` if it is allowed now, and return the decision. Never waits; a cost of 0 only reads.

        A request that the store does not answer is retried, and may then count twice.
        """
        return drive(self._try_acquire(cost))

    def acquire(self, cost: int = 1, timeout: Seconds | None = None) -> None:
        """Consume `cost` as soon as it is allowed, and sleep until then: first come, first served.

        `timeout`: how long to wait; None waits without limit (up to a year), 0 does not wait. Raises RateLimitError, at
        once and without consuming anything, if it would take longer. A call that is interrupted while it sleeps has
        consumed its cost; closing the client does not end the sleep.
        """
        drive(self._acquire(cost, timeout))

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        """Wait before every call until it is allowed. A name may contain ``{parameter}`` of the call."""
        check_plain(function)
        name_call = self._name_calls(function)

        @functools.wraps(function)
        def limited(*args: P.args, **kwargs: P.kwargs) -> T:
            drive(self._acquire_for_call(name_call(*args, **kwargs)))
            return function(*args, **kwargs)

        return limited
