"""Rates in the lease table: exact among many, and as users of other languages ask for them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from lockstead.core.model import Ask, RateRequest, Standing
from lockstead.core.runtime import drive
from lockstead.core.store import MultiJoining, RateLimiting, Reserving
from lockstead.runtimes.aio import AsyncRuntime
from lockstead.runtimes.threads import ThreadRuntime
from lockstead.stores import open_store
from lockstead.stores.postgres.table.store import TableStore
from tests.harness.conditions import eventually
from tests.servers.postgres import PostgresServer
from tests.stores.postgres.table import Table

CHECK = "SELECT * FROM {s}.check_rate('mail', %s, %s)"
CONSUME = "SELECT allowed FROM {s}.consume_rate(%s, %s, %s)"
BLOCKED = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s"


@pytest.fixture
def table(postgres_server: PostgresServer, postgres_schema: str) -> Iterator[Table]:
    with Table(postgres_server, postgres_schema) as table:
        yield table


@pytest.fixture
def timed(postgres_server: PostgresServer, postgres_schema: str) -> Iterator[Table]:
    """Give a table on a clock of the test's own."""
    with Table(postgres_server, postgres_schema, clock=True) as table:
        yield table


def test_the_table_reserves_multi_joins_and_rate_limits_and_advisory_locks_do_not(table: Table) -> None:
    advisory = open_store(table.url.replace("postgresql:", "postgresql+advisory:"), ThreadRuntime())
    for ability in (Reserving, MultiJoining, RateLimiting):
        assert isinstance(table.store(), ability)
        assert not isinstance(advisory, ability)
    drive(advisory.close())


def test_eight_clients_that_ask_at_once_never_exceed_the_limit(table: Table) -> None:
    """Each round is of a name that was not used before, so that they race to be the first, and with sweeps, too."""
    rounds = 25
    stores = [table.store() for _ in range(8)]
    together = threading.Barrier(len(stores) + 1)
    allowed: list[int] = []

    def consume(store: TableStore) -> None:
        for number in range(rounds):
            together.wait(20)
            results = [drive(store.consume(RateRequest(f"rate-{number}", 100.0, 300.0), 10.0)) for _ in range(2)]
            allowed.extend(number for result in results if result.allowed)

    def sweep(connection: psycopg.Connection) -> None:
        for _ in range(rounds):
            together.wait(20)
            table.sql("SELECT {s}.sweep_rates()", on=connection)

    threads = [threading.Thread(target=consume, args=(store,)) for store in stores]
    threads.append(threading.Thread(target=sweep, args=(table.connect(),)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(allowed) == [number for number in range(rounds) for _ in range(3)]


@pytest.mark.parametrize("is_new", [True, False])
def test_a_request_that_waited_for_the_row_is_measured_after_the_wait(table: Table, *, is_new: bool) -> None:
    """It waited for another's, and nothing of it has worn off meanwhile."""
    second, first = table.connect(), table.connect(autocommit=False)
    if not is_new:
        table.sql(CONSUME, "x", 1, 60)
    assert table.sql(CONSUME, "x", 1, 60, on=first)
    waiting = threading.Thread(target=table.sql, args=(CONSUME, "x", 1, 60), kwargs={"on": second})
    waiting.start()
    eventually(lambda: table.sql(BLOCKED, f"%{table.schema}.consume_rate%"), "it waits")
    before = table.sql("SELECT clock_timestamp()")
    first.rollback()
    waiting.join(10)
    assert table.rows("SELECT level >= 1, at > %s FROM {s}.rate_limits", before) == [(True, True)]


def test_a_check_or_a_refused_request_writes_nothing(timed: Table) -> None:
    user = timed.connect(autocommit=False)

    def wrote() -> bool:
        is_assigned = timed.sql("SELECT pg_current_xact_id_if_assigned() IS NOT NULL", on=user)
        user.commit()
        return bool(is_assigned)

    assert timed.sql(CONSUME, "x", 61, 60, on=user) is False
    assert timed.sql(CONSUME, "x", 0, 60, on=user) is True
    assert not wrote()
    assert timed.sql(CONSUME, "x", 60, 60, on=user) is True
    assert wrote()
    assert timed.sql(CONSUME, "x", 1, 60, on=user) is False
    assert timed.sql(CONSUME, "x", 0, 60, on=user) is True
    assert not wrote()
    timed.step_clock(-100)
    assert timed.sql(CONSUME, "x", 0, 60, on=user) is True
    assert wrote(), "the clock was set back: what is left wears off from now"
    timed.step_clock(59)
    assert timed.sql(CONSUME, "x", 59, 60, on=user) is True


def test_the_limit_is_allowed_in_every_interval(timed: Table) -> None:
    minute = timedelta(minutes=1)
    answers = [timed.rows(CHECK, 3, minute)[0] for _ in range(4)]
    nothing, third = timedelta(0), timedelta(seconds=20)
    assert answers == [(True, 2, nothing), (True, 1, nothing), (True, 0, nothing), (False, 0, third)]
    timed.step_clock(19.9)
    assert timed.rows(CHECK, 3, minute) == [(False, 0, timedelta(seconds=0.1))]
    timed.step_clock(0.1)
    assert timed.rows(CHECK, 3, minute) == [(True, 0, nothing)], "after the time of the reply"
    timed.step_clock(3600)
    look = "SELECT * FROM {s}.check_rate('mail', 3, %s, cost => 0)"
    assert timed.rows(look, minute) == timed.rows(look, minute) == [(True, 3, nothing)]


def test_a_burst_and_a_cost_are_respected(timed: Table) -> None:
    statement = "SELECT * FROM {s}.check_rate('mail', 600, '1 minute', burst => 7, cost => %s)"
    assert timed.rows(statement, 8) == [(False, 7, None)], "it never will be"
    assert timed.rows(statement, 5) == [(True, 2, timedelta(0))]
    assert timed.rows(statement, 3) == [(False, 2, timedelta(seconds=0.1))]
    timed.step_clock(0.1)
    assert timed.rows(statement, 3) == [(True, 0, timedelta(0))]


@pytest.mark.parametrize("events", [1, 3, 7, 10, 49])
def test_rounding_of_fractions_refuses_no_allowed_request(timed: Table, events: int) -> None:
    """A fraction of a second is not exact in binary; a request after the time of the reply is allowed nevertheless."""
    statement = "SELECT * FROM {s}.check_rate('mail', %s, '1 second', cost => %s)"
    for left in reversed(range(events)):
        assert timed.rows(statement, events, 1) == [(True, left, timedelta(0))]
    for _ in range(10):
        ((allowed, left, wait),) = timed.rows(statement, events, 1)
        assert (allowed, left) == (False, 0)
        timed.step_clock(wait.total_seconds())
        assert timed.rows(statement, events, 1)[0][0] is True


BAD: dict[str, tuple[Any, ...]] = {
    "no name": (None, 1, "1 s", 1, 1),
    "empty name": ("", 1, "1 s", 1, 1),
    "long name": ("x" * 513, 1, "1 s", 1, 1),
    "control character": ("a\nb", 1, "1 s", 1, 1),
    "no events": ("x", 0, "1 s", 1, 1),
    "null events": ("x", None, "1 s", 1, 1),
    "no time": ("x", 1, "0 s", 1, 1),
    "negative time": ("x", 1, "-1 s", 1, 1),
    "null time": ("x", 1, None, 1, 1),
    "no burst": ("x", 1, "1 s", 0, 1),
    "negative cost": ("x", 1, "1 s", 1, -1),
    "null cost": ("x", 1, "1 s", 1, None),
}


def test_bad_input_is_refused_with_a_hint(table: Table) -> None:
    def check(statement: str, *arguments: Any) -> None:
        with pytest.raises(psycopg.errors.InvalidParameterValue) as caught:
            table.sql(statement, *arguments)
        assert caught.value.diag.message_hint

    for arguments in BAD.values():
        check("SELECT {s}.check_rate(%s, %s, %s, %s, %s)", *arguments)
    for bad in (None, -1.0, float("nan")):
        for numbers in ((bad, 1.0, 1.0), (1.0, bad, 1.0), (1.0, 1.0, bad)):
            check("SELECT {s}.consume_rate('x', %s, %s, %s)", *numbers)
    assert table.rows("SELECT * FROM {s}.rate_limits") == []


def test_a_rate_request_on_an_old_snapshot_gets_an_error_and_not_a_wrong_answer(table: Table) -> None:
    user = table.connect(autocommit=False)
    user.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    for _ in range(2):  # one that is new since, and one that has changed
        table.sql("SELECT count(*) FROM {s}.rate_limits", on=user)
        assert table.sql(CONSUME, "x", 10, 60)
        with pytest.raises(psycopg.errors.SerializationFailure):
            table.sql(CONSUME, "x", 10, 60, on=user)
        user.rollback()


def test_sweeps_remove_levels_that_have_drained(timed: Table) -> None:
    timed.sql("SELECT count({s}.consume_rate('rate-' || n, 1, 1)) FROM generate_series(1, 2500) n")
    timed.sql(CONSUME, "rate-kept", 3600, 3600)
    timed.step_clock(1)
    user = timed.connect(autocommit=False)
    timed.sql("SELECT {s}.consume_rate('rate-7', 1, 1)", on=user)
    timed.sql("SET statement_timeout = '3s'")
    for _ in range(3):
        timed.sql("SELECT {s}.sweep_rates()")
    assert timed.rows("SELECT name FROM {s}.rate_limits ORDER BY name") == [("rate-7",), ("rate-kept",)]
    user.rollback()
    store = timed.store()
    store._joins = 255
    drive(store.consume(RateRequest("rate-kept", 0.0, 1.0), 5.0))
    eventually(
        lambda: timed.sql("SELECT count(*) FROM {s}.rate_limits") == 1, "clients that only consume sweep as well"
    )


def test_a_sweep_goes_on_where_the_last_one_ended(timed: Table) -> None:
    for name, cost in {"a": 60, "b": 60, "c": 1}.items():
        timed.sql(CONSUME, name, cost, 60)
    timed.step_clock(1)
    for left in (3, 2):
        timed.sql("SELECT {s}.sweep_rates(2)")
        assert timed.sql("SELECT count(*) FROM {s}.rate_limits") == left


def test_a_stuck_rate_limit_and_a_stuck_name_block_no_others(table: Table) -> None:
    """With many in one pipeline, where one that waits is in the way of all."""

    async def together(user: psycopg.Connection) -> None:
        store = open_store(table.url, AsyncRuntime(), schema=table.schema)
        assert isinstance(store, TableStore)
        stuck = [asyncio.create_task(store.consume(RateRequest("stuck", 1.0, 600.0), 20.0)) for _ in range(10)]
        names = [asyncio.create_task(store.join(Ask("stuck", f"me/{n}", 60.0, 30.0), 20.0)) for n in range(10)]
        began = time.monotonic()
        while not store._blocked_rates or began + 0.1 > time.monotonic():
            await store.consume(RateRequest("other", 0.0, 1.0), 5.0)
        began = time.monotonic()
        requests = (store.consume(RateRequest("other", 1.0, 600.0), 5.0) for _ in range(30))
        assert all(result.allowed for result in await asyncio.gather(*requests))
        assert isinstance(await store.join(Ask("other", "me", 60.0, 30.0), 5.0), Standing)
        assert time.monotonic() - began < 3
        assert not any(task.done() for task in (*stuck, *names))
        user.commit()
        assert all(result.allowed for result in await asyncio.gather(*stuck))
        await asyncio.gather(*names)
        await store.close()

    with table.connect(autocommit=False) as user:
        table.sql(CONSUME, "stuck", 1, 600, on=user)
        table.sql("SELECT {s}.acquire_lock('stuck', 'sql', 60)", on=user)
        asyncio.run(together(user))
