"""What does an uncontended acquire + release cost, beside filelock and the bare transactions underneath?"""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from time import perf_counter

from filelock import AsyncFileLock, FileLock

from bench._measure import interleave, options, report, spread
from leasehold import AsyncDistributedLock, DistributedLock

FLOOR = "floor: bare sqlite3"
PEER = "filelock"
BLOCK = 50
"""Pairs in a row: enough that what the other cases left in the caches does not count."""


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--directory", help="where the files are put: the file system counts")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(dir=arguments.directory))
        runner = stack.enter_context(asyncio.Runner())
        cases = {
            ("threads", FLOOR): stack.enter_context(bare_transactions(f"{directory}/floor.db")),
            ("threads", PEER): file_lock(f"{directory}/file.lock"),
            ("threads", "leasehold sqlite://"): stack.enter_context(client(f"sqlite:///{directory}/locks.db")),
            ("threads", "leasehold memory://"): stack.enter_context(client("memory://bench")),
            ("asyncio", FLOOR): stack.enter_context(async_bare_transactions(f"{directory}/async-floor.db", runner)),
            ("asyncio", PEER): async_file_lock(f"{directory}/async-file.lock", runner),
            ("asyncio", "leasehold sqlite://"): stack.enter_context(
                async_client(f"sqlite:///{directory}/async-locks.db", runner)
            ),
            ("asyncio", "leasehold memory://"): stack.enter_context(async_client("memory://async-bench", runner)),
        }
        spreads = {case: spread(samples) for case, samples in interleave(cases, arguments.rounds).items()}
    rows = [
        {
            "driver": driver,
            "case": case,
            "µs (p10-p90)": times.scaled(1e6),
            "x floor": times.median / spreads[driver, FLOOR].median,
            "x filelock": times.median / spreads[driver, PEER].median,
        }
        for (driver, case), times in spreads.items()
    ]
    report("Uncontended acquire + release", rows, as_json=arguments.json)


def time_pairs(pair: Callable[[], object]) -> list[float]:
    def timed() -> float:
        start = perf_counter()
        pair()
        return perf_counter() - start

    return [timed() for _ in range(BLOCK)]


def time_async_pairs(runner: asyncio.Runner, pair: Callable[[], Awaitable[object]]) -> list[float]:
    async def timed() -> float:
        start = perf_counter()
        await pair()
        return perf_counter() - start

    async def block() -> list[float]:
        return [await timed() for _ in range(BLOCK)]

    return runner.run(block())


def join_and_leave(path: str) -> tuple[sqlite3.Connection, Callable[[], None], Callable[[], None]]:
    """Write and remove a row in two transactions, with the settings leasehold uses."""
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
def bare_transactions(path: str) -> Iterator[Callable[[], list[float]]]:
    connection, join, leave = join_and_leave(path)

    def pair() -> None:
        join()
        leave()

    with closing(connection):
        yield partial(time_pairs, pair)


@contextmanager
def async_bare_transactions(path: str, runner: asyncio.Runner) -> Iterator[Callable[[], list[float]]]:
    """Do the same in a thread, so that the loop is not blocked."""
    connection, join, leave = join_and_leave(path)

    async def pair() -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(worker, join)
        await loop.run_in_executor(worker, leave)

    with closing(connection), ThreadPoolExecutor(1) as worker:
        yield partial(time_async_pairs, runner, pair)


def file_lock(path: str) -> Callable[[], list[float]]:
    lock = FileLock(path)

    def pair() -> None:
        lock.acquire()
        lock.release()

    return partial(time_pairs, pair)


def async_file_lock(path: str, runner: asyncio.Runner) -> Callable[[], list[float]]:
    lock = AsyncFileLock(path)

    async def pair() -> None:
        await lock.acquire()
        await lock.release()

    return partial(time_async_pairs, runner, pair)


@contextmanager
def client(url: str) -> Iterator[Callable[[], list[float]]]:
    with DistributedLock(url) as locks:
        yield partial(time_pairs, lambda: locks.acquire("bench").release())


@contextmanager
def async_client(url: str, runner: asyncio.Runner) -> Iterator[Callable[[], list[float]]]:
    locks = AsyncDistributedLock(url)

    async def pair() -> None:
        handle = await locks.acquire("bench")
        await handle.release()

    yield partial(time_async_pairs, runner, pair)
    runner.run(locks.close())


if __name__ == "__main__":
    main()
