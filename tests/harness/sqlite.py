"""SQLite files that several processes use, and what another program may do to them."""

from __future__ import annotations

import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from lockstead import DistributedLock
from lockstead.core.runtime import drive
from lockstead.runtimes.threads import ThreadRuntime
from lockstead.stores.sqlite.store import SqliteStore
from tests.harness.conditions import DEADLINE
from tests.harness.processes import Program, Worker


def url_of(path: Path) -> str:
    return f"sqlite:///{path}"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Name a database that does not exist yet."""
    return tmp_path / "locks.db"


@pytest.fixture
def locks(path: Path) -> Iterator[DistributedLock]:
    """Give the test's own client, with which it looks on or takes part."""
    with DistributedLock(url_of(path)) as client:
        yield client


@pytest.fixture
def peer(start_worker: Callable[..., Worker], path: Path) -> Callable[..., Worker]:
    """Start another process with a client of its own, which takes requests."""

    def peer(*flags: str) -> Worker:
        worker = start_worker("harness/programs/peer.py", path, *flags)
        assert worker.answer()["ready"]
        return worker

    return peer


@contextmanager
def transaction_of_another_program(path: Path) -> Iterator[sqlite3.Connection]:
    """Keep the database's write lock, as another program might."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=DEADLINE, check_same_thread=False)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
        finally:
            connection.execute("ROLLBACK")


@contextmanager
def client_of(path: Path, **options: Any) -> Iterator[DistributedLock]:
    """Give a client of a store that is not made from a URL, with options of the store's own."""
    store = SqliteStore(ThreadRuntime(), path, **options)
    try:
        with DistributedLock(store) as client:
            yield client
    finally:
        drive(store.close())


def is_free(path: Path, timeout: float = 0.0) -> bool:
    """Return whether no connection is in the middle of a transaction."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=timeout)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        connection.execute("ROLLBACK")
        return True


def stop_outside_a_transaction(worker: Program, path: Path) -> float:
    """SIGSTOP a worker, but not while it locks the file, which would stop all clients: that is not promised."""
    while True:
        stopped = worker.signal(signal.SIGSTOP)
        if is_free(path, timeout=0.2):
            return stopped
        worker.signal(signal.SIGCONT)


def rows(path: Path, query: str = "SELECT name, owner FROM place ORDER BY name, ticket") -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path, timeout=DEADLINE)) as connection:
        return connection.execute(query).fetchall()
