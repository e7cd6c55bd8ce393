"""How long does a lock on PostgreSQL lie idle when it changes hands, and is it fair?

Gaps and fairness are measured as in bench.handover. The bare driver blocks in `pg_advisory_lock` on a connection of
each contender's own: the server's queue, with nothing around it.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager
from functools import partial
from statistics import median
from time import monotonic
from typing import Any

import pals
import sqlalchemy
from sqlalchemy_dlock.factory import create_sadlock

from bench._crowd import Acquire, AsyncAcquire, Slice, case, gaps_of, jain, processes, tasks, threads
from bench._measure import interleave, report, spread
from bench._postgres import Wire, options, served, sqlalchemy_url
from leasehold import AsyncDistributedLock, DistributedLock

BARE = "bare pg_advisory_lock"
MOST_CONNECTIONS = 10
"""How many may wait on a connection each."""


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0.7, help="how long a small crowd runs per round")
    parser.add_argument("--crowds", default="2,10,50", help="sizes; what needs a connection each, only those up to 10")
    parser.add_argument("--work", type=float, default=5.0, help="milliseconds for which each holds")
    arguments = parser.parse_args()
    work = arguments.work / 1e3
    sizes = [int(size) for size in arguments.crowds.split(",")]
    few = [size for size in sizes if size <= MOST_CONNECTIONS]
    with ExitStack() as stack:
        enter = stack.enter_context
        url = enter(served(arguments.flavour))
        crowds = {}
        for name, contender in CONTENDERS.items():
            fitting = sizes if name == TABLE else few
            crowds["processes", name] = few, enter(processes(partial(contender, url), max(few)))
            crowds["threads", name] = fitting, enter(threads(partial(contender, url), max(fitting)))
        for name, async_contender in ASYNC_CONTENDERS.items():
            crowds["tasks", name] = sizes if name == TABLE else few, enter(tasks(partial(async_contender, url)))
        cases = {}
        for (kind, name), (fitting, crowd) in crowds.items():
            crowd(max(fitting), Slice(0.0, monotonic() + 0.3, 0.0, 0.0))  # to have all connections
            for size in fitting:
                for courteous in {work > 0, False}:
                    seconds = arguments.seconds * max(size / 25, 1)
                    cases[kind, size, name, courteous] = case(crowd, size, seconds, work, courteous=courteous)
        histories = interleave(cases, arguments.rounds, warm_up=0)
    gaps = {
        (kind, size, name): spread(gaps_of(taken))
        for (kind, size, name, courteous), taken in histories.items()
        if courteous == (work > 0)
    }
    kinds = ("processes", "threads", "tasks")
    rows = [
        {
            "crowd": f"{size} {kind}",
            "case": name,
            "gap ms (p10-p90)": gap.scaled(1e3),
            "p99": 1e3 * gap.p99,
            f"x {BARE}": gap.median / gaps[kind, size, BARE].median if (kind, size, BARE) in gaps else None,
            "Jain": median(jain(turns, size) for turns in histories[kind, size, name, False]),
            "turns": sum(len(turns) for turns in histories[kind, size, name, work > 0]),
        }
        for (kind, size, name), gap in sorted(gaps.items(), key=lambda item: (kinds.index(item[0][0]), item[0][1]))
    ]
    report(f"Hand-over on {arguments.flavour}, {arguments.work:g} ms of work each", rows, as_json=arguments.json)


def bare(url: str) -> Acquire:
    here = threading.local()

    @contextmanager
    def acquire() -> Iterator[None]:
        if not hasattr(here, "wire"):
            here.wire = Wire(url)
            here.wire.prepare(b"lock", "SELECT pg_advisory_lock(42)")
            here.wire.prepare(b"unlock", "SELECT pg_advisory_unlock(42)")
        here.wire.call(b"lock")
        yield
        here.wire.call(b"unlock")

    return acquire


def sqlalchemy_dlock(url: str) -> Acquire:
    engine = sqlalchemy.create_engine(sqlalchemy_url(url), isolation_level="AUTOCOMMIT", pool_size=100)
    here = threading.local()

    def acquire() -> Any:
        if not hasattr(here, "connection"):
            here.connection = engine.connect()
        return create_sadlock(here.connection, "bench")

    return acquire


def pals_lock(url: str) -> Acquire:
    def create_engine() -> sqlalchemy.Engine:
        return sqlalchemy.create_engine(sqlalchemy_url(url), pool_size=100)

    locker = pals.Locker("bench", create_engine_callable=create_engine)
    return lambda: locker.lock("bench")


def leasehold(url: str) -> Acquire:
    return partial(DistributedLock(url).acquire, "bench")


def advisory(url: str) -> Acquire:
    return leasehold(_advisory(url))


@asynccontextmanager
async def async_leasehold(url: str) -> AsyncIterator[AsyncAcquire]:
    async with AsyncDistributedLock(url) as locks:
        yield partial(locks.lock, "bench")


def async_advisory(url: str) -> AbstractAsyncContextManager[AsyncAcquire]:
    return async_leasehold(_advisory(url))


def _advisory(url: str) -> str:
    return url.replace("postgresql://", "postgresql+advisory://", 1)


TABLE = "leasehold postgresql://"
ADVISORY = "leasehold postgresql+advisory://"
CONTENDERS: Mapping[str, Callable[[str], Acquire]] = {
    BARE: bare,
    "sqlalchemy-dlock": sqlalchemy_dlock,
    "pals": pals_lock,
    TABLE: leasehold,
    ADVISORY: advisory,
}
ASYNC_CONTENDERS: Mapping[str, Callable[[str], AbstractAsyncContextManager[AsyncAcquire]]] = {
    TABLE: async_leasehold,
    ADVISORY: async_advisory,
}

if __name__ == "__main__":
    main()
