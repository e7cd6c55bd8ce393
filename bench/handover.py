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
from contextlib import ExitStack, contextmanager
from functools import partial
from statistics import median

from filelock import FileLock

from bench._crowd import Acquire, case, gaps_of, jain, processes
from bench._measure import interleave, options, report, spread
from leasehold import DistributedLock

CROWDS = (2, 10)
WORK = 0.005
PEER = "filelock"


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.5, help="how long each case runs per round")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        crowds = {
            name: stack.enter_context(processes(partial(contender, f"{directory}/{number}"), max(CROWDS)))
            for number, (name, contender) in enumerate(CONTENDERS.items())
        }
        cases = {
            (size, name, courteous): case(crowds[name], size, arguments.seconds, WORK, courteous=courteous)
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
