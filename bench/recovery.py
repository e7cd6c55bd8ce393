"""How long is a lock idle after a process was killed: its holder, or the next waiter?

The process is killed with SIGKILL at a random moment between two renewals. The time runs from the kill, or for a waiter
from the holder's release right after it, until the next waiter holds. A lease has to expire first; a lock that ends
with its session, or its process, is free at once. A lock without a line loses nothing when a waiter is killed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from itertools import count
from multiprocessing.connection import Connection, Pipe
from random import random
from threading import Timer
from time import monotonic, sleep
from typing import Any, NamedTuple

import redis
import redis.lock
import redis_lock
import sqlalchemy
from filelock import FileLock
from sqlalchemy_dlock.factory import create_sadlock

from bench import _redis
from bench._contention import forks
from bench._measure import interleave, report, spread
from bench._postgres import served, sqlalchemy_url
from lockstead import DistributedLock
from tests.servers.binaries import POSTGRES18
from tests.servers.redis import RedisServer

TTL = 2
IN_LINE = 0.3
"""Seconds after which a process that asks for a lock is surely in its line."""
HOLDER, WAITER = "holder", "next in line"

Acquire = Callable[[str], AbstractContextManager[Any]]
Make = Callable[[], Acquire]


class Killed(NamedTuple):
    who: str
    case: str
    seconds: float


def main() -> None:
    parser = _redis.options(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--side-by-side", type=int, default=6, help="how many are killed at about the same time")
    arguments = parser.parse_args()
    side_by_side = 2 if arguments.quick else arguments.side_by_side
    with ExitStack() as stack:
        contenders = contenders_on(stack, arguments.flavour)
        pool = stack.enter_context(ThreadPoolExecutor(2 * len(contenders) * side_by_side))
        here = {case: make() for case, make in contenders.items()}
        names = map("recovery-{}".format, count())

        def kill_many(kill: Callable[[Make, Acquire, str, ThreadPoolExecutor], float], who: str) -> list[Killed]:
            runs = [
                (case, pool.submit(kill, make, here[case], next(names), pool))
                for case, make in contenders.items()
                for _ in range(side_by_side)
            ]
            return [Killed(who, case, run.result()) for case, run in runs]

        cases = {HOLDER: partial(kill_many, kill_holder, HOLDER), WAITER: partial(kill_many, kill_waiter, WAITER)}
        killed = interleave(cases, 1 if arguments.quick else arguments.rounds, warm_up=0)
    rows = []
    for who, case in ((who, case) for who in killed for case in contenders):
        idle = spread([one.seconds for one in killed[who] if one.case == case])
        rows.append(
            {"killed": who, "case": case, "idle s": idle, "x ttl": idle.median / TTL, "p90 x ttl": idle.p90 / TTL}
        )
    report(f"Until the next one holds after a SIGKILL, ttl {TTL} s", rows, as_json=arguments.json)


def kill_holder(make: Make, acquire: Acquire, name: str, pool: ThreadPoolExecutor) -> float:
    process, orders = started(make, name)
    orders.send("acquire")
    assert orders.recv() == "holds"
    killed_at = []

    def kill() -> None:
        killed_at.append(monotonic())
        process.kill()

    Timer(IN_LINE + random() * TTL / 2, kill).start()
    with acquire(name):
        held_at = monotonic()
    process.join()
    return held_at - killed_at[0]


def kill_waiter(make: Make, acquire: Acquire, name: str, pool: ThreadPoolExecutor) -> float:
    def wait_behind() -> float:
        with acquire(name):
            return monotonic()

    process, orders = started(make, name)
    with acquire(name) as held:
        orders.send("acquire")
        keep(held, IN_LINE)
        held_at = pool.submit(wait_behind)
        keep(held, IN_LINE + random() * TTL / 2)
        process.kill()
        process.join()
        released_at = monotonic()
    return held_at.result() - released_at


def started(make: Make, name: str) -> tuple[Any, Connection]:
    """Start a process that is ready to acquire."""
    here, there = Pipe()
    process = forks().Process(target=hold, args=(make, name, there), daemon=True)
    process.start()
    there.close()
    assert here.recv() == "ready"
    return process, here


def hold(make: Make, name: str, orders: Connection) -> None:
    """Acquire on request, and hold until killed."""
    acquire = make()
    orders.send("ready")
    orders.recv()
    with acquire(name) as held:
        orders.send("holds")
        keep(held, 60.0)


def keep(held: object, seconds: float) -> None:
    end = monotonic() + seconds
    while (left := end - monotonic()) > 0:
        if isinstance(held, redis.lock.Lock):
            held.reacquire()  # it is not renewed by itself
        sleep(min(left, TTL / 3))


def contenders_on(stack: ExitStack, flavour: Any) -> Mapping[str, Make]:
    enter = stack.enter_context
    directory = enter(tempfile.TemporaryDirectory())
    server = enter(RedisServer(flavour))
    # Without persistence there would be a warning.
    members = [enter(RedisServer(flavour, save="3600 1")).address for _ in range(5)]
    postgres = enter(served(POSTGRES18, max_connections="500"))
    urls = {
        "lockstead sqlite://": f"sqlite:///{directory}/db",
        "lockstead redis://": server.url,
        "lockstead redlock://, 5 nodes": f"redlock://{','.join(f'{host}:{port}' for host, port in members)}/0",
        "lockstead postgresql://": postgres,
        "lockstead postgresql+advisory://": postgres.replace("postgresql://", "postgresql+advisory://", 1),
    }
    return {case: partial(lockstead, url) for case, url in urls.items()} | {
        "redis-py Lock": partial(redis_py, server.url),
        "python-redis-lock": partial(python_redis_lock, server.url),
        "filelock": partial(file_lock, directory),
        "sqlalchemy-dlock": partial(sqlalchemy_dlock, postgres),
    }


def lockstead(url: str) -> Acquire:
    return partial(DistributedLock(url, ttl=TTL).acquire, timeout=60.0)


def redis_py(url: str) -> Acquire:
    server = redis.Redis.from_url(url)
    return lambda name: server.lock(f"redis-py:{name}", timeout=TTL)


def python_redis_lock(url: str) -> Acquire:
    server = redis.Redis.from_url(url)
    return lambda name: redis_lock.Lock(server, name, expire=TTL, auto_renewal=True)


def file_lock(directory: str) -> Acquire:
    return lambda name: FileLock(f"{directory}/{name}")


def sqlalchemy_dlock(url: str) -> Acquire:
    engine = sqlalchemy.create_engine(sqlalchemy_url(url), isolation_level="AUTOCOMMIT", pool_size=100)

    @contextmanager
    def acquire(name: str) -> Any:
        with engine.connect() as connection, create_sadlock(connection, name):
            yield

    return acquire


if __name__ == "__main__":
    main()
