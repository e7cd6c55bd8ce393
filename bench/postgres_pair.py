"""What does an uncontended acquire + release cost on PostgreSQL, compared with the peers and the bare calls?

Advisory locks are compared with `pg_try_advisory_lock` and `pg_advisory_unlock` as prepared statements on libpq, the
lease table with its own two functions, called by psycopg: the rest is lockstead's own cost. The server runs with its
defaults, so that every grant in the table is on disk before it counts. The peers have advisory locks only.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial

import asyncpg
import psycopg

from bench._measure import Target, report
from bench._pairs import (
    LOOPS,
    Contest,
    Timer,
    async_client,
    async_pairs_of,
    client,
    pairs_of,
    time_async_pairs,
    time_pairs,
)
from bench._peers import ASYNC_POSTGRES, POSTGRES, traces_in_postgres
from bench._postgres import TTL, Wire, options, served
from lockstead.stores.postgres.table.store import Statements

BARE = "floor: bare try + unlock"
ASYNC_BARE = "floor: asyncpg's try + unlock"
FUNCTIONS = "floor: the functions, by psycopg"
PEER = "sqlalchemy-dlock"
ADVISORY = "lockstead postgresql+advisory://"
TABLE = "lockstead postgresql://"


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, help="300, or 15 in a quick run")
    parser.add_argument("--pin", action=argparse.BooleanOptionalAction, default=True, help="all on one CPU")
    arguments = parser.parse_args()
    if arguments.pin:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    with ExitStack() as stack:
        enter = stack.enter_context
        url = enter(served(arguments.flavour))
        advisory = url.replace("postgresql://", "postgresql+advisory://", 1)
        traces = enter(traces_in_postgres(url))
        contest = Contest(stack)
        contest.add(("threads", BARE), bare_advisory(url))
        for name, peer in POSTGRES.items():
            contest.add_peer(("threads", name), pairs_of(peer(url), traces))
        contest.add(("threads", ADVISORY), client(advisory))
        contest.add(("threads", FUNCTIONS), bare_table(url))
        contest.add(("threads", TABLE), client(url))
        for runtime, loop_factory in LOOPS.items():
            runner = enter(asyncio.Runner(loop_factory=loop_factory))
            contest.add((runtime, ASYNC_BARE), async_bare_advisory(url, runner))
            for name, async_peer in ASYNC_POSTGRES.items():
                contest.add_peer((runtime, name), async_pairs_of(async_peer(url), runner, traces))
            contest.add((runtime, ADVISORY), async_client(advisory, runner))
            contest.add((runtime, TABLE), async_client(url, runner))
        contest.run(arguments.rounds or (15 if arguments.quick else 300))
    rows = [
        {
            "runtime": runtime,
            "case": case,
            "µs (p10-p90)": times.scaled(1e6),
            "x bare advisory": times.median / contest.median("threads", BARE),
            "x bare table": times.median / contest.median("threads", FUNCTIONS),
            f"x {PEER}": times.median / contest.median(runtime, PEER),
        }
        for (runtime, case), times in contest.spreads.items()
    ]
    targets = [
        *(
            Target(
                f"{runtime}, {ADVISORY}: times as fast as {PEER}",
                contest.median(runtime, PEER) / contest.median(runtime, ADVISORY),
                1.3,
                at_least=True,
            )
            for runtime in ("threads", *LOOPS)
        ),
        Target(
            f"threads, {TABLE}: x the functions, by psycopg",
            contest.median("threads", TABLE) / contest.median("threads", FUNCTIONS),
            1.3,
        ),
    ]
    where = "one CPU" if arguments.pin else "all CPUs"
    report(
        f"Uncontended acquire + release on {arguments.flavour}, {where}",
        rows,
        as_json=arguments.json,
        targets=targets,
        broken=contest.broken,
    )


@contextmanager
def bare_advisory(url: str) -> Iterator[Timer]:
    with closing(Wire(url)) as wire:
        wire.prepare(b"lock", "SELECT pg_try_advisory_lock($1)")
        wire.prepare(b"unlock", "SELECT pg_advisory_unlock($1)")

        def pair() -> None:
            wire.call(b"lock", (b"42",))
            wire.call(b"unlock", (b"42",))

        yield partial(time_pairs, pair)


@contextmanager
def async_bare_advisory(url: str, runner: asyncio.Runner) -> Iterator[Timer]:
    connection = runner.run(asyncpg.connect(url))
    lock = runner.run(connection.prepare("SELECT pg_try_advisory_lock($1)"))
    unlock = runner.run(connection.prepare("SELECT pg_advisory_unlock($1)"))

    async def pair() -> None:
        await lock.fetchval(42)
        await unlock.fetchval(42)

    yield partial(time_async_pairs, runner, pair)
    runner.run(connection.close())


@contextmanager
def bare_table(url: str) -> Iterator[Timer]:
    statements = Statements("lockstead")
    join = _for_psycopg(statements.join.text)
    leave = _for_psycopg(statements.leave.text)
    number = 0
    with psycopg.connect(url, autocommit=True, prepare_threshold=0) as connection, connection.cursor() as cursor:

        def pair() -> None:
            nonlocal number
            number += 1
            owner = f"host:12345:0123abcd/{number}"
            cursor.execute(join, ("floor", owner, TTL, 3.0, 1, 1, True, "{}", "lockstead_0123", "50ms"))
            cursor.fetchone()
            cursor.execute(leave, ("floor", owner, 0.0, "50ms"))
            cursor.fetchone()

        yield partial(time_pairs, pair)


def _for_psycopg(statement: bytes) -> bytes:
    for number in range(10, 0, -1):
        statement = statement.replace(b"$%d" % number, b"%s")
    return statement


if __name__ == "__main__":
    main()
