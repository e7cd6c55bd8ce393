"""How many uncontended pairs a second do a thousand tasks of one process get done, and over how many connections?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from statistics import median
from time import perf_counter
from typing import NamedTuple

import redis.asyncio
import uvloop

from bench._measure import interleave, report
from bench._redis import TTL, options
from leasehold import AsyncDistributedLock
from tests.servers.redis import RedisServer
from tests.servers.stats import connections_to

PEER = "redis-py Lock"
OURS = "leasehold redis://"
POOL = 50
"""Connections of redis-py's: with a pool that does not block, a thousand tasks raise."""
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}

Pair = Callable[[str], Awaitable[None]]


class Run(NamedTuple):
    pairs_per_second: float
    connections: int


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--pairs", type=int, default=20, help="how many each task does, one after another")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with RedisServer(arguments.flavour) as server:
        cases = {
            (loop, name): partial(run, server, loop, CONTENDERS[name], arguments.tasks, arguments.pairs)
            for loop, name in (("asyncio", PEER), ("asyncio", OURS), ("uvloop", OURS))
        }
        runs = interleave(cases, arguments.rounds, warm_up=0)
    speeds = {case: median(run.pairs_per_second for run in runs[case]) for case in cases}
    rows = [
        {
            "loop": loop,
            "case": name,
            "pairs/s": speed,
            f"x {PEER}": speed / speeds["asyncio", PEER],
            "connections": median(run.connections for run in runs[loop, name]),
        }
        for (loop, name), speed in speeds.items()
    ]
    question = f"{arguments.tasks:,} tasks x {arguments.pairs} pairs on names of their own, {arguments.flavour}"
    report(question, rows, as_json=arguments.json)


def run(server: RedisServer, loop: str, contender: Contender, tasks: int, pairs: int) -> list[Run]:
    async def repeat(pair: Pair, name: str, times: int) -> None:
        for _ in range(times):
            await pair(name)

    async def everybody(pair: Pair, times: int) -> float:
        start = perf_counter()
        await asyncio.gather(*(repeat(pair, f"bench:{number}", times) for number in range(tasks)))
        return perf_counter() - start

    async def measure() -> Run:
        async with contender(server.url) as pair:
            await everybody(pair, 1)
            seconds = await everybody(pair, pairs)
            return Run(tasks * pairs / seconds, len(connections_to(server)))

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        return [runner.run(measure())]


@asynccontextmanager
async def redis_py(url: str) -> AsyncIterator[Pair]:
    pool = redis.asyncio.BlockingConnectionPool.from_url(url, max_connections=POOL, timeout=None)
    async with redis.asyncio.Redis.from_pool(pool) as server:

        async def pair(name: str) -> None:
            lock = server.lock(name, timeout=TTL)
            await lock.acquire()
            await lock.release()

        yield pair


@asynccontextmanager
async def leasehold(url: str) -> AsyncIterator[Pair]:
    async with AsyncDistributedLock(url) as locks:

        async def pair(name: str) -> None:
            handle = await locks.acquire(name)
            await handle.release()

        yield pair


Contender = Callable[[str], AbstractAsyncContextManager[Pair]]
CONTENDERS: dict[str, Contender] = {PEER: redis_py, OURS: leasehold}

if __name__ == "__main__":
    main()
