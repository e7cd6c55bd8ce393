"""How many uncontended pairs per second do a thousand tasks of one process complete, and over how many connections?

The floor is one connection, on which all requests of one turn of the loop are one write. The peers get as many
connections as they want: with fewer they are no faster. Slow cases do fewer pairs, to save time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from math import nan
from statistics import median
from time import perf_counter, process_time
from typing import NamedTuple

from bench._measure import Target, interleave, report
from bench._pairs import LOOPS
from bench._peers import ASYNC_REDIS, AsyncAdapter, for_many, prove_async, traces_in_redis, why_not
from bench._redis import DROP, TAKE, ThinProtocol, drop, options, take
from lockstead import AsyncDistributedLock
from tests.servers.redis import RedisServer
from tests.servers.stats import connections_to

FLOOR = "floor: one connection"
PEER = "redis-py Lock"
OURS = "lockstead redis://"
SECONDS = 0.5
"""How long a run may take, unless two pairs per task take longer."""

Pair = Callable[[str], Awaitable[object]]
Contender = Callable[[str], AbstractAsyncContextManager[Pair]]


class Run(NamedTuple):
    pairs_per_second: float
    cpu: float
    """The client's CPU time, in seconds per pair."""
    connections: int


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--pairs", type=int, default=20, help="how many each task does at most, one after another")
    parser.add_argument("--rounds", type=int, help="3, or 1 in a quick run")
    arguments = parser.parse_args()
    contenders: dict[str, Contender] = {FLOOR: one_connection, OURS: lockstead}
    peers = {PEER: ASYNC_REDIS[PEER]} if arguments.quick else ASYNC_REDIS
    contenders |= {name: partial(locks_of, peer) for name, peer in peers.items()}
    broken: dict[str, str] = {}
    with RedisServer(arguments.flavour) as server:

        def measure(loop: str, name: str) -> list[Run]:
            if f"{loop}, {name}" in broken:
                return []
            try:
                return [run(server, loop, contenders[name], arguments.tasks, arguments.pairs)]
            except Exception as error:
                if name not in peers:
                    raise
                broken[f"{loop}, {name}"] = why_not(error)
                return []

        chosen = [("asyncio", name) for name in contenders]
        chosen += [("uvloop", name) for name in (FLOOR, OURS, PEER) if not arguments.quick]
        cases = {case: partial(measure, *case) for case in chosen}
        runs = interleave(cases, arguments.rounds or (1 if arguments.quick else 3), warm_up=0)
    speeds = {case: median(run.pairs_per_second for run in taken) for case, taken in runs.items() if taken}
    rows = [
        {
            "loop": loop,
            "case": name,
            "pairs/s": speed,
            f"x {PEER}": speed / speeds.get((loop, PEER), nan),
            "client's CPU µs": 1e6 * median(run.cpu for run in runs[loop, name]),
            "connections": median(run.connections for run in runs[loop, name]),
        }
        for (loop, name), speed in speeds.items()
    ]
    targets = [
        Target(
            f"asyncio, {OURS}: times as many as {PEER}",
            speeds["asyncio", OURS] / speeds.get(("asyncio", PEER), nan),
            15,
            at_least=True,
        ),
        Target(f"asyncio, {OURS}: connections", max(run.connections for run in runs["asyncio", OURS]), 1),
    ]
    report(
        f"{arguments.tasks:,} tasks x up to {arguments.pairs} pairs on names of their own, {arguments.flavour}",
        rows,
        as_json=arguments.json,
        targets=targets,
        broken=broken,
    )


def run(server: RedisServer, loop: str, contender: Contender, tasks: int, pairs: int) -> Run:
    async def repeat(pair: Pair, name: str, times: int) -> None:
        for _ in range(times):
            await pair(name)

    async def run_all(pair: Pair, times: int) -> float:
        start = perf_counter()
        await asyncio.gather(*(repeat(pair, f"bench-{number}", times) for number in range(tasks)))
        return perf_counter() - start

    async def measure() -> Run:
        async with contender(server.url) as pair:
            await run_all(pair, 1)
            times = min(max(round(SECONDS / await run_all(pair, 1)), 2), pairs)
            cpu = process_time()
            seconds = await run_all(pair, times)
            cpu = process_time() - cpu
            return Run(tasks * times / seconds, cpu / (tasks * times), len(connections_to(server)))

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        return runner.run(measure())


@asynccontextmanager
async def one_connection(url: str) -> AsyncIterator[Pair]:
    protocol = await ThinProtocol.connect(url)
    taking, dropping = await protocol.load(TAKE), await protocol.load(DROP)

    async def pair(name: str) -> None:
        await protocol.call_together(take(taking, name))
        await protocol.call_together(drop(dropping, name))

    yield pair
    protocol.close()


@asynccontextmanager
async def locks_of(peer: AsyncAdapter, url: str) -> AsyncIterator[Pair]:
    async with peer(for_many(url)) as locks:
        with traces_in_redis(url) as traces:
            await prove_async(locks("bench"), traces)

        async def pair(name: str) -> None:
            async with locks(name):
                pass

        yield pair


@asynccontextmanager
async def lockstead(url: str) -> AsyncIterator[Pair]:
    async with AsyncDistributedLock(url) as locks:

        async def pair(name: str) -> None:
            handle = await locks.acquire(name)
            await handle.release()

        yield pair


if __name__ == "__main__":
    main()
