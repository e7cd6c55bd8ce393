"""The clock of this machine that is never set and keeps running during suspend."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

now: Callable[[], float] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)
