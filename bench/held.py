"""What does it cost one process to keep thousands of locks in memory, and is any of them lost?

The floor is the store's own step: the same renewals in the same batches, without a client that schedules them.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any, NamedTuple

from bench._measure import Target, interleave, options, report
from lockstead import AsyncDistributedLock, AsyncLockHandle, DistributedLock, LockHandle, LockInfo
from lockstead.core.model import GONE, Ask, Renewal, Standing
from lockstead.core.runtime import drive
from lockstead.core.store import Store
from lockstead.core.timing import BATCH
from lockstead.runtimes.aio import AsyncRuntime
from lockstead.runtimes.threads import ThreadRuntime
from lockstead.stores import open_store
from lockstead.stores.memory import MemoryServer

TTL = 6.0
SIZES = (1000, 10_000)
SHORTEST = 2.5
"""Seconds, in which everything is renewed once."""
FLOOR = "floor: the store's step"
THREADS, TASKS = "lockstead threads", "lockstead asyncio"


class Kept(NamedTuple):
    """The result of keeping locks renewed for a while."""

    cpu: float
    renewals: int
    requests: int = 0
    helpers: int = 0
    connections: int = 0
    lost: int = 0

    def cpu_per_renewal(self) -> float:
        return self.cpu / self.renewals


class Meter:
    """Counts the renewals sent to a store, and the threads or tasks that exist at the time."""

    def __init__(self, store: Store, count_helpers: Callable[[], int]) -> None:
        self._renew = store.renew
        self._count_helpers = count_helpers
        self.start()
        store.renew = self._count_and_renew  # type: ignore[method-assign]

    def start(self) -> None:
        self._started = time.process_time()
        self._renewals = self._requests = self._helpers = 0

    async def _count_and_renew(self, renewals: Sequence[Renewal], timeout: float) -> list[Standing]:
        self._renewals += len(renewals)
        self._requests += 1
        self._helpers = max(self._helpers, self._count_helpers())
        return await self._renew(renewals, timeout)

    def stop(self) -> Kept:
        return Kept(time.process_time() - self._started, self._renewals, self._requests, self._helpers)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--seconds", type=float, default=4.5, help="how long they are kept: two periods")
    arguments = parser.parse_args()
    sizes, seconds = ((1000,), SHORTEST) if arguments.quick else (SIZES, arguments.seconds)
    cases: dict[tuple[int, str], Callable[[], list[Kept]]] = {}
    for size in sizes:
        names = [f"bench:{number}" for number in range(size)]
        cases |= {
            (size, FLOOR): partial(renew_directly, names),
            (size, THREADS): partial(keep, "memory://held", names, seconds),
            (size, TASKS): partial(keep_async, "memory://held-async", names, seconds),
        }
    kept = interleave(cases, rounds=1, warm_up=0)
    rows = rows_of(kept)
    question = f"Held in memory, ttl {TTL:g} s, one process"
    report(question, rows, as_json=arguments.json, targets=targets(rows, (THREADS, TASKS)))


def rows_of(kept: Mapping[tuple[int, str], Sequence[Kept]]) -> list[dict[str, Any]]:
    cpu = {case: median(map(Kept.cpu_per_renewal, rounds)) for case, rounds in kept.items()}
    return [
        {
            "case": case,
            "locks": size,
            "CPU ms / 1,000 renewals": 1e6 * cpu[size, case],
            "x floor": cpu[size, case] / cpu[size, FLOOR] if (size, FLOOR) in cpu else None,
            "renewals": sum(result.renewals for result in rounds),
            "requests": sum(result.requests for result in rounds),
            "threads or tasks": max(result.helpers for result in rounds),
            "connections": max(result.connections for result in rounds),
            "lost": sum(result.lost for result in rounds),
        }
        for (size, case), rounds in kept.items()
    ]


def targets(rows: Sequence[Mapping[str, Any]], ours: Collection[str]) -> list[Target]:
    """Return the targets for the largest number of locks, with the figures of the worse of these cases."""
    most = max(row["locks"] for row in rows)
    bounds = {"CPU ms / 1,000 renewals": 5, "threads or tasks": 1, "connections": 2, "lost": 0}
    return [
        Target(
            f"{column}, {most:,} held",
            float(max(row[column] for row in rows if row["locks"] == most and row["case"] in ours)),
            float(bound),
        )
        for column, bound in bounds.items()
    ]


def renew_directly(names: Sequence[str]) -> list[Kept]:
    server = MemoryServer()
    for name in names:
        server.join(Ask(name, f"me/{name}", TTL, TTL))
    renewals = [Renewal(name, f"me/{name}", TTL, TTL) for name in names]
    started = time.process_time()
    standings = [
        standing
        for start in range(0, len(renewals), BATCH)
        for standing in server.renew(renewals[start : start + BATCH])[0]
    ]
    return [Kept(time.process_time() - started, len(renewals), lost=standings.count(GONE))]


def keep(url: str, names: Sequence[str], seconds: float, connections: Callable[[], int] = lambda: 0) -> list[Kept]:
    store = open_store(url, ThreadRuntime())
    meter = Meter(store, lambda: threading.active_count() - 1)
    with DistributedLock(store, ttl=TTL) as locks:
        handles = [locks.acquire(name) for name in names]
        meter.start()
        time.sleep(seconds)
        kept = meter.stop()
        kept = kept._replace(connections=connections(), lost=count_lost(handles, locks.inspect()))
    drive(store.close())
    return [kept]


def keep_async(
    url: str, names: Sequence[str], seconds: float, connections: Callable[[], int] = lambda: 0
) -> list[Kept]:
    async def keep() -> Kept:
        store = open_store(url, AsyncRuntime())
        meter = Meter(store, lambda: len(asyncio.all_tasks()) - 1)
        async with AsyncDistributedLock(store, ttl=TTL) as locks:
            handles = [await locks.acquire(name) for name in names]
            meter.start()
            await asyncio.sleep(seconds)
            kept = meter.stop()
            kept = kept._replace(connections=connections(), lost=count_lost(handles, await locks.inspect()))
        await store.close()
        return kept

    return [asyncio.run(keep())]


def count_lost(handles: Sequence[LockHandle | AsyncLockHandle], seen: Iterable[LockInfo]) -> int:
    """Count locks that either side does not regard as held: the client by its trust window, the store by its lines."""
    stored = {(info.name, info.fence) for info in seen}
    return sum(not handle.is_held or (handle.name, handle.fence) not in stored for handle in handles)


if __name__ == "__main__":
    main()
