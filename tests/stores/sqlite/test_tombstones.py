"""Tombstones in SQLite: no more of them than still count."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from lockstead.core.model import Ask
from lockstead.core.runtime import drive
from lockstead.core.timing import LATE_REQUEST_WINDOW
from lockstead.runtimes.threads import ThreadRuntime
from lockstead.stores.sqlite.store import SWEEP_EVERY, SqliteStore

STORM = 3000


def test_in_sqlite_expired_tombstones_are_removed_by_the_next_few_uses_of_any_name(tmp_path: Path) -> None:
    now = 1000.0
    path = tmp_path / "locks.db"
    store = SqliteStore(ThreadRuntime(), path, push=False, clock=lambda: now)
    for number in range(STORM // 10):
        drive(store.leave("x", f"gone/{number}", 5.0, LATE_REQUEST_WINDOW))
    now += LATE_REQUEST_WINDOW + 1
    for number in range(SWEEP_EVERY):
        drive(store.join(Ask(f"name:{number}", f"me/{number}", 30.0, 3.0), 5.0))
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM tombstone").fetchone() == (0,)
    drive(store.close())
