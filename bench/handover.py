"""How long does a lock of one machine lie idle when it changes hands, and is it fair?

The gap runs from just before one process releases to the moment the next one holds. It is measured while the
releaser backs off until another holds, and a random time longer: otherwise a lock that favours the releaser would look
fast, and those that poll would all do so at once.
Fairness is measured while all ask again at once: Jain's index, 1 for equal shares, 1/n if one gets all.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager
from functools import partial

from bench import _peers
from bench._contention import (
    Acquire,
    AsyncAcquire,
    add_ratios,
    cells_of,
    measure,
    most_of,
    of_peer,
    processes,
    tasks,
    threads,
    worst,
)
from bench._measure import Target, options, report
from lockstead import AsyncDistributedLock, DistributedLock

FLOOR = "floor: flock(2)"
PEER = "filelock"
FASTENERS = "fasteners"
OURS = "lockstead sqlite://"
MEMORY = "lockstead memory://"


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument(
        "--seconds", type=float, default=0.35, help="how long a small crowd without work runs per round"
    )
    arguments = parser.parse_args()
    cells, seconds = (QUICK, arguments.seconds / 2) if arguments.quick else (FULL, arguments.seconds)
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        contenders = {name: partial(make, directory) for name, make in CONTENDERS.items()}
        async_contenders = {name: partial(make, directory) for name, make in ASYNC_CONTENDERS.items()}
        crowds = {
            "processes": stack.enter_context(processes(contenders, most_of(cells, "processes"))),
            "threads": stack.enter_context(threads(contenders, most_of(cells, "threads"))),
            "tasks": stack.enter_context(tasks(async_contenders)),
        }
        rows, broken = measure(crowds, cells, seconds, arguments.rounds, slow={PEER, FASTENERS})
    rows = add_ratios(rows, (PEER, FLOOR))
    crowd, gap = worst([row | {"gap": row["gap_ms"].median} for row in rows if row["kind"] == "processes"], "gap", OURS)
    target = Target(f"gap between processes in ms, a tenth of {PEER}'s 50 ms poll, at worst ({crowd})", gap, 5.0)
    report("Hand-over on one machine", rows, as_json=arguments.json, targets=[target], broken=broken)


def flock(directory: str) -> Acquire:
    """Block in the kernel, which wakes the next waiter itself: the fastest on one machine, without a lease."""
    descriptor = os.open(f"{directory}/flock", os.O_CREAT | os.O_RDWR)

    @contextmanager
    def acquire() -> Iterator[None]:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
        fcntl.flock(descriptor, fcntl.LOCK_UN)

    return acquire


def client(directory: str) -> Acquire:
    return partial(DistributedLock(f"sqlite:///{directory}/db").acquire, "bench")


def memory(directory: str) -> Acquire:
    return partial(DistributedLock("memory://bench").acquire, "bench")


@asynccontextmanager
async def async_client(directory: str) -> AsyncIterator[AsyncAcquire]:
    async with AsyncDistributedLock(f"sqlite:///{directory}/db") as locks:
        yield partial(locks.lock, "bench")


@asynccontextmanager
async def async_memory(directory: str) -> AsyncIterator[AsyncAcquire]:
    async with AsyncDistributedLock("memory://bench-async") as locks:
        yield partial(locks.lock, "bench")


CONTENDERS: Mapping[str, Callable[[str], Acquire]] = {
    FLOOR: flock,
    PEER: partial(of_peer, _peers.filelock),
    FASTENERS: partial(of_peer, _peers.fasteners),
    OURS: client,
    MEMORY: memory,
}
ASYNC_CONTENDERS: Mapping[str, Callable[[str], AbstractAsyncContextManager[AsyncAcquire]]] = {
    OURS: async_client,
    MEMORY: async_memory,
}
QUICK = cells_of(("processes",), (10,), (5.0,), FLOOR, PEER, FASTENERS, OURS)
FULL = [
    *cells_of(("processes",), (2, 10, 50), (5.0,), FLOOR, PEER, FASTENERS, OURS),
    *cells_of(("processes",), (10,), (0.0,), FLOOR, PEER, FASTENERS, OURS),
    *cells_of(("threads", "tasks"), (2, 10, 50), (5.0,), OURS, MEMORY),
]

if __name__ == "__main__":
    main()
