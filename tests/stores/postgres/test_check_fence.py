"""check_fence: a holder that was overtaken writes nothing any more."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator

import psycopg
import pytest

from lockstead.stores.postgres.table.schema import migration_sql
from tests.harness.conditions import eventually
from tests.harness.tree import ROOT
from tests.servers.binaries import POSTGRES18
from tests.servers.postgres import PostgresServer, query
from tests.stores.postgres.table import Table

CHECK = "SELECT {s}.check_fence(%s, %s)"
EXAMPLE = ROOT / "examples" / "fence_postgres.py"


@pytest.fixture
def table(postgres_server: PostgresServer, postgres_schema: str) -> Iterator[Table]:
    with Table(postgres_server, postgres_schema) as table:
        table.sql("CREATE TABLE {s}.ledger (value integer)")
        table.sql("INSERT INTO {s}.ledger VALUES (0)")
        yield table


def test_the_same_and_newer_fences_pass_and_an_older_one_does_not(table: Table) -> None:
    for fence in (7, 7, 9):
        table.sql(CHECK, "ledger", fence)
    with pytest.raises(psycopg.Error) as caught:
        table.sql(CHECK, "ledger", 8)
    assert caught.value.sqlstate == "LS001"
    message = caught.value.diag.message_primary
    assert message == "fence 8 is stale: 'ledger' was written with fence 9 already"
    assert "roll back" in (caught.value.diag.message_hint or "")
    table.sql(CHECK, "another", 1)
    assert "LS001" in table.psql("SELECT {s}.check_fence('ledger', 8)")


def test_a_stale_holders_transaction_writes_nothing(table: Table) -> None:
    old = table.sql("SELECT {s}.acquire_lock('ledger', 'first', 0.05)")
    new = eventually(lambda: table.sql("SELECT {s}.acquire_lock('ledger', 'second', 30)"), "it expires")
    user = table.connect(autocommit=False)
    table.sql(CHECK, "ledger", new, on=user)
    table.sql("UPDATE {s}.ledger SET value = 2", on=user)
    user.commit()
    table.sql("UPDATE {s}.ledger SET value = 1", on=user)
    with pytest.raises(psycopg.Error, match="is stale"):
        table.sql(CHECK, "ledger", old, on=user)
    user.rollback()
    assert table.sql("SELECT value FROM {s}.ledger") == 2


def test_a_rolled_back_fence_does_not_count_as_seen(table: Table) -> None:
    user = table.connect(autocommit=False)
    table.sql(CHECK, "ledger", 9, on=user)
    user.rollback()
    table.sql(CHECK, "ledger", 8)


@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_an_older_writer_waits_for_the_newer_ones_transaction(table: Table, ends: str) -> None:
    newer, older = table.connect(autocommit=False), table.connect(autocommit=False)
    table.sql(CHECK, "ledger", 9, on=newer)
    outcome: list[str] = []

    def check() -> None:
        try:
            table.sql(CHECK, "ledger", 8, on=older)
            outcome.append("passes")
        except psycopg.Error as error:
            outcome.append(error.sqlstate or "")

    thread = threading.Thread(target=check)
    thread.start()
    blocked = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"
    eventually(lambda: table.sql(blocked, older.info.backend_pid), "it waits")
    assert not outcome
    getattr(newer, ends)()
    thread.join(15)
    assert outcome == ["LS001" if ends == "commit" else "passes"]


def test_a_newer_writer_waits_for_the_older_ones_transaction(table: Table) -> None:
    """The writer that checks first writes first: the newer one sees its write."""
    older, newer = table.connect(autocommit=False), table.connect(autocommit=False)
    table.sql(CHECK, "ledger", 8, on=older)
    table.sql("SET lock_timeout = '50ms'", on=newer)
    newer.commit()
    with pytest.raises(psycopg.errors.LockNotAvailable):
        table.sql(CHECK, "ledger", 9, on=newer)
    newer.rollback()
    older.commit()
    table.sql(CHECK, "ledger", 9, on=newer)


def test_the_example_refuses_the_stale_write_of_a_paused_worker(shared_postgres: object) -> None:
    server: PostgresServer = shared_postgres(POSTGRES18)  # type: ignore[operator]
    with server.database() as url:
        query(url, migration_sql())
        done = subprocess.run(
            [sys.executable, "-W", "error", EXAMPLE, url], capture_output=True, text=True, timeout=60, check=False
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "is refused: fence" in done.stdout
    assert "the balance is 50 as written by the next holder" in done.stdout
