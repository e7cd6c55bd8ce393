"""Concurrent coroutines, for runtimes with a loop."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from math import inf
from typing import Any, TypeVar

from lockstead.core.runtime import Runtime

T = TypeVar("T")
Work = Coroutine[Any, Any, T]


async def gather_tasks(
    runtime: Runtime,
    start: Callable[[Work[T], Callable[[T | None], None]], None],
    coroutines: Sequence[Work[T]],
    decided: Callable[[Sequence[T | None]], bool],
    grace: float,
) -> list[T | None]:
    """Start each coroutine, which calls back with its result; see `Runtime.gather`."""
    results: list[T | None] = [None] * len(coroutines)
    running = len(coroutines)
    until = inf
    event = runtime.event()

    def ended(number: int, result: T | None) -> None:
        nonlocal running
        running -= 1
        results[number] = result
        if not running or (until == inf and decided(results)):
            event.set()

    for number, coroutine in enumerate(coroutines):
        start(coroutine, partial(ended, number))
    while running:
        if until == inf and decided(results):
            until = runtime.now() + grace
        left = until - runtime.now()
        if left <= 0:
            break
        await event.wait(left)
    return list(results)
