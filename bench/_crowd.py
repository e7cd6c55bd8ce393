"""A crowd that passes one lock around: processes, threads, or tasks of one loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from itertools import pairwise
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from random import random
from threading import Thread
from time import monotonic, sleep
from types import SimpleNamespace
from typing import Any, NamedTuple

GLANCE = 0.0005
"""How often one who stands back looks whether somebody else holds."""

Acquire = Callable[[], AbstractContextManager[object]]
AsyncAcquire = Callable[[], AbstractAsyncContextManager[object]]


class Turn(NamedTuple):
    acquired: float
    released: float
    worker: int


class Slice(NamedTuple):
    """What the workers are told to do together."""

    start: float
    end: float
    work: float
    stand_back: float
    """For up to how long after somebody else holds; 0 to ask again without standing back at all."""


Crowd = Callable[[int, Slice], list[Turn]]
"""Has that many do a slice together. Each of them acquires once more at its end, which is no turn."""


def case(crowd: Crowd, size: int, seconds: float, work: float, *, courteous: bool) -> Callable[[], list[list[Turn]]]:
    """Make a case for `interleave`, whose samples are the histories of slices.

    Raises RuntimeError if two of the crowd held at once.
    """
    stand_back = work * (size - 1) / 2 * courteous

    def run() -> list[list[Turn]]:
        start = monotonic() + 0.05
        turns = sorted(crowd(size, Slice(start, start + seconds, work, stand_back)))
        if any(after.acquired < before.released for before, after in pairwise(turns)):
            msg = "two held at once"
            raise RuntimeError(msg)
        return [turns]

    return run


def gaps_of(histories: list[list[Turn]]) -> list[float]:
    return [
        after.acquired - before.released
        for turns in histories
        for before, after in pairwise(turns)
        if after.worker != before.worker
    ]


def jain(turns: list[Turn], size: int) -> float:
    shares = [sum(turn.worker == worker for turn in turns) for worker in range(size)]
    return sum(shares) ** 2 / (size * sum(share**2 for share in shares))


@contextmanager
def processes(make: Callable[[], Acquire], size: int) -> Iterator[Crowd]:
    """Start processes that each make their own client, and sleep while it is not their turn to be measured."""
    spawn = get_context("spawn")
    ends, others = zip(*(Pipe() for _ in range(size)), strict=True)
    last_holder = spawn.RawValue("i", -1)
    workers = [
        spawn.Process(target=serve, args=(number, make, orders, last_holder), daemon=True)
        for number, orders in enumerate(others)
    ]
    for worker, orders in zip(workers, others, strict=True):
        worker.start()
        orders.close()
    yield from _command(ends)
    for worker in workers:
        worker.join()


@contextmanager
def threads(make: Callable[[], Acquire], size: int) -> Iterator[Crowd]:
    """Start threads that share a client."""
    ends, others = zip(*(Pipe() for _ in range(size)), strict=True)
    last_holder = SimpleNamespace(value=-1)
    acquire = make()
    workers = [
        Thread(target=serve, args=(number, lambda: acquire, orders, last_holder), daemon=True)
        for number, orders in enumerate(others)
    ]
    for worker in workers:
        worker.start()
    yield from _command(ends)
    for worker in workers:
        worker.join()


def _command(workers: tuple[Connection, ...]) -> Iterator[Crowd]:
    def crowd(size: int, order: Slice) -> list[Turn]:
        for worker in workers[:size]:
            worker.send(order)
        return [turn for worker in workers[:size] for turn in worker.recv()]

    yield crowd
    for worker in workers:
        worker.send(None)


def serve(number: int, make: Callable[[], Acquire], orders: Connection, last_holder: Any) -> None:
    with orders:  # whoever fails is missed at once
        acquire = make()
        while order := orders.recv():
            orders.send(take_turns(number, acquire, order, last_holder))


def take_turns(number: int, acquire: Acquire, order: Slice, last_holder: Any) -> list[Turn]:
    turns: list[Turn] = []
    sleep(max(order.start - monotonic(), 0.0))
    while True:
        with acquire():
            acquired = monotonic()
            last_holder.value = number
            if acquired >= order.end:
                return turns
            if order.work:
                sleep(order.work)
            turns.append(Turn(acquired, monotonic(), number))
        if order.stand_back:
            while last_holder.value == number and monotonic() < order.end:
                sleep(GLANCE)
            sleep(random() * order.stand_back)


@contextmanager
def tasks(make: Callable[[], AbstractAsyncContextManager[AsyncAcquire]]) -> Iterator[Crowd]:
    """Have a loop whose tasks share a client; it rests while it is not their turn to be measured."""

    async def everybody(acquire: AsyncAcquire, size: int, order: Slice) -> list[Turn]:
        last_holder = SimpleNamespace(value=-1)
        histories = await asyncio.gather(
            *(take_turns_async(number, acquire, order, last_holder) for number in range(size))
        )
        return [turn for turns in histories for turn in turns]

    with asyncio.Runner() as runner:
        client = make()
        acquire = runner.run(client.__aenter__())
        yield lambda size, order: runner.run(everybody(acquire, size, order))
        runner.run(client.__aexit__(None, None, None))


async def take_turns_async(number: int, acquire: AsyncAcquire, order: Slice, last_holder: Any) -> list[Turn]:
    turns: list[Turn] = []
    await asyncio.sleep(order.start - monotonic())
    while True:
        async with acquire():
            acquired = monotonic()
            last_holder.value = number
            if acquired >= order.end:
                return turns
            if order.work:
                await asyncio.sleep(order.work)
            turns.append(Turn(acquired, monotonic(), number))
        if order.stand_back:
            while last_holder.value == number and monotonic() < order.end:  # noqa: ASYNC110 (as threads do)
                await asyncio.sleep(GLANCE)
            await asyncio.sleep(random() * order.stand_back)
