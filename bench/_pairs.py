"""Time uncontended pairs of acquire and release: ours, the peers' and the floor's, in one run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, ExitStack, contextmanager
from functools import partial
from itertools import count
from math import nan
from statistics import median
from time import perf_counter
from typing import Protocol

import uvloop

from bench._measure import Spread, interleave, spread
from bench._peers import AsyncLocks, Locks, Traces, prove, prove_async, why_not
from lockstead import AsyncDistributedLock, DistributedLock

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
BLOCK = 50
"""Pairs in a row: enough that the caches, as other cases left them, do not matter."""
FEWEST = 5
SECONDS = 0.005
"""How long a block may take: a slower case does fewer pairs in a row, down to the fewest."""

Case = tuple[str, ...]
"""The runtime, further parameters, and the name of the contender."""

_numbers = count()


class Timer(Protocol):
    def __call__(self, times: int = BLOCK) -> list[float]:
        """Do so many pairs in a row, and return how long each took."""


def time_pairs(pair: Callable[[], object], times: int = BLOCK) -> list[float]:
    def timed() -> float:
        start = perf_counter()
        pair()
        return perf_counter() - start

    return [timed() for _ in range(times)]


def time_async_pairs(runner: asyncio.Runner, pair: Callable[[], Awaitable[object]], times: int = BLOCK) -> list[float]:
    async def timed() -> float:
        start = perf_counter()
        await pair()
        return perf_counter() - start

    async def block() -> list[float]:
        return [await timed() for _ in range(times)]

    return runner.run(block())


class Contest:
    """Cases that are measured interleaved, until the stack is closed.

    A peer that is not installed, fails or turns out not to lock is left out, and `broken` says why. An error of
    lockstead or of a floor is raised.
    """

    def __init__(self, stack: ExitStack) -> None:
        self.spreads: dict[Case, Spread] = {}
        self.broken: dict[str, str] = {}
        self._stack = stack
        self._cases: dict[Case, Callable[[], list[float]]] = {}

    def add(self, case: Case, timer: AbstractContextManager[Timer]) -> None:
        self._cases[case] = in_blocks(self._stack.enter_context(timer))

    def add_peer(self, case: Case, peer: AbstractContextManager[Timer]) -> None:
        try:
            block = in_blocks(peer.__enter__())
        except Exception as error:
            self._leave_out(case, error)
            return

        def block_unless_broken() -> list[float]:
            try:
                return block() if case in self._cases else []
            except Exception as error:
                self._leave_out(case, error)
                return []

        self._cases[case] = block_unless_broken
        self._stack.callback(self._close_peer, case, peer)

    def run(self, rounds: int) -> None:
        samples = interleave(dict(self._cases), rounds)
        self.spreads = {case: spread(samples[case]) for case in self._cases}

    def median(self, *case: str) -> float:
        """Return how many seconds a pair takes: nan if the case was left out."""
        return self.spreads[case].median if case in self.spreads else nan

    def _leave_out(self, case: Case, error: Exception) -> None:
        self._cases.pop(case, None)
        self.broken[", ".join(case)] = why_not(error)

    def _close_peer(self, case: Case, peer: AbstractContextManager[Timer]) -> None:
        try:
            peer.__exit__(None, None, None)
        except Exception as error:
            self.broken.setdefault(", ".join(case), why_not(error))


def in_blocks(timer: Timer) -> Callable[[], list[float]]:
    """Make a case do as many pairs in a row as fit in the time, judged by the first few."""
    times = 0

    def block() -> list[float]:
        nonlocal times
        times = times or min(max(round(SECONDS / median(timer(FEWEST))), FEWEST), BLOCK)
        return timer(times)

    return block


@contextmanager
def pairs_of(peer: AbstractContextManager[Locks], traces: Traces) -> Iterator[Timer]:
    with peer as locks:
        lock = locks(f"bench-{next(_numbers)}")
        prove(lock, traces)

        def pair() -> None:
            with lock:
                pass

        yield partial(time_pairs, pair)


@contextmanager
def async_pairs_of(
    peer: AbstractAsyncContextManager[AsyncLocks], runner: asyncio.Runner, traces: Traces
) -> Iterator[Timer]:
    locks = runner.run(peer.__aenter__())
    try:
        lock = locks(f"bench-{next(_numbers)}")
        runner.run(prove_async(lock, traces))

        async def pair() -> None:
            async with lock:
                pass

        yield partial(time_async_pairs, runner, pair)
    finally:
        runner.run(peer.__aexit__(None, None, None))


@contextmanager
def client(url: str) -> Iterator[Timer]:
    with DistributedLock(url) as locks:
        yield partial(time_pairs, lambda: locks.acquire("bench").release())


@contextmanager
def async_client(url: str, runner: asyncio.Runner) -> Iterator[Timer]:
    locks = AsyncDistributedLock(url)

    async def pair() -> None:
        handle = await locks.acquire("bench")
        await handle.release()

    yield partial(time_async_pairs, runner, pair)
    runner.run(locks.close())
