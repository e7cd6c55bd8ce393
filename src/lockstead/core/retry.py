"""How often, and after which pauses, a request is retried."""

from __future__ import annotations

from dataclasses import dataclass

from lockstead.errors import InvalidInputError


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Retry a request that the store did not answer: at most `max_retries` times in a row, with exponential backoff.

    Contention needs no retries on a store with a queue. On a store without one, such as Redlock, a waiter polls with
    the same pauses, for as long as its timeout allows.
    """

    max_retries: int = 3
    retry_delay: float = 0.05
    max_delay: float = 1.0
    backoff: float = 2.0
    jitter: float = 0.5
    """The fraction of each pause that is random, from 0 to 1."""

    def __post_init__(self) -> None:
        if self.max_retries < 0:
            msg = f"max_retries must not be negative, got {self.max_retries}"
            raise InvalidInputError(msg)
        if not 0 < self.retry_delay <= self.max_delay:
            msg = f"retry_delay must be above 0 and at most max_delay, got {self.retry_delay} and {self.max_delay}"
            raise InvalidInputError(msg)
        if not (self.backoff >= 1 and 0 <= self.jitter <= 1):
            msg = f"backoff must be at least 1 and jitter within 0..1, got {self.backoff} and {self.jitter}"
            raise InvalidInputError(msg)

    def pause(self, retry: int, chance: float) -> float:
        """Compute the pause before the `retry`-th retry, counted from 0; `chance` is drawn from [0, 1)."""
        longest = min(self.retry_delay * self.backoff ** min(retry, 64), self.max_delay)
        return longest * (1 - self.jitter * chance)
