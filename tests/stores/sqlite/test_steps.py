"""Which statements a step executes, and in which transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from lockstead import StoreError
from lockstead.core.model import Ask, Refusal, Standing
from lockstead.core.runtime import drive
from lockstead.runtimes.threads import ThreadRuntime
from lockstead.stores.sqlite.store import SqliteStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(ThreadRuntime(), tmp_path / "locks.db")
    store._joins = 0  # the next sweep is far away
    drive(store.inspect())
    yield store
    drive(store.close())


def join(store: SqliteStore, owner: str, name: str = "a") -> Standing | Refusal:
    return drive(store.join(Ask(name, owner, 30.0, 3.0, queue=False), 5.0))


def traced(store: SqliteStore) -> list[str]:
    """Collect the first word of each statement; SQLite shows one again for the triggers that it fires."""

    def collect(statement: str) -> None:
        if statement != last[0]:
            last[0] = statement
            words.append(statement.split(maxsplit=1)[0])

    words: list[str] = []
    last = [""]
    assert store._connection is not None
    store._connection.set_trace_callback(collect)
    return words


def test_an_uncontended_pair_is_two_statements(store: SqliteStore) -> None:
    words = traced(store)
    for number in range(3):
        join(store, f"me/{number}")
        drive(store.leave("a", f"me/{number}", 5.0))
    assert words == ["INSERT", "DELETE"] * 3


def test_a_contended_name_has_its_file_locked_once_per_step(store: SqliteStore) -> None:
    join(store, "me/1")
    assert isinstance(join(store, "you/1"), Refusal)
    words = traced(store)
    assert isinstance(join(store, "you/2"), Refusal)
    assert words == ["BEGIN", "SELECT", "COMMIT"]
    drive(store.leave("a", "me/1", 5.0))
    join(store, "you/3")
    words.clear()
    drive(store.leave("a", "you/3", 5.0))
    join(store, "you/4")
    assert words == ["DELETE", "INSERT"]


def test_a_step_is_never_part_of_a_transaction_that_an_interrupt_has_left_open(
    store: SqliteStore, tmp_path: Path
) -> None:
    assert store._connection is not None
    store._connection.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="within a transaction"):
        join(store, "me/1")
    with closing(sqlite3.connect(tmp_path / "locks.db", timeout=0)) as other:
        other.execute("BEGIN IMMEDIATE")  # not locked
        assert other.execute("SELECT count(*) FROM place").fetchone() == (0,)
    assert isinstance(join(store, "me/2"), Standing)
