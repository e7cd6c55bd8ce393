"""What does an uncontended acquire + release cost on Redis, beside redis-py's Lock and the bare commands underneath?

The floor is a blocking socket that sends two plain scripts, packed beforehand, and does not read their replies
closely. The same with leasehold's scripts shows what of our time is the server's.
All on one CPU, unless told otherwise, which isolates what the client costs: across networks all ratios shrink.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from functools import partial

import redis
import redis.asyncio
import redis_lock
import uvloop

from bench._measure import interleave, report, spread
from bench._redis import TTL, Wire, options
from bench.pair import async_client, client, time_async_pairs, time_pairs
from leasehold._model import Ask
from leasehold.stores.redis._resp import pack
from leasehold.stores.redis._scripts import JOIN, LEAVE, pack_join
from tests.servers.redis import RedisServer

FLOOR = "floor: two plain scripts"
PEER = "redis-py Lock"
MEMBERS = 5
TAKE = "return redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])"
DROP = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"

Case = Callable[[], list[float]]


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--pin", action=argparse.BooleanOptionalAction, default=True, help="all on one CPU")
    arguments = parser.parse_args()
    if arguments.pin:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    with ExitStack() as stack:
        enter = stack.enter_context
        url = enter(RedisServer(arguments.flavour)).url
        # One that persists nothing is worth a warning.
        members = [enter(RedisServer(arguments.flavour, save="3600 1")) for _ in range(MEMBERS)]
        redlock = f"redlock://{','.join(f'{host}:{port}' for host, port in (member.address for member in members))}/0"
        cases: dict[tuple[str, str], Case] = {
            ("threads", FLOOR): enter(plain_scripts(url)),
            ("threads", "floor: leasehold's scripts"): enter(own_scripts(url)),
            ("threads", PEER): enter(redis_py(url)),
            ("threads", "python-redis-lock"): enter(python_redis_lock(url)),
            ("threads", "leasehold redis://"): enter(client(url)),
            ("threads", f"leasehold redlock://, {MEMBERS} nodes"): enter(client(redlock)),
        }
        for driver, loop_factory in (("asyncio", asyncio.new_event_loop), ("uvloop", uvloop.new_event_loop)):
            runner = enter(asyncio.Runner(loop_factory=loop_factory))
            cases |= {
                (driver, PEER): enter(async_redis_py(url, runner)),
                (driver, "leasehold redis://"): enter(async_client(url, runner)),
                (driver, f"leasehold redlock://, {MEMBERS} nodes"): enter(async_client(redlock, runner)),
            }
        spreads = {case: spread(samples) for case, samples in interleave(cases, arguments.rounds).items()}
    rows = [
        {
            "driver": driver,
            "case": case,
            "µs (p10-p90)": times.scaled(1e6),
            "x floor": times.median / spreads["threads", FLOOR].median,
            f"x {PEER}": times.median / spreads[driver, PEER].median,
        }
        for (driver, case), times in spreads.items()
    ]
    where = "one CPU" if arguments.pin else "all CPUs"
    report(f"Uncontended acquire + release on {arguments.flavour}, {where}", rows, as_json=arguments.json)


def plain_scripts(url: str) -> AbstractContextManager[Case]:
    wire = Wire(url)
    take = pack(("EVALSHA", wire.load(TAKE), 1, "bench:floor", "me", 1000 * TTL))
    drop = pack(("EVALSHA", wire.load(DROP), 1, "bench:floor", "me"))
    return exchange(wire, take, drop)


def own_scripts(url: str) -> AbstractContextManager[Case]:
    wire = Wire(url)
    ask = Ask("bench", "host:12345:0123456789abcdef/1", TTL, TTL)
    key, channel = b"floor:bucket:0", b"floor:0123456789abcdef"
    arguments = ask.name, pack_join(ask, bytes((len(channel),)) + channel, is_member=False)
    wire.call(JOIN.pack_in_full(key, arguments))
    wire.call(LEAVE.pack_in_full(key, (ask.name, ask.owner)))
    return exchange(wire, JOIN.pack(key, arguments), LEAVE.pack(key, (ask.name, ask.owner)))


@contextmanager
def exchange(wire: Wire, join: bytes, leave: bytes) -> Iterator[Case]:
    assert wire.call(join)
    assert wire.call(leave) == 1
    send, receive = wire.socket.sendall, wire.socket.recv

    def pair() -> None:
        send(join)
        receive(4096)
        send(leave)
        receive(4096)

    with closing(wire):
        yield partial(time_pairs, pair)


@contextmanager
def redis_py(url: str) -> Iterator[Case]:
    with redis.Redis.from_url(url) as server:
        lock = server.lock("bench:redis-py", timeout=TTL)

        def pair() -> None:
            lock.acquire()
            lock.release()

        yield partial(time_pairs, pair)


@contextmanager
def python_redis_lock(url: str) -> Iterator[Case]:
    with redis.Redis.from_url(url) as server:
        lock = redis_lock.Lock(server, "bench", expire=TTL)

        def pair() -> None:
            lock.acquire()
            lock.release()

        yield partial(time_pairs, pair)


@contextmanager
def async_redis_py(url: str, runner: asyncio.Runner) -> Iterator[Case]:
    server = redis.asyncio.Redis.from_url(url)
    lock = server.lock("bench:redis-py", timeout=TTL)

    async def pair() -> None:
        await lock.acquire()
        await lock.release()

    yield partial(time_async_pairs, runner, pair)
    runner.run(server.aclose())


if __name__ == "__main__":
    main()
