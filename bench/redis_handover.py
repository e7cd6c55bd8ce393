"""How long does a lock on Redis lie idle when it changes hands, how many commands does it take, and is it fair?

Gaps and fairness are measured as in bench.handover; without work no worker backs off, as none would be waiting.
Commands are those that clients send per acquisition (a script's calls are not counted) while all ask again at once: so
those that poll show what a crowd costs.

The prototype is another way to wake a waiter: a release pushes to a list of the next waiter's, which blocks on it
(BLPOP) over its own connection. lockstead publishes to one subscription per client: one of its waiting threads receives
for all.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager
from functools import partial
from math import nan
from typing import Any

import redis

from bench import _peers
from bench._contention import (
    Acquire,
    AsyncAcquire,
    add_ratios,
    cells_of,
    measure,
    most_of,
    of_async_peer,
    of_peer,
    processes,
    tasks,
    threads,
    worst,
)
from bench._measure import Target, report
from bench._peers import for_many
from bench._redis import SCRIPTS, TTL, Wire, options
from lockstead import AsyncDistributedLock, DistributedLock
from lockstead.stores.redis.resp import pack
from tests.servers.redis import RedisServer
from tests.servers.stats import commands_of

POLLER = "redis-py Lock"
BUSY_POLLER = "redis-py Lock, 1 ms polling"
PEER = "python-redis-lock"
SEMAPHORE, SHERLOCK, TOOZ, GRELMICRO, POTTERY = "py-redis-semaphore", "sherlock", "tooz", "grelmicro", "pottery"
OURS = "lockstead redis://"
PROTOTYPE = "BLPOP prototype (thin client)"
SECTIONS = (0.0, 5.0)
"""Milliseconds for which each holds."""
SENT = {
    POLLER: ("set", "evalsha"),
    BUSY_POLLER: ("set", "evalsha"),
    # Besides those it sends, there is one GET in every script of its: they stand for its EVALSHAs.
    PEER: ("get", "set", "blpop"),
    PROTOTYPE: ("evalsha", "blpop"),
    OURS: ("evalsha", "eval", "subscribe", "ping"),
}
"""The commands that clients send, where known: the server's counts include those that scripts call."""
JOIN = SCRIPTS.joinpath("prototype_join.lua").read_text("utf-8")
LEAVE = SCRIPTS.joinpath("prototype_leave.lua").read_text("utf-8")


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument(
        "--seconds", type=float, default=0.35, help="how long a small crowd without work runs per round"
    )
    arguments = parser.parse_args()
    cells, seconds = (QUICK, arguments.seconds / 2) if arguments.quick else (FULL, arguments.seconds)
    with ExitStack() as stack:
        server = stack.enter_context(RedisServer(arguments.flavour))
        contenders = {name: partial(make, server.url) for name, make in CONTENDERS.items()}
        async_contenders = {name: partial(make, server.url) for name, make in ASYNC_CONTENDERS.items()}
        crowds = {
            "threads": stack.enter_context(threads(contenders, most_of(cells, "threads"))),
            "tasks": stack.enter_context(tasks(async_contenders)),
            "processes": stack.enter_context(processes(contenders, most_of(cells, "processes"))),
        }
        rows, broken = measure(
            crowds,
            cells,
            seconds,
            arguments.rounds,
            slow={POLLER, SHERLOCK, TOOZ, GRELMICRO, POTTERY},
            count=partial(count, server),
        )
    rows = add_ratios(rows, (PEER, POLLER))
    report(
        f"Hand-over on {arguments.flavour}", rows, as_json=arguments.json, targets=list(targets(rows)), broken=broken
    )


def targets(rows: Sequence[dict[str, Any]]) -> Iterator[Target]:
    for peer, bound in ((PEER, 1 / 3), (POLLER, 1 / 20)):
        crowd, ratio = worst(rows, f"x {peer}", OURS)
        yield Target(f"gap, ratio to {peer}'s, at worst ({crowd})", ratio, bound)
    crowd, commands = worst(rows, "commands", OURS)
    yield Target(f"commands per acquisition, at worst ({crowd})", commands, 3.5)
    crowd, fairness = worst(rows, "Jain", OURS, least=True)
    yield Target(f"Jain, at worst ({crowd})", fairness, 0.95, at_least=True)


@contextmanager
def count(server: RedisServer, case: str) -> Iterator[Callable[[], float]]:
    with commands_of(server) as calls:
        yield lambda: sum(calls[command] for command in SENT[case]) if case in SENT else nan


def redis_py(url: str) -> Acquire:
    return of_peer(_peers.redis_py, for_many(url))


def python_redis_lock(url: str) -> Acquire:
    return of_peer(_peers.python_redis_lock, for_many(url))


def polling(url: str) -> Acquire:
    server = redis.Redis.from_url(for_many(url))
    return lambda: server.lock("bench:polling", timeout=TTL, sleep=0.001)


def prototype(url: str) -> Acquire:
    here = threading.local()

    @contextmanager
    def acquire() -> Iterator[None]:
        if not hasattr(here, "wire"):
            here.wire = wire = Wire(url)
            here.owner = owner = f"prototype:{secrets.token_hex(8)}"
            keys = b"2", "prototype", "prototype:line", owner, str(1000 * TTL)
            here.join = pack(("EVALSHA", wire.load(JOIN), *keys))
            here.leave = pack(("EVALSHA", wire.load(LEAVE), *keys))
            here.wait = pack(("BLPOP", owner, b"0"))
        if here.wire.call(here.join) == 0:
            here.wire.call(here.wait)
        yield
        here.wire.call(here.leave)

    return acquire


def lockstead(url: str) -> Acquire:
    return partial(DistributedLock(url).acquire, "bench")


def async_redis_py(url: str) -> AbstractAsyncContextManager[AsyncAcquire]:
    return of_async_peer(_peers.async_redis_py, for_many(url))


@asynccontextmanager
async def async_lockstead(url: str) -> AsyncIterator[AsyncAcquire]:
    async with AsyncDistributedLock(url) as locks:
        yield partial(locks.lock, "bench")


CONTENDERS: Mapping[str, Callable[[str], Acquire]] = {
    POLLER: redis_py,
    BUSY_POLLER: polling,
    PEER: python_redis_lock,
    SEMAPHORE: partial(of_peer, _peers.py_redis_semaphore),
    SHERLOCK: partial(of_peer, _peers.sherlock),
    TOOZ: partial(of_peer, _peers.tooz_redis),
    PROTOTYPE: prototype,
    OURS: lockstead,
}
ASYNC_CONTENDERS: Mapping[str, Callable[[str], AbstractAsyncContextManager[AsyncAcquire]]] = {
    POLLER: async_redis_py,
    GRELMICRO: partial(of_async_peer, _peers.grelmicro),
    POTTERY: partial(of_async_peer, _peers.async_pottery),
    OURS: async_lockstead,
}
CROWDS = (2, 10, 50, 200)
QUICK = [
    *cells_of(("threads", "processes"), (10,), SECTIONS, PEER, PROTOTYPE, OURS),
    *cells_of(("threads", "processes"), (10,), (5.0,), POLLER, BUSY_POLLER),
]
FULL = [
    *cells_of(("threads", "processes"), CROWDS, SECTIONS, PEER, PROTOTYPE, OURS),
    *cells_of(("tasks",), CROWDS, SECTIONS, OURS),
    *cells_of(("threads",), CROWDS, (5.0,), POLLER, BUSY_POLLER),
    *cells_of(("processes",), (2, 10, 50), (5.0,), POLLER),
    *cells_of(("processes",), (10, 50), (5.0,), BUSY_POLLER),
    *cells_of(("tasks",), (10, 200), (5.0,), POLLER),
    *cells_of(("processes",), (10,), (5.0,), SEMAPHORE, SHERLOCK, TOOZ),
    *cells_of(("tasks",), (10,), (5.0,), GRELMICRO, POTTERY),
]
"""Cases that poll, only where it shows how they behave: each of their slices is long."""

if __name__ == "__main__":
    main()
