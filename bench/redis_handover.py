"""How long does a lock on Redis lie idle when it changes hands, what does it ask of the server, and is it fair?

Gaps and fairness are measured as in bench.handover; without work nobody stands back, as nobody would be waiting.
Commands are what clients send per acquisition (what a script calls is not counted) while everybody asks again at
once: so those that poll show what a crowd costs.

The prototype answers how to wake a waiter: release pushes to a list of the next one's own, who blocks on it (BLPOP)
over a connection of his own. leasehold publishes to one subscription per client: of its waiting threads one listens
for all.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager
from functools import partial
from statistics import median
from time import monotonic
from typing import NamedTuple

import redis
import redis.asyncio
import redis_lock

from bench._crowd import Acquire, AsyncAcquire, Crowd, Slice, Turn, case, gaps_of, jain, processes, tasks, threads
from bench._measure import interleave, report, spread
from bench._redis import TTL, Wire, options
from leasehold import AsyncDistributedLock, DistributedLock
from leasehold.stores.redis._resp import pack
from tests.servers.redis import RedisServer
from tests.servers.stats import commands_of

POLLER = "redis-py Lock"
PEER = "python-redis-lock"
OURS = "leasehold redis://"
POOL = 50
MANY = 1000
"""Connections, more than there are threads."""
MOST_PROCESSES = 10
LONGER = 2
"""How many times as long as the others whoever polls is measured: it hands over so rarely."""
PROTOTYPE = "BLPOP prototype (thin client)"
SMALL = 25
"""Up to so many get enough turns each, in so short a time, to tell whether they are shared fairly."""
SENT = {
    POLLER: ("set", "evalsha"),
    # Besides those it sends, there is one GET in every script of its: they stand for its EVALSHAs.
    PEER: ("get", "set", "blpop"),
    PROTOTYPE: ("evalsha", "blpop"),
    OURS: ("evalsha", "eval", "subscribe", "ping"),
}
"""The server counts commands whether a client sends them or a script calls them: these are the former."""
JOIN = """
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 1 end
redis.call('RPUSH', KEYS[2], ARGV[1])
return 0
"""
LEAVE = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
local next = redis.call('LPOP', KEYS[2])
if next then
  redis.call('SET', KEYS[1], next, 'PX', ARGV[2])
  redis.call('RPUSH', next, 1)
else
  redis.call('DEL', KEYS[1])
end
return 1
"""


class Outcome(NamedTuple):
    turns: list[Turn]
    commands: float
    """Per acquisition."""


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0.7, help="how long a small crowd runs per round")
    parser.add_argument("--crowds", default="2,10,50", help=f"sizes; of processes only those up to {MOST_PROCESSES}")
    parser.add_argument("--work", type=float, default=5.0, help="milliseconds for which each holds")
    arguments = parser.parse_args()
    work = arguments.work / 1e3
    sizes = [int(size) for size in arguments.crowds.split(",")]
    few = [size for size in sizes if size <= MOST_PROCESSES]
    with ExitStack() as stack:
        server = stack.enter_context(RedisServer(arguments.flavour))
        cases = {}
        for kind, name, fitting, crowd in crowds(server.url, few, sizes, stack):
            crowd(max(fitting), Slice(0.0, monotonic() + 0.2, 0.0, 0.0))  # to have all connections
            for size in fitting:
                seconds = arguments.seconds * max(size / SMALL, 1) * (LONGER if name == POLLER else 1)
                for courteous in {work > 0, False}:
                    history = case(crowd, size, seconds, work, courteous=courteous)
                    cases[kind, size, name, courteous] = partial(count, server, SENT[name], size, history)
        outcomes = interleave(cases, arguments.rounds, warm_up=0)
    gaps = {
        (kind, size, name): spread(gaps_of([outcome.turns for outcome in taken]))
        for (kind, size, name, courteous), taken in outcomes.items()
        if courteous == (work > 0)
    }
    rows = [
        {
            "crowd": f"{size} {kind}",
            "case": name,
            "gap ms (p10-p90)": gap.scaled(1e3),
            "p99": 1e3 * gap.p99,
            **{
                f"x {peer}": gap.median / gaps[kind, size, peer].median if (kind, size, peer) in gaps else None
                for peer in (POLLER, PEER)
            },
            "commands": median(outcome.commands for outcome in outcomes[kind, size, name, False]),
            "Jain": median(jain(outcome.turns, size) for outcome in outcomes[kind, size, name, False]),
            "turns": sum(len(outcome.turns) for outcome in outcomes[kind, size, name, work > 0]),
        }
        for (kind, size, name), gap in sorted(gaps.items(), key=lambda item: (KINDS.index(item[0][0]), item[0][1]))
    ]
    question = f"Hand-over on {arguments.flavour}, {arguments.work:g} ms of work each"
    report(question, rows, as_json=arguments.json)


def crowds(
    url: str, few: Sequence[int], sizes: Sequence[int], stack: ExitStack
) -> Iterator[tuple[str, str, Sequence[int], Crowd]]:
    """Start the crowds, each with the sizes it is to be measured in."""
    for name, contender in CONTENDERS.items():
        if few:
            yield "processes", name, few, stack.enter_context(processes(partial(contender, url), max(few)))
        yield "threads", name, sizes, stack.enter_context(threads(partial(contender, url), max(sizes)))
    for name, async_contender in ASYNC_CONTENDERS.items():
        yield "tasks", name, sizes, stack.enter_context(tasks(partial(async_contender, url)))


def count(server: RedisServer, sent: Sequence[str], size: int, run: Callable[[], list[list[Turn]]]) -> list[Outcome]:
    with commands_of(server) as calls:
        (turns,) = run()
    return [Outcome(turns, sum(calls[command] for command in sent) / (len(turns) + size))]


def redis_py(url: str) -> Acquire:
    server = redis.Redis.from_url(url, max_connections=MANY)
    return lambda: server.lock("bench:redis-py", timeout=TTL)


def python_redis_lock(url: str) -> Acquire:
    server = redis.Redis.from_url(url, max_connections=MANY)
    return lambda: redis_lock.Lock(server, "bench", expire=TTL)


def prototype(url: str) -> Acquire:
    here = threading.local()

    @contextmanager
    def acquire() -> Iterator[None]:
        if not hasattr(here, "wire"):
            here.wire = wire = Wire(url)
            here.owner = owner = f"prototype:{secrets.token_hex(8)}"
            keys = 2, "prototype", "prototype:line", owner, 1000 * TTL
            here.join = pack(("EVALSHA", wire.load(JOIN), *keys))
            here.leave = pack(("EVALSHA", wire.load(LEAVE), *keys))
            here.listen = pack(("BLPOP", owner, 0))
        if here.wire.call(here.join) == 0:
            here.wire.call(here.listen)
        yield
        here.wire.call(here.leave)

    return acquire


def leasehold(url: str) -> Acquire:
    return partial(DistributedLock(url).acquire, "bench")


@asynccontextmanager
async def async_redis_py(url: str) -> AsyncIterator[AsyncAcquire]:
    pool = redis.asyncio.BlockingConnectionPool.from_url(url, max_connections=POOL, timeout=None)
    async with redis.asyncio.Redis.from_pool(pool) as server:
        yield lambda: server.lock("bench:redis-py", timeout=TTL)


@asynccontextmanager
async def async_leasehold(url: str) -> AsyncIterator[AsyncAcquire]:
    async with AsyncDistributedLock(url) as locks:
        yield partial(locks.lock, "bench")


KINDS = ("processes", "threads", "tasks")
CONTENDERS: Mapping[str, Callable[[str], Acquire]] = {
    POLLER: redis_py,
    PEER: python_redis_lock,
    PROTOTYPE: prototype,
    OURS: leasehold,
}
ASYNC_CONTENDERS: Mapping[str, Callable[[str], AbstractAsyncContextManager[AsyncAcquire]]] = {
    POLLER: async_redis_py,
    OURS: async_leasehold,
}

if __name__ == "__main__":
    main()
