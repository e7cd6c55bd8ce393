"""What does an uncontended acquire + release cost on PostgreSQL, beside pals, sqlalchemy-dlock and the bare calls?

Advisory locks are measured against `pg_try_advisory_lock` and `pg_advisory_unlock` as prepared statements on libpq,
the lease table against its own two functions, called by psycopg: what is above that is ours. The server runs with its
defaults, so that every grant in the table is on disk before it counts.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from typing import Any

import pals
import psycopg
import sqlalchemy
import uvloop
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy_dlock.factory import create_async_sadlock, create_sadlock

from bench._measure import interleave, report, spread
from bench._postgres import TTL, Wire, options, served, sqlalchemy_url
from bench.pair import async_client, client, time_async_pairs, time_pairs
from leasehold.stores.postgres.table import Statements

ADVISORY = "floor: bare try + unlock"
TABLE = "floor: the functions, by psycopg"
PEER = "sqlalchemy-dlock"

Case = Callable[[], list[float]]


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--pin", action=argparse.BooleanOptionalAction, default=True, help="all on one CPU")
    arguments = parser.parse_args()
    if arguments.pin:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    with ExitStack() as stack:
        enter = stack.enter_context
        url = enter(served(arguments.flavour))
        advisory = url.replace("postgresql://", "postgresql+advisory://", 1)
        cases: dict[tuple[str, str], Case] = {
            ("threads", ADVISORY): enter(bare_advisory(url)),
            ("threads", PEER): enter(sqlalchemy_dlock(url)),
            ("threads", "pals"): enter(pals_lock(url)),
            ("threads", "leasehold postgresql+advisory://"): enter(client(advisory)),
            ("threads", TABLE): enter(bare_table(url)),
            ("threads", "leasehold postgresql://"): enter(client(url)),
        }
        for driver, loop_factory in (("asyncio", asyncio.new_event_loop), ("uvloop", uvloop.new_event_loop)):
            runner = enter(asyncio.Runner(loop_factory=loop_factory))
            cases |= {
                (driver, PEER): enter(async_sqlalchemy_dlock(url, runner)),
                (driver, "leasehold postgresql+advisory://"): enter(async_client(advisory, runner)),
                (driver, "leasehold postgresql://"): enter(async_client(url, runner)),
            }
        spreads = {case: spread(samples) for case, samples in interleave(cases, arguments.rounds).items()}
    rows = [
        {
            "driver": driver,
            "case": case,
            "µs (p10-p90)": times.scaled(1e6),
            "x bare advisory": times.median / spreads["threads", ADVISORY].median,
            "x bare table": times.median / spreads["threads", TABLE].median,
            f"x {PEER}": times.median / spreads[driver, PEER].median,
        }
        for (driver, case), times in spreads.items()
    ]
    where = "one CPU" if arguments.pin else "all CPUs"
    report(f"Uncontended acquire + release on {arguments.flavour}, {where}", rows, as_json=arguments.json)


@contextmanager
def bare_advisory(url: str) -> Iterator[Case]:
    with closing(Wire(url)) as wire:
        wire.prepare(b"lock", "SELECT pg_try_advisory_lock($1)")
        wire.prepare(b"unlock", "SELECT pg_advisory_unlock($1)")

        def pair() -> None:
            wire.call(b"lock", (b"42",))
            wire.call(b"unlock", (b"42",))

        yield partial(time_pairs, pair)


@contextmanager
def bare_table(url: str) -> Iterator[Case]:
    statements = Statements("leasehold")
    join = _for_psycopg(statements.join.text)
    leave = _for_psycopg(statements.leave.text)
    number = 0
    with psycopg.connect(url, autocommit=True, prepare_threshold=0) as connection, connection.cursor() as cursor:

        def pair() -> None:
            nonlocal number
            number += 1
            owner = f"host:12345:0123abcd/{number}"
            cursor.execute(join, ("floor", owner, TTL, 3.0, 1, 1, True, "{}", "leasehold_0123", "50ms"))
            cursor.fetchone()
            cursor.execute(leave, ("floor", owner, 0.0, "50ms"))
            cursor.fetchone()

        yield partial(time_pairs, pair)


def _for_psycopg(statement: bytes) -> bytes:
    for number in range(10, 0, -1):
        statement = statement.replace(b"$%d" % number, b"%s")
    return statement


@contextmanager
def sqlalchemy_dlock(url: str) -> Iterator[Case]:
    engine = sqlalchemy.create_engine(sqlalchemy_url(url), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        lock: Any = create_sadlock(connection, "bench")

        def pair() -> None:
            lock.acquire()
            lock.release()

        yield partial(time_pairs, pair)
    engine.dispose()


@contextmanager
def async_sqlalchemy_dlock(url: str, runner: asyncio.Runner) -> Iterator[Case]:
    engine = create_async_engine(sqlalchemy_url(url), isolation_level="AUTOCOMMIT")
    connection = runner.run(engine.connect().start())
    lock: Any = create_async_sadlock(connection, "bench")

    async def pair() -> None:
        await lock.acquire()
        await lock.release()

    yield partial(time_async_pairs, runner, pair)
    runner.run(connection.close())
    runner.run(engine.dispose())


@contextmanager
def pals_lock(url: str) -> Iterator[Case]:
    locker = pals.Locker("bench", sqlalchemy_url(url))
    lock = locker.lock("bench")

    def pair() -> None:
        lock.acquire()
        lock.release()

    yield partial(time_pairs, pair)
    locker.engine.dispose()


if __name__ == "__main__":
    main()
