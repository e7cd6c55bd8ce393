"""What does an uncontended acquire + release cost without a server, compared with file locks and bare transactions?

All files are in one directory: what the peers keep in files, lockstead keeps in an SQLite database, whose bare
transactions are the floor. The memory store has no peer.
"""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import partial

from bench._measure import Target, options, report
from bench._pairs import (
    Contest,
    Timer,
    async_client,
    async_pairs_of,
    client,
    pairs_of,
    time_async_pairs,
    time_pairs,
)
from bench._peers import ASYNC_FILES, FILES, traces_in_files

FLOOR = "floor: bare sqlite3"
PEER = "filelock"
OURS = "lockstead sqlite://"


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, help="300, or 30 in a quick run")
    parser.add_argument("--directory", help="where to put the files: the file system matters")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(dir=arguments.directory))
        traces = stack.enter_context(traces_in_files(directory))
        runner = stack.enter_context(asyncio.Runner())
        contest = Contest(stack)
        contest.add(("threads", FLOOR), bare_transactions(f"{directory}/floor.db"))
        for name, peer in FILES.items():
            contest.add_peer(("threads", name), pairs_of(peer(directory), traces))
        contest.add(("threads", OURS), client(f"sqlite:///{directory}/locks.db"))
        contest.add(("threads", "lockstead memory://"), client("memory://bench"))
        contest.add(("asyncio", FLOOR), async_bare_transactions(f"{directory}/async-floor.db", runner))
        for name, async_peer in ASYNC_FILES.items():
            contest.add_peer(("asyncio", name), async_pairs_of(async_peer(directory), runner, traces))
        contest.add(("asyncio", OURS), async_client(f"sqlite:///{directory}/async-locks.db", runner))
        contest.add(("asyncio", "lockstead memory://"), async_client("memory://async-bench", runner))
        contest.run(arguments.rounds or (30 if arguments.quick else 300))
    rows = [
        {
            "runtime": runtime,
            "case": case,
            "µs (p10-p90)": times.scaled(1e6),
            "x floor": times.median / contest.median(runtime, FLOOR),
            f"x {PEER}": times.median / contest.median(runtime, PEER),
        }
        for (runtime, case), times in contest.spreads.items()
    ]
    targets = [
        Target(f"{OURS}, {runtime}: x {PEER}", contest.median(runtime, OURS) / contest.median(runtime, PEER), 1)
        for runtime in ("threads", "asyncio")
    ]
    report(
        "Uncontended acquire + release in files and memory",
        rows,
        as_json=arguments.json,
        targets=targets,
        broken=contest.broken,
    )


def join_and_leave(path: str) -> tuple[sqlite3.Connection, Callable[[], None], Callable[[], None]]:
    """Write and remove a row in two transactions, with the settings lockstead uses."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    execute = connection.execute
    execute("PRAGMA journal_mode = WAL")
    execute("PRAGMA synchronous = NORMAL")
    execute("CREATE TABLE place (name TEXT PRIMARY KEY, owner TEXT) WITHOUT ROWID")

    def join() -> None:
        execute("BEGIN IMMEDIATE")
        execute("INSERT INTO place VALUES (?, ?)", ("bench", "me"))
        execute("COMMIT")

    def leave() -> None:
        execute("BEGIN IMMEDIATE")
        execute("DELETE FROM place WHERE name = ?", ("bench",))
        execute("COMMIT")

    return connection, join, leave


@contextmanager
def bare_transactions(path: str) -> Iterator[Timer]:
    connection, join, leave = join_and_leave(path)

    def pair() -> None:
        join()
        leave()

    with closing(connection):
        yield partial(time_pairs, pair)


@contextmanager
def async_bare_transactions(path: str, runner: asyncio.Runner) -> Iterator[Timer]:
    """Do the same in a thread, so that the loop is not blocked."""
    connection, join, leave = join_and_leave(path)

    async def pair() -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(worker, join)
        await loop.run_in_executor(worker, leave)

    with closing(connection), ThreadPoolExecutor(1) as worker:
        yield partial(time_async_pairs, runner, pair)


if __name__ == "__main__":
    main()
