"""Detects that the store's clock was set: forward, it may let another client in early, and only fences protect."""

from __future__ import annotations

import logging

from lockstead.core.timing import CLOCK_STEP_THRESHOLD

log = logging.getLogger("lockstead")


class ClockComparison:
    """How far the store's clock is ahead of ours, as far as the last answer showed."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._offset: tuple[float, float] | None = None

    def compare(self, sent: float, received: float, theirs: float) -> None:
        """Compare with the time in an answer, and log a step since the last one."""
        low, high = theirs - received, theirs - sent
        if self._offset is not None:
            was_low, was_high = self._offset
            step = low - was_high if low > was_high else min(high - was_low, 0.0)
            if abs(step) > CLOCK_STEP_THRESHOLD:
                log.warning(
                    "%s: the store's clock stepped by %+.1f s: a lease may end early or late by that, and only fences "
                    "protect",
                    self._address,
                    step,
                )
        self._offset = low, high
