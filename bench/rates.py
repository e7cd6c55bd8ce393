"""What does one decision of a rate limiter cost, compared with `limits` and the bare script?

Every request is allowed. lockstead also returns what remains and when to retry; `limits` needs another request for
that, as in "+ stats". The floor is a blocking socket that sends lockstead's script, packed beforehand, and does not
parse its replies.
By default all runs on one CPU, which isolates the client's cost: across networks the round trips dominate.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from typing import Any

import limits
import limits.aio.storage
import limits.aio.strategies
import limits.storage
import limits.strategies
import uvloop

from bench._measure import Spread, interleave, report, spread
from bench._pairs import BLOCK, time_async_pairs, time_pairs
from bench._redis import Wire, options
from lockstead import AsyncDistributedLock, DistributedLock
from lockstead.primitives.rate_limit import rate
from lockstead.stores.redis.commands import CONSUME, pack_rate_request
from tests.servers.redis import RedisServer

LIMIT = 100_000
PER = 3600
ITEM = limits.RateLimitItemPerHour(LIMIT)
FLOOR = "threads", "redis", "floor: lockstead's script"
PEER = "limits, moving window"

Case = Callable[[], list[float]]
Cases = dict[tuple[str, str, str], Case]


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, help="60, or 5 in a quick run")
    parser.add_argument("--pin", action=argparse.BooleanOptionalAction, default=True, help="all on one CPU")
    arguments = parser.parse_args()
    rounds = arguments.rounds or (5 if arguments.quick else 60)
    if arguments.pin:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    with ExitStack() as stack:
        enter = stack.enter_context
        server = enter(RedisServer(arguments.flavour))
        directory = enter(tempfile.TemporaryDirectory())
        cases: Cases = {
            FLOOR: enter(own_script(server.url)),
            **peers("redis", limits.storage.RedisStorage(server.url)),
            ("threads", "redis", "lockstead"): enter(client(server.url)),
            **peers("memory", limits.storage.MemoryStorage()),
            ("threads", "memory", "lockstead"): enter(client("memory://bench")),
            ("threads", "sqlite", "lockstead"): enter(client(f"sqlite:///{directory}/threads.db")),
        }
        for runtime, loop_factory in (("asyncio", asyncio.new_event_loop), ("uvloop", uvloop.new_event_loop)):
            runner = enter(asyncio.Runner(loop_factory=loop_factory))
            storage = limits.aio.storage.RedisStorage(f"async+{server.url}", implementation="redispy")
            cases |= {
                **async_peers(runtime, "redis", storage, runner),
                (runtime, "redis", "lockstead"): enter(async_client(server.url, runner)),
            }
            if runtime == "asyncio":
                cases |= {
                    **async_peers(runtime, "memory", limits.aio.storage.MemoryStorage(), runner),
                    (runtime, "memory", "lockstead"): enter(async_client("memory://async-bench", runner)),
                    (runtime, "sqlite", "lockstead"): enter(async_client(f"sqlite:///{directory}/async.db", runner)),
                }
        trips = {case: round_trips(server, decide) for case, decide in cases.items() if case[1] == "redis"}
        spreads = {case: spread(samples) for case, samples in interleave(cases, rounds).items()}
    rows = [
        {
            "runtime": runtime,
            "case": f"{case} ({store})",
            "µs (p10-p90)": times.scaled(1e6),
            "round trips": trips.get((runtime, store, case)),
            "x floor": times.median / spreads[FLOOR].median,
            f"x {PEER}": ratio(times, spreads.get((runtime, store, PEER))),
        }
        for (runtime, store, case), times in spreads.items()
    ]
    where = "one CPU" if arguments.pin else "all CPUs"
    report(f"One decision of a rate limiter, {arguments.flavour}, {where}", rows, as_json=arguments.json)


def ratio(times: Spread, others: Spread | None) -> float | None:
    return times.median / others.median if others else None


def round_trips(server: RedisServer, decide: Case) -> float:
    """Count the server's reads from its sockets for one decision, after all scripts were loaded."""
    decide()
    with closing(server.client()) as observer:
        before = observer.info("stats")["total_reads_processed"]
        decide()
        own_request = 1
        return float(observer.info("stats")["total_reads_processed"] - before - own_request) / BLOCK


@contextmanager
def own_script(url: str) -> Iterator[Case]:
    wire = Wire(url)
    key, arguments = b"floor:rate", (pack_rate_request(rate(LIMIT, PER, None).request("bench", 1)),)
    wire.call(CONSUME.pack_in_full(key, arguments))
    consume = CONSUME.pack(key, arguments)
    assert wire.call(consume)
    send, receive = wire.socket.sendall, wire.socket.recv

    def decide() -> None:
        send(consume)
        receive(4096)

    with closing(wire):
        yield partial(time_pairs, decide)


@contextmanager
def client(url: str) -> Iterator[Case]:
    with DistributedLock(url) as locks:
        limiter = locks.rate_limiter("bench", LIMIT, PER)
        assert limiter.try_acquire()
        yield partial(time_pairs, limiter.try_acquire)


@contextmanager
def async_client(url: str, runner: asyncio.Runner) -> Iterator[Case]:
    locks = AsyncDistributedLock(url)
    limiter = locks.rate_limiter("async-bench", LIMIT, PER)
    yield partial(time_async_pairs, runner, limiter.try_acquire)
    runner.run(locks.close())


def peers(store: str, storage: Any) -> Cases:
    moving = limits.strategies.MovingWindowRateLimiter(storage)
    sliding = limits.strategies.SlidingWindowCounterRateLimiter(storage)
    fixed = limits.strategies.FixedWindowRateLimiter(storage)

    def with_stats() -> None:
        moving.hit(ITEM, "with stats")
        moving.get_window_stats(ITEM, "with stats")

    decisions: dict[str, Callable[[], Any]] = {
        PEER: partial(moving.hit, ITEM, "moving"),
        f"{PEER} + stats": with_stats,
        "limits, sliding window": partial(sliding.hit, ITEM, "sliding"),
        "limits, fixed window": partial(fixed.hit, ITEM, "fixed"),
    }
    return {("threads", store, case): partial(time_pairs, decide) for case, decide in decisions.items()}


def async_peers(runtime: str, store: str, storage: Any, runner: asyncio.Runner) -> Cases:
    moving = limits.aio.strategies.MovingWindowRateLimiter(storage)
    sliding = limits.aio.strategies.SlidingWindowCounterRateLimiter(storage)
    fixed = limits.aio.strategies.FixedWindowRateLimiter(storage)

    async def with_stats() -> None:
        await moving.hit(ITEM, runtime, "with stats")
        await moving.get_window_stats(ITEM, runtime, "with stats")

    decisions: dict[str, Callable[[], Any]] = {
        PEER: partial(moving.hit, ITEM, runtime, "moving"),
        f"{PEER} + stats": with_stats,
        "limits, sliding window": partial(sliding.hit, ITEM, runtime, "sliding"),
        "limits, fixed window": partial(fixed.hit, ITEM, runtime, "fixed"),
    }
    return {(runtime, store, case): partial(time_async_pairs, runner, decide) for case, decide in decisions.items()}


if __name__ == "__main__":
    main()
