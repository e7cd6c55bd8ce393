"""How long does a lock on PostgreSQL lie idle when it changes hands, and is it fair?

Gaps and fairness are measured as in bench.handover. The bare case blocks in `pg_advisory_lock`, with a connection per
worker: the server's queue, with nothing around it.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import sqlalchemy
from sqlalchemy_dlock.factory import create_sadlock

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
)
from bench._measure import report
from bench._postgres import Wire, options, served, sqlalchemy_url
from lockstead import AsyncDistributedLock, DistributedLock

BARE = "bare pg_advisory_lock"
DLOCK = "sqlalchemy-dlock"
PALS = "pals"
TABLE = "lockstead postgresql://"
ADVISORY = "lockstead postgresql+advisory://"


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument(
        "--seconds", type=float, default=0.35, help="how long a small crowd without work runs per round"
    )
    arguments = parser.parse_args()
    cells, seconds = (QUICK, arguments.seconds / 2) if arguments.quick else (FULL, arguments.seconds)
    with ExitStack() as stack:
        url = stack.enter_context(served(arguments.flavour, max_connections="500"))
        contenders = {name: partial(make, url) for name, make in CONTENDERS.items()}
        async_contenders = {name: partial(make, url) for name, make in ASYNC_CONTENDERS.items()}
        crowds = {
            "processes": stack.enter_context(processes(contenders, most_of(cells, "processes"))),
            "threads": stack.enter_context(threads(contenders, most_of(cells, "threads"))),
            "tasks": stack.enter_context(tasks(async_contenders)),
        }
        rows, broken = measure(crowds, cells, seconds, arguments.rounds)
    rows = add_ratios(rows, (BARE, DLOCK, PALS))
    report(f"Hand-over on {arguments.flavour}", rows, as_json=arguments.json, broken=broken)


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


def lockstead(url: str) -> Acquire:
    return partial(DistributedLock(url).acquire, "bench")


def advisory(url: str) -> Acquire:
    return lockstead(_advisory(url))


@asynccontextmanager
async def async_lockstead(url: str) -> AsyncIterator[AsyncAcquire]:
    async with AsyncDistributedLock(url) as locks:
        yield partial(locks.lock, "bench")


def async_advisory(url: str) -> AbstractAsyncContextManager[AsyncAcquire]:
    return async_lockstead(_advisory(url))


def _advisory(url: str) -> str:
    return url.replace("postgresql://", "postgresql+advisory://", 1)


CONTENDERS: Mapping[str, Callable[[str], Acquire]] = {
    BARE: bare,
    DLOCK: sqlalchemy_dlock,
    PALS: partial(of_peer, _peers.pals),
    TABLE: lockstead,
    ADVISORY: advisory,
}
ASYNC_CONTENDERS: Mapping[str, Callable[[str], AbstractAsyncContextManager[AsyncAcquire]]] = {
    TABLE: async_lockstead,
    ADVISORY: async_advisory,
}
QUICK = cells_of(("processes",), (10,), (5.0,), *CONTENDERS)
FULL = [
    *cells_of(("processes",), (2, 10), (5.0,), *CONTENDERS),
    *cells_of(("processes",), (10,), (0.0,), *CONTENDERS),
    *cells_of(("processes",), (50,), (5.0,), BARE, TABLE, ADVISORY),
    *cells_of(("threads",), (10,), (5.0,), *CONTENDERS),
    *cells_of(("tasks",), (10,), (5.0,), *ASYNC_CONTENDERS),
    *cells_of(("threads", "tasks"), (50, 200), (5.0,), TABLE),
]
"""Cases that need a connection per waiter, only where the server allows as many."""

if __name__ == "__main__":
    main()
