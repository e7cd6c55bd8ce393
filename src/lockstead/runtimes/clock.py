"""The clock of this machine that is never set and keeps running during suspend."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

now: Callable[[], float] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)


def microseconds() -> int:
    """Read the wall clock as a floor for tickets, so that they grow even if the last ticket is lost."""
    return time.time_ns() // 1000
