"""What stores share that draw tickets by the clock of this machine."""

from __future__ import annotations

import time


def ticket_floor() -> int:
    """Return the least ticket to draw now, the wall clock in microseconds: so tickets grow even if the last is lost."""
    return time.time_ns() // 1000
