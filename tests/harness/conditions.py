"""Conditions, waited for with a deadline."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any

DEADLINE = 15.0
"""How long a condition that must come true may take on a loaded machine before the test gives up."""


def eventually(condition: Callable[[], Any], what: str, within: float = DEADLINE) -> Any:
    """Return the condition's first true value, looking again until the deadline."""
    deadline = time.monotonic() + within
    while True:
        if value := condition():
            return value
        _check(deadline, what, within)
        time.sleep(0.002)


async def eventually_async(
    condition: Callable[[], Any],
    what: str,
    within: float = DEADLINE,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> Any:
    """Do the same in a coroutine; the condition may be a coroutine function."""
    deadline = time.monotonic() + within
    while True:
        value = condition()
        if value := await value if inspect.isawaitable(value) else value:
            return value
        _check(deadline, what, within)
        await sleep(0.003)


def _check(deadline: float, what: str, within: float) -> None:
    if time.monotonic() >= deadline:
        msg = f"not within {within:g} s: {what}"
        raise AssertionError(msg)
