"""How often, and after which pauses, a request is retried."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from lockstead.core.checks import MAX_TTL, check_count, check_number
from lockstead.errors import InvalidInputError

MAX_BACKOFF = 1000.0
"""Its 64th power is still a float: more would raise OverflowError in the middle of an outage."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Retry a single request that the store did not answer: at most `max_retries` times, with exponential backoff.

    A waiter is bounded by its timeout, not by `max_retries`: it goes on through an outage, with the same pauses.
    Contention needs no retries on a store with a queue. On a store without one, such as Redlock, a waiter polls with
    the same pauses, too.
    """

    max_retries: int = 3
    retry_delay: float = 0.05
    max_delay: float = 1.0
    backoff: float = 2.0
    jitter: float = 0.5
    """The fraction of each pause that is random, from 0 to 1."""

    def __post_init__(self) -> None:
        check_count(self.max_retries, "max_retries", least=0, most=sys.maxsize)
        check_number(self.retry_delay, "retry_delay", least=0, most=MAX_TTL)
        check_number(self.max_delay, "max_delay", least=0, most=MAX_TTL)
        if not 0 < self.retry_delay <= self.max_delay:
            msg = f"retry_delay must be above 0 and at most max_delay, got {self.retry_delay} and {self.max_delay}"
            raise InvalidInputError(msg)
        check_number(self.backoff, "backoff", least=1, most=MAX_BACKOFF)
        check_number(self.jitter, "jitter", least=0, most=1)

    def pause(self, retry: int, chance: float) -> float:
        """Compute the pause before the `retry`-th retry, counted from 0; `chance` is drawn from [0, 1)."""
        longest = min(self.retry_delay * self.backoff ** min(retry, 64), self.max_delay)
        return longest * (1 - self.jitter * chance)
