"""What does a lock cost as more and more others are held, each under its own name, and how much memory do they take?

All others are held by another client for a day: copies of one real place, made by the server itself. A pair should cost
the same however many there are. PostgreSQL runs without fsync, which would hide growth.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import product
from math import nan
from pathlib import Path

import psycopg
import redis

from bench import _redis
from bench._measure import interleave, report, spread
from bench._pairs import client, time_pairs
from bench._postgres import served
from lockstead import DistributedLock
from lockstead.core.model import Ask
from lockstead.stores.memory import shared_server
from lockstead.stores.postgres.table.schema import script
from tests.servers.binaries import POSTGRES18
from tests.servers.redis import RedisServer

DAY = 86400.0
ONE = "names:"
MOST_IN_MEMORY = 100_000
AT_A_TIME = 20_000
PEER = "redis-py Lock"
COPY_FIELD = _redis.SCRIPTS.joinpath("copy_field.lua").read_text("utf-8")
COPY_KEY = _redis.SCRIPTS.joinpath("copy_key.lua").read_text("utf-8")
COPY_ROW = """
WITH RECURSIVE number (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < ?)
INSERT INTO place SELECT name || n, ticket + n, owner || n, capacity, weight, expires_at, acquired_at, metadata, address
FROM place, number
"""
COPY_PLACE = """
INSERT INTO {0}.lock_names (name) SELECT name || n FROM {0}.lock_names, generate_series(1, {1}) AS n;
INSERT INTO {0}.distributed_locks
    (name, fence, holder, capacity, weight, acquired_at, renewed_at, expires_at, metadata, channel)
SELECT name || n, fence + n, holder || n, capacity, weight, acquired_at, renewed_at, expires_at, metadata, channel
FROM {0}.distributed_locks, generate_series(1, {1}) AS n;
"""
SIZE_OF_TABLES = """
SELECT sum(pg_total_relation_size(format('%I.%I', schemaname, tablename)::regclass))
FROM pg_tables WHERE schemaname = '{}'
"""

Pairs = Callable[[], list[float]]


def main() -> None:
    parser = _redis.options(__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    arguments = parser.parse_args()
    sizes = (10, 10_000) if arguments.quick else (10, 1000, 100_000, 1_000_000)
    cases: dict[tuple[str, int], Pairs] = {}
    room: dict[tuple[str, int], float] = {}
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(RedisServer(arguments.flavour))
        postgres = stack.enter_context(served(POSTGRES18, fsync="off"))
        for number, size in enumerate(sizes):
            for store, prepared in {
                "memory": partial(memory, size),
                "SQLite": partial(sqlite, directory / f"{size}", size),
                "Redis": partial(hashed, server, size),
                "PostgreSQL": partial(table, postgres, size),
                PEER: partial(keys, server, number + 1, size),
            }.items():
                if store != "memory" or size <= MOST_IN_MEMORY:
                    cases[store, size], room[store, size] = stack.enter_context(prepared())
        spreads = {
            case: spread(times) for case, times in interleave(cases, 5 if arguments.quick else arguments.rounds).items()
        }
    stores = dict.fromkeys(store for store, _ in cases)
    rows = [
        {
            "store": store,
            "names": size,
            "pair µs": spreads[store, size].scaled(1e6),
            "x fewest": spreads[store, size].median / spreads[store, sizes[0]].median,
            "bytes / name": room[store, size],
        }
        for store, size in product(stores, sizes)
        if (store, size) in spreads
    ]
    report("Uncontended acquire + release as names grow", rows, as_json=arguments.json)


@contextmanager
def memory(size: int) -> Iterator[tuple[Pairs, float]]:
    server = shared_server(f"names-{size}")
    for number in range(size):
        server.join(Ask(f"{ONE}{number}", f"other/{number}", DAY, DAY))
    with client(f"memory://names-{size}") as pairs:
        yield pairs, nan


@contextmanager
def sqlite(path: Path, size: int) -> Iterator[tuple[Pairs, float]]:
    with DistributedLock(f"sqlite:///{path}") as other:
        other.acquire(ONE, ttl=DAY)
        connection = sqlite3.connect(path, isolation_level=None)
        with connection:
            connection.execute(COPY_ROW, (size,))
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()
        with client(f"sqlite:///{path}") as pairs:
            yield pairs, path.stat().st_size / size


@contextmanager
def hashed(server: RedisServer, size: int) -> Iterator[tuple[Pairs, float]]:
    prefix = f"names-{size}"
    url = f"{server.url}?key_prefix={prefix}"
    with DistributedLock(url) as other:
        other.acquire(ONE, ttl=DAY)
        room = fill(server, size, partial(server.client().eval, COPY_FIELD, 1, f"{prefix}:bucket:0", ONE))
        with client(url) as pairs:
            yield pairs, room / size


@contextmanager
def keys(server: RedisServer, database: int, size: int) -> Iterator[tuple[Pairs, float]]:
    with redis.Redis.from_url(server.url.removesuffix("/0") + f"/{database}") as other:
        other.lock(ONE, timeout=DAY).acquire()
        room = fill(server, size, partial(other.eval, COPY_KEY, 1, ONE))
        lock = other.lock("bench", timeout=_redis.TTL)

        def pair() -> None:
            lock.acquire()
            lock.release()

        yield partial(time_pairs, pair), room / size


def fill(server: RedisServer, size: int, copy: Callable[[int, int], object]) -> float:
    """Make copies, few enough at a time not to block the server for long; return by how much its memory grew."""
    with server.client() as observer:
        before = observer.info("memory")["used_memory"]
        for first in range(1, size + 1, AT_A_TIME):
            copy(first, min(first + AT_A_TIME - 1, size))
        return float(observer.info("memory")["used_memory"] - before)


@contextmanager
def table(url: str, size: int) -> Iterator[tuple[Pairs, float]]:
    schema = f"names_{size}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(script(schema).encode())
        with DistributedLock(url, schema=schema) as other:
            other.acquire(ONE, ttl=DAY)
            connection.execute(COPY_PLACE.format(schema, size).encode())
            connection.execute(f"VACUUM ANALYZE {schema}.lock_names, {schema}.distributed_locks".encode())
            room = connection.execute(SIZE_OF_TABLES.format(schema).encode()).fetchone()
            assert room
            with client(f"{url}?schema={schema}") as pairs:
                yield pairs, float(room[0]) / size


if __name__ == "__main__":
    main()
