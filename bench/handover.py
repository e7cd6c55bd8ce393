"""How long does a lock between processes lie idle when it changes hands, and does everybody get a turn?

The gap runs from just before one process releases to the moment the next one holds. It is measured while the
releaser stands back until somebody else holds and a little longer, at random: otherwise a lock that favours the
releaser would look quick, and those that poll would all do so at once.
Fairness is measured while everybody asks again at once: Jain's index, 1 for equal shares, 1/n if one gets all.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from itertools import pairwise
from multiprocessing import get_context
from multiprocessing.connection import Connection
from random import random
from statistics import median
from time import monotonic, sleep
from typing import Any, NamedTuple

from filelock import FileLock

from bench._measure import interleave, options, report, spread
from leasehold import DistributedLock

CROWDS = (2, 10)
WORK = 0.005
PEER = "filelock"

Acquire = Callable[[], AbstractContextManager[object]]


class Turn(NamedTuple):
    acquired: float
    released: float
    worker: int


class Slice(NamedTuple):
    """What the workers are told to do together."""

    start: float
    end: float
    stand_back: float
    """For up to how long after somebody else holds; 0 to ask again without standing back at all."""


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.5, help="how long each case runs per round")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        crowds = {name: stack.enter_context(crowd(name, directory)) for name in CONTENDERS}
        cases = {
            (size, name, courteous): case(crowds[name][:size], arguments.seconds, WORK * (size - 1) / 2 * courteous)
            for size in CROWDS
            for name in CONTENDERS
            for courteous in (True, False)
        }
        histories = interleave(cases, arguments.rounds)
    gaps = {(size, name): spread(gaps_of(histories[size, name, True])) for size in CROWDS for name in CONTENDERS}
    rows = [
        {
            "processes": str(size),
            "case": name,
            "gap ms (p10-p90)": gap.scaled(1e3),
            "p99": 1e3 * gap.p99,
            f"x {PEER}": gap.median / gaps[size, PEER].median,
            "hand-overs": sum(len(turns) for turns in histories[size, name, True]),
            "Jain": median(jain(turns, size) for turns in histories[size, name, False]),
        }
        for (size, name), gap in gaps.items()
    ]
    report(f"Hand-over between processes, {1e3 * WORK:g} ms of work each", rows, as_json=arguments.json)


def case(workers: list[Connection], seconds: float, stand_back: float) -> Callable[[], list[list[Turn]]]:
    def run() -> list[list[Turn]]:
        start = monotonic() + 0.05
        for worker in workers:
            worker.send(Slice(start, start + seconds, stand_back))
        turns = sorted(turn for worker in workers for turn in worker.recv())
        if any(after.acquired < before.released for before, after in pairwise(turns)):
            msg = "two processes held at once"
            raise RuntimeError(msg)
        return [turns]

    return run


def gaps_of(histories: list[list[Turn]]) -> list[float]:
    return [after.acquired - before.released for turns in histories for before, after in pairwise(turns)]


def jain(turns: list[Turn], size: int) -> float:
    shares = [sum(turn.worker == worker for turn in turns) for worker in range(size)]
    return sum(shares) ** 2 / (size * sum(share**2 for share in shares))


@contextmanager
def crowd(name: str, directory: str) -> Iterator[list[Connection]]:
    """Start the processes once; they sleep while it is not their turn to be measured."""
    spawn = get_context("spawn")
    last_holder = spawn.RawValue("i", -1)
    path = f"{directory}/{list(CONTENDERS).index(name)}"
    ends = []
    processes = []
    for number in range(max(CROWDS)):
        ours, theirs = spawn.Pipe()
        processes.append(spawn.Process(target=work, args=(number, name, path, theirs, last_holder), daemon=True))
        processes[-1].start()
        theirs.close()
        ends.append(ours)
    yield ends
    for end in ends:
        end.send(None)
    for process in processes:
        process.join()


def work(number: int, name: str, path: str, orders: Connection, last_holder: Any) -> None:
    acquire = CONTENDERS[name](path)
    while order := orders.recv():
        sleep(max(order.start - monotonic(), 0.0))
        orders.send(take_turns(number, acquire, order, last_holder))


def take_turns(number: int, acquire: Acquire, order: Slice, last_holder: Any) -> list[Turn]:
    turns: list[Turn] = []
    while True:
        with acquire():
            acquired = monotonic()
            last_holder.value = number
            if acquired >= order.end:
                return turns
            sleep(WORK)
            turns.append(Turn(acquired, monotonic(), number))
        if order.stand_back:
            while last_holder.value == number and monotonic() < order.end:
                sleep(WORK / 10)
            sleep(random() * order.stand_back)


def flock(path: str) -> Acquire:
    """Block in the kernel, which wakes the next one itself: as quick as it gets on one machine, without a lease."""
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR)

    @contextmanager
    def acquire() -> Iterator[None]:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
        fcntl.flock(descriptor, fcntl.LOCK_UN)

    return acquire


def file_lock(path: str) -> Acquire:
    return FileLock(path).acquire


def client(path: str) -> Acquire:
    return partial(DistributedLock(f"sqlite:///{path}").acquire, "bench")


CONTENDERS: Mapping[str, Callable[[str], Acquire]] = {
    "floor: flock(2)": flock,
    PEER: file_lock,
    "leasehold sqlite://": client,
}

if __name__ == "__main__":
    main()
