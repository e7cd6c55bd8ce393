"""Conditions, waited for with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

PATIENCE = 15.0
"""How long a condition that must come true may take on a loaded machine before the test gives up."""


def eventually(condition: Callable[[], Any], what: str, within: float = PATIENCE) -> Any:
    """Return the condition's first true value, looking again until the deadline."""
    deadline = time.monotonic() + within
    while True:
        if value := condition():
            return value
        if time.monotonic() >= deadline:
            msg = f"not within {within:g} s: {what}"
            raise AssertionError(msg)
        time.sleep(0.002)
