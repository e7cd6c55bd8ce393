"""Concurrent coroutines: what `Runtime.gather` is made of.

Coroutines are stepped by hand, because a thread or a task for each costs more. An acquire and release on five Redlock
nodes, measured interleaved on one CPU, takes so many times as long without it:

- threads, with a pool of threads in place of `ThreadGathering`: 1.24 (CPU time of the client: 1.43);
- asyncio, with a task in place of `_Stepper`: 1.11 (CPU time: 1.14); uvloop: 1.01 (CPU time: 1.03).
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from math import ceil, inf
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from lockstead.core.runtime import Runtime

if TYPE_CHECKING:
    from lockstead.runtimes.threads import ThreadRuntime

T = TypeVar("T")
Work = Coroutine[Any, Any, T]
Decided = Callable[[Sequence[T | None]], bool]


class ThreadGathering(Generic[T]):
    """Coroutines run concurrently by one thread: each resumes when its socket has something to read."""

    def __init__(self, runtime: ThreadRuntime, coroutines: Sequence[Work[T]]) -> None:
        self._runtime = runtime
        self._results: list[T | None] = [None] * len(coroutines)
        self._coroutines = dict(enumerate(coroutines))
        self._waiting: dict[int, tuple[int, float]] = {}
        """By the descriptor that is to become readable: the number of its coroutine, and the deadline."""

    async def run(self, decided: Decided[T], grace: float) -> list[T | None]:
        until = inf
        try:
            self._resume(list(self._coroutines))
            while self._coroutines:
                if until == inf and decided(self._results):
                    until = self._runtime.now() + grace
                if self._runtime.now() >= until:
                    break
                self._poll(until)
        finally:
            if self._coroutines:
                try:
                    self._runtime.spawn(self._finish, "lockstead-stragglers")
                except RuntimeError:  # no thread can be started
                    await self._finish()
        return list(self._results)

    async def _finish(self) -> None:
        """Run all to their end, including those that have not begun."""
        waiting = {number for number, _ in self._waiting.values()}
        self._resume([number for number in self._coroutines if number not in waiting])
        while self._coroutines:
            self._poll(inf)

    def _poll(self, until: float) -> None:
        """Resume every coroutine that is ready; wait for the first, but not beyond `until`."""
        poller = select.poll()
        for fd, (_, deadline) in self._waiting.items():
            poller.register(fd, select.POLLIN)
            until = min(until, deadline)
        left = until - self._runtime.now()
        ready = [fd for fd, _ in poller.poll(None if left == inf else ceil(max(left, 0.0) * 1000))]
        if not ready:
            now = self._runtime.now()
            ready = [fd for fd, (_, deadline) in self._waiting.items() if deadline <= now]
        self._resume([self._waiting.pop(fd)[0] for fd in ready])

    def _resume(self, numbers: Sequence[int]) -> None:
        gathering, here = self._runtime.gathering, self._runtime.context()
        is_outermost = here not in gathering
        gathering.add(here)
        try:
            for number in numbers:
                self._step(number)
        finally:
            if is_outermost:
                gathering.discard(here)

    def _step(self, number: int) -> None:
        coroutine = self._coroutines.pop(number)  # first: one that an interrupt ends must not be resumed
        try:
            sock, deadline = coroutine.send(None)
            # Not to be polled: a closed socket, and one from which TLS has read ahead.
            while (fd := sock.fileno()) < 0 or (hasattr(sock, "pending") and sock.pending() > 0):
                sock, deadline = coroutine.send(None)
        except StopIteration as done:
            self._results[number] = done.value
        else:
            self._coroutines[number] = coroutine
            self._waiting[fd] = number, deadline


async def gather_tasks(
    runtime: Runtime,
    start: Callable[[Work[T], Callable[[T | None], None]], None],
    coroutines: Sequence[Work[T]],
    decided: Decided[T],
    grace: float,
) -> list[T | None]:
    """Start each coroutine, which calls back with its result; see `Runtime.gather`. For runtimes with a loop."""
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


class _Stepper(Generic[T]):
    """Runs a coroutine from one future it awaits to the next: a minimal task, which cannot be cancelled.

    It is not the current task for `asyncio.timeout` and the like: a coroutine that needs one creates a task itself.
    """

    __slots__ = ("_ended", "_work")

    def __init__(self, work: Work[T], ended: Callable[[T | None], None]) -> None:
        self._work = work
        self._ended = ended

    def __call__(self, _: object = None) -> None:
        try:
            future = self._work.send(None)
        except StopIteration as done:
            self._ended(done.value)
        except asyncio.CancelledError:  # the awaited future was cancelled
            self._ended(None)
        else:
            if future is None:  # a bare yield, as by `asyncio.sleep(0)`
                asyncio.get_running_loop().call_soon(self)
            else:
                future.add_done_callback(self)


def step(work: Work[T], ended: Callable[[T | None], None]) -> None:
    """Start a coroutine in the running loop."""
    _Stepper(work, ended)()
