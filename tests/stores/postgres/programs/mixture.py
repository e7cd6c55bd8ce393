"""Take locks one way, again and again, and write down when: mixture.py WAY URL LOG SEED."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO
from urllib.parse import parse_qs, urlsplit

import psycopg

from lockstead import AsyncDistributedLock, DistributedLock
from lockstead.transactions import xact_lock

NAMES = ("one", "two", "three")
TTL = 5.0


def now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Journal:
    """What this process held, and when, with its fence if there is one."""

    def __init__(self, log: TextIO, chance: random.Random) -> None:
        self._log = log
        self._chance = chance

    def name(self) -> str:
        return self._chance.choice(NAMES)

    def pause(self) -> float:
        return self._chance.random() * 0.01

    def write(self, name: str, fence: int, entered: float) -> None:
        """Note a hold that ends now, before it is given up."""
        self._log.write(json.dumps([name, fence, entered, now()]) + "\n")
        self._log.flush()


def hold(journal: Journal, name: str, fence: int) -> None:
    entered = now()
    time.sleep(journal.pause())
    journal.write(name, fence, entered)


def lease(url: str, journal: Journal) -> None:
    with DistributedLock(url, ttl=TTL) as locks:
        while True:
            with locks.lock(journal.name()) as handle:
                hold(journal, handle.name, handle.fence)
            time.sleep(journal.pause())


def lease_async(url: str, journal: Journal) -> None:
    async def go_on(locks: AsyncDistributedLock) -> None:
        while True:
            async with locks.lock(journal.name()) as handle:
                entered = now()
                await asyncio.sleep(journal.pause())
                journal.write(handle.name, handle.fence, entered)
            await asyncio.sleep(journal.pause())

    async def together() -> None:
        async with AsyncDistributedLock(url, ttl=TTL) as locks:
            await asyncio.gather(*(go_on(locks) for _ in range(3)))

    asyncio.run(together())


def functions(url: str, journal: Journal) -> None:
    """Call acquire_lock and release_lock as any language would, in line."""
    plain, schema = split(url)
    me = f"sql-{os.getpid()}"
    with psycopg.connect(plain, autocommit=True) as connection:

        def call(function: str, *args: object) -> int | None:
            marks = ", ".join(["%s"] * len(args))
            row = connection.execute(f"SELECT {schema}.{function}({marks})".encode(), args).fetchone()
            return row[0] if row else None

        while True:
            name = journal.name()
            while (fence := call("acquire_lock", name, me, TTL, "{}", True)) is None:
                time.sleep(0.003)
            hold(journal, name, fence)
            assert call("release_lock", name, me)


def psql(url: str, journal: Journal) -> None:
    """The same with a new psql for every call, which only asks whether it is free."""
    plain, schema = split(url)
    me = f"psql-{os.getpid()}"

    def call(statement: str) -> str:
        command = [os.environ["PSQL"], plain, "-XAtc", f"SELECT {schema}.{statement}"]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    while True:
        name = journal.name()
        if fence := call(f"acquire_lock('{name}', '{me}', {TTL})"):
            hold(journal, name, int(fence))
            assert call(f"release_lock('{name}', '{me}')") == "t"


def advisory(url: str, journal: Journal) -> None:
    lease(split(url)[0].replace("postgresql://", "postgresql+advisory://", 1), journal)


def transactions(url: str, journal: Journal) -> None:
    plain, _ = split(url)
    with psycopg.connect(plain) as connection:
        while True:
            name = journal.name()
            with taken(connection, name):
                hold(journal, name, 0)
            time.sleep(journal.pause())


@contextmanager
def taken(connection: psycopg.Connection, name: str) -> Iterator[None]:
    with connection.transaction(), xact_lock(connection, name):
        yield


def split(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return url.partition("?")[0], parse_qs(parts.query)["schema"][0]


WAYS: dict[str, Callable[[str, Journal], None]] = {
    "lease": lease,
    "lease-async": lease_async,
    "functions": functions,
    "psql": psql,
    "advisory": advisory,
    "transactions": transactions,
}
TABLE = {"lease", "lease-async", "functions", "psql"}
"""The ways that exclude each other by the lease table; the others do so by advisory locks."""


def main() -> None:
    way, url, path, seed = sys.argv[1:]
    with open(path, "w", encoding="utf-8") as log:
        WAYS[way](url, Journal(log, random.Random(int(seed))))


if __name__ == "__main__":
    main()
