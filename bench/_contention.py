"""A crowd of workers that contend for one lock: processes, threads, or tasks of one loop."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
)
from functools import partial
from itertools import pairwise, product
from math import isnan, nan
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from random import random
from statistics import median
from time import monotonic, sleep
from types import SimpleNamespace
from typing import Any, NamedTuple

from bench._measure import interleave, spread
from bench._peers import Adapter, AsyncAdapter, why_not

EAGER, BACKING_OFF = "all ask again at once", "releasers back off"
POLL = 0.0005
"""Seconds between two checks of a worker that backs off, whether another worker holds."""
ROUNDS = 3
"""The least number of turns per worker that shows whether they are shared fairly."""
USUAL_GAP = 0.001
"""Seconds expected between two turns, to choose a long enough slice."""

Acquire = Callable[[], AbstractContextManager[object]]
AsyncAcquire = Callable[[], AbstractAsyncContextManager[object]]
Contenders = Mapping[str, Callable[[], Acquire]]
"""How to make a client of each, in the process that uses it."""
AsyncContenders = Mapping[str, Callable[[], AbstractAsyncContextManager[AsyncAcquire]]]


class Turn(NamedTuple):
    acquired: float
    released: float
    worker: int


class Slice(NamedTuple):
    """What the workers do together, and for how long."""

    case: str
    start: float
    end: float
    work: float
    back_off: float
    """Seconds: the longest random pause after another worker holds; 0 to ask again without backing off."""


Crowd = Callable[[int, Slice], list[Turn]]
"""Runs a slice with that many workers. Each acquires once more at its end, which does not count as a turn."""


class Cell(NamedTuple):
    """Which case is measured, and in which crowd."""

    kind: str
    """Processes, threads or tasks."""
    waiters: int
    section_ms: float
    case: str

    def __str__(self) -> str:
        return f"{self.case} with {self.crowd}"

    @property
    def crowd(self) -> str:
        return f"{self.waiters} {self.kind}, {self.section_ms:g} ms"


def cells_of(kinds: Sequence[str], sizes: Sequence[int], sections: Sequence[float], *cases: str) -> list[Cell]:
    return [Cell(*cell) for cell in product(kinds, sizes, sections, cases)]


class Outcome(NamedTuple):
    """The result of one slice."""

    turns: list[Turn]
    commands: float = nan
    """Commands sent to the server per acquisition."""
    failure: str = ""


Count = Callable[[str], AbstractContextManager[Callable[[], float]]]
"""Counts the commands a contender sends inside the with-block; call its result after the block."""


def measure(
    crowds: Mapping[str, Crowd],
    cells: Sequence[Cell],
    seconds: float,
    rounds: int,
    *,
    slow: Collection[str] = (),
    count: Count | None = None,
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Run every cell for a while, and make a row of each; return the rows, and why peers failed.

    The gap runs from just before one worker releases to the moment another holds. It is measured while the releaser
    backs off, as `bench.handover` explains; without work no worker backs off, as none would be waiting. Fairness and
    commands are measured while all workers ask again at once. Slow cases, which hand over rarely, run longer.

    Raises CrowdError if lockstead failed.
    """
    cases = {}
    for cell in cells:
        crowd, work = crowds[cell.kind], cell.section_ms / 1e3
        least = seconds * (2 if work else 1) * (2 if cell.case in slow else 1)
        fair = max(least, ROUNDS * cell.waiters * (work + USUAL_GAP))
        cases[cell, EAGER] = _case(cell, crowd, fair, backs_off=False, count=count)
        if work:
            cases[cell, BACKING_OFF] = _case(cell, crowd, max(least, fair / 3), backs_off=True)
    largest = {(cell.kind, cell.case): cell for cell in sorted(cells, key=lambda cell: cell.waiters)}
    for cell in largest.values():
        _case(cell._replace(section_ms=0.0), crowds[cell.kind], 0.1, backs_off=False)()  # to open all connections
    outcomes = interleave(cases, rounds, warm_up=0)
    rows, broken = [], {}
    for cell in sorted(cells, key=lambda cell: (cell.kind, cell.section_ms, cell.waiters)):
        eager = outcomes[cell, EAGER]
        handing = outcomes.get((cell, BACKING_OFF), eager)
        failures = [outcome.failure for outcome in (*eager, *handing) if outcome.failure]
        if not failures:
            rows.append(_row(cell, eager, handing))
        elif cell.case.startswith("lockstead"):
            raise CrowdError(f"{cell}: {failures[0]}")
        else:
            broken[str(cell)] = failures[0]
    return rows, broken


def most_of(cells: Sequence[Cell], kind: str) -> int:
    """Return the size of the largest crowd of that kind."""
    return max((cell.waiters for cell in cells if cell.kind == kind), default=1)


def add_ratios(rows: Sequence[dict[str, Any]], peers: Sequence[str]) -> list[dict[str, Any]]:
    """Add to every row the ratios of its gap to each peer's in the same crowd."""
    medians = {_cell(row): row["gap_ms"].median for row in rows}
    ratios = []
    for row in rows:
        against = {
            f"x {peer}": row["gap_ms"].median / medians[_cell(row)._replace(case=peer)]
            if _cell(row)._replace(case=peer) in medians
            else None
            for peer in peers
        }
        split = list(row).index("commands")
        items = list(row.items())
        ratios.append(dict([*items[:split], *against.items(), *items[split:]]))
    return ratios


def worst(rows: Sequence[dict[str, Any]], column: str, case: str, *, least: bool = False) -> tuple[str, float]:
    """Find the crowd with a case's worst value of a column: one in which it could not be measured, if any."""
    found = [(row[column], _cell(row).crowd) for row in rows if row["case"] == case and row[column] is not None]
    value, crowd = (min if least else max)(
        found, key=lambda one: (isnan(one[0]) != least, one[0]), default=(nan, "no crowd")
    )
    return crowd, value


def _cell(row: Mapping[str, Any]) -> Cell:
    return Cell(row["kind"], row["waiters"], row["section_ms"], row["case"])


def _row(cell: Cell, eager: list[Outcome], handing: list[Outcome]) -> dict[str, Any]:
    gap = spread(gaps_of([outcome.turns for outcome in handing]))
    return {
        **cell._asdict(),
        "gap_ms": gap.scaled(1e3),
        "p99_ms": 1e3 * gap.p99,
        "eager_gap_ms": 1e3 * spread(gaps_of([outcome.turns for outcome in eager])).median,
        "commands": median(outcome.commands for outcome in eager),
        "Jain": median(jain(outcome.turns, cell.waiters) for outcome in eager),
        "turns": sum(len(outcome.turns) for outcome in handing),
    }


def _case(
    cell: Cell, crowd: Crowd, seconds: float, *, backs_off: bool, count: Count | None = None
) -> Callable[[], list[Outcome]]:
    work = cell.section_ms / 1e3
    back_off = work * (cell.waiters - 1) / 2 * backs_off

    def run() -> list[Outcome]:
        start = monotonic() + 0.05 + cell.waiters / 2000
        order = Slice(cell.case, start, start + seconds, work, back_off)
        commands = nan
        try:
            with ExitStack() as stack:
                counted = stack.enter_context(count(cell.case)) if count else None
                turns = sorted(crowd(cell.waiters, order))
            if counted:
                commands = counted() / (len(turns) + cell.waiters)
        except CrowdError as error:
            return [Outcome([], failure=str(error))]
        if any(after.acquired < before.released for before, after in pairwise(turns)):
            return [Outcome([], failure="two held at once")]
        return [Outcome(turns, commands)]

    return run


def gaps_of(histories: list[list[Turn]]) -> list[float]:
    return [
        after.acquired - before.released
        for turns in histories
        for before, after in pairwise(turns)
        if after.worker != before.worker
    ]


def jain(turns: list[Turn], size: int) -> float:
    """Return Jain's index of fairness, over as many turns as can be shared equally."""
    whole = turns[: len(turns) - len(turns) % size]
    if not whole:
        return nan
    shares = [sum(turn.worker == worker for turn in whole) for worker in range(size)]
    return sum(shares) ** 2 / (size * sum(share**2 for share in shares))


def of_peer(adapter: Adapter, where: str) -> Acquire:
    """Make a client of a peer that stays open until the process ends."""
    context = adapter(where)
    locks = context.__enter__()
    _entered.append(context)
    return partial(locks, "bench")


_entered: list[object] = []
"""Keeps them referenced, so that they are not closed."""


@asynccontextmanager
async def of_async_peer(adapter: AsyncAdapter, where: str) -> AsyncIterator[AsyncAcquire]:
    async with adapter(where) as locks:
        yield partial(locks, "bench")


class CrowdError(Exception):
    """A worker of the crowd failed."""


@contextmanager
def processes(contenders: Contenders, size: int) -> Iterator[Crowd]:
    """Start processes that each make their own clients, and sleep while another crowd is measured."""
    context = forks()
    ends, others = zip(*(Pipe() for _ in range(size)), strict=True)
    last_holder = context.RawValue("i", -1)
    workers = [
        context.Process(target=_serve, args=(number, contenders, orders, last_holder), daemon=True)
        for number, orders in enumerate(others)
    ]
    for worker, orders in zip(workers, others, strict=True):
        worker.start()
        orders.close()

    def crowd(size: int, order: Slice) -> list[Turn]:
        for end in ends[:size]:
            end.send(order)
        answers = [end.recv() for end in ends[:size]]
        for answer in answers:
            if isinstance(answer, str):
                raise CrowdError(answer)
        return [turn for answer in answers for turn in answer]

    yield crowd
    for end in ends:
        end.send(None)
    for worker in workers:
        worker.join()


def forks() -> Any:
    """Return a context that starts fresh processes of the running program in milliseconds."""
    context = get_context("forkserver")
    context.set_forkserver_preload([name for name in sys.modules if not name.startswith("__")])
    return context


def _serve(number: int, contenders: Contenders, orders: Connection, last_holder: Any) -> None:
    clients: dict[str, Acquire] = {}
    with orders:
        while order := orders.recv():
            try:
                if order.case not in clients:
                    clients[order.case] = contenders[order.case]()
                orders.send(_take_turns(number, clients[order.case], order, last_holder))
            except Exception as error:  # what a peer raises is its result
                orders.send(why_not(error))


@contextmanager
def threads(contenders: Contenders, size: int) -> Iterator[Crowd]:
    """Start threads that share clients."""
    clients: dict[str, Acquire] = {}

    def crowd(size: int, order: Slice) -> list[Turn]:
        last_holder = SimpleNamespace(value=-1)
        try:
            if order.case not in clients:
                clients[order.case] = contenders[order.case]()
            acquire = clients[order.case]
            turns = [pool.submit(_take_turns, number, acquire, order, last_holder) for number in range(size)]
            return [turn for one in turns for turn in one.result()]
        except Exception as error:
            raise CrowdError(why_not(error)) from error

    with ThreadPoolExecutor(size) as pool:
        yield crowd


def _take_turns(number: int, acquire: Acquire, order: Slice, last_holder: Any) -> list[Turn]:
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
        if order.back_off:
            while last_holder.value == number and monotonic() < order.end:
                sleep(POLL)
            sleep(random() * order.back_off)


@contextmanager
def tasks(contenders: AsyncContenders) -> Iterator[Crowd]:
    """Make an event loop whose tasks share clients; it is idle while another crowd is measured."""

    stack = AsyncExitStack()
    clients: dict[str, AsyncAcquire] = {}

    async def run_all(size: int, order: Slice) -> list[Turn]:
        last_holder = SimpleNamespace(value=-1)
        try:
            if order.case not in clients:
                clients[order.case] = await stack.enter_async_context(contenders[order.case]())
            acquire = clients[order.case]
            histories = await asyncio.gather(
                *(_take_turns_async(number, acquire, order, last_holder) for number in range(size))
            )
        except Exception as error:
            raise CrowdError(why_not(error)) from error
        return [turn for turns in histories for turn in turns]

    with asyncio.Runner() as runner:
        yield lambda size, order: runner.run(run_all(size, order))
        runner.run(stack.aclose())


async def _take_turns_async(number: int, acquire: AsyncAcquire, order: Slice, last_holder: Any) -> list[Turn]:
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
        if order.back_off:
            while last_holder.value == number and monotonic() < order.end:  # noqa: ASYNC110 (as threads do)
                await asyncio.sleep(POLL)
            await asyncio.sleep(random() * order.back_off)
