"""The SQL functions as users of other languages call them, beside Python clients."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from lockstead import LockAcquisitionError
from lockstead.cli import main
from lockstead.cli.outcome import Exit
from lockstead.core.model import UNKNOWN, Ask, Refusal, Renewal, Standing
from lockstead.core.runtime import drive
from lockstead.errors import StoreError
from tests.harness.conditions import eventually
from tests.servers.binaries import postgres_flavours
from tests.servers.postgres import PostgresServer
from tests.stores.postgres.table import Table

ACQUIRE = "SELECT {s}.acquire_lock(%s, %s, %s)"
QUEUE = "SELECT {s}.acquire_lock(%s, %s, %s, queue => true)"
EXTEND = "SELECT {s}.extend_lock(%s, %s, %s)"
RELEASE = "SELECT {s}.release_lock(%s, %s)"


pytestmark = pytest.mark.parametrize(
    "postgres_flavour", postgres_flavours(), indirect=True, ids=lambda flavour: flavour.name
)


@pytest.fixture
def table(postgres_server: PostgresServer, postgres_schema: str) -> Iterator[Table]:
    with Table(postgres_server, postgres_schema) as table:
        yield table


@pytest.fixture
def timed(postgres_server: PostgresServer, postgres_schema: str) -> Iterator[Table]:
    """Give a table on a clock of the test's own."""
    with Table(postgres_server, postgres_schema, clock=True) as table:
        yield table


def left(table: Table, name: str, holder: str) -> float:
    """Return in how many seconds a place expires."""
    statement = "SELECT expires_at - {s}.test_clock() FROM {s}.distributed_locks WHERE name = %s AND holder = %s"
    return float(table.sql(statement, name, holder).total_seconds())


def test_a_holder_acquires_extends_and_releases(timed: Table) -> None:
    fence = timed.sql(ACQUIRE, "x", "me", 10)
    assert fence > 0
    assert timed.sql(ACQUIRE, "x", "you", 10) is None
    timed.step_clock(4)
    assert timed.sql(ACQUIRE, "x", "me", 10) == fence, "the same holder keeps its fence"
    assert left(timed, "x", "me") == 10
    assert timed.sql(ACQUIRE, "x", "me", 1) == fence
    assert left(timed, "x", "me") == 10, "and loses nothing"

    assert timed.sql(EXTEND, "x", "you", 60) is False
    assert timed.sql(EXTEND, "x", "me", 60) is True
    assert left(timed, "x", "me") == 60
    assert timed.sql(RELEASE, "x", "you") is False
    assert timed.sql(RELEASE, "x", "me") is True
    assert timed.sql(RELEASE, "x", "me") is False
    assert timed.sql(EXTEND, "x", "me", 60) is False
    assert timed.sql(ACQUIRE, "x", "you", 10) > fence


def test_an_expired_lock_is_lost(timed: Table) -> None:
    fence = timed.sql(ACQUIRE, "x", "me", 10)
    timed.step_clock(10)
    assert timed.sql(EXTEND, "x", "me", 60) is False
    assert timed.sql(RELEASE, "x", "me") is False
    newer = timed.sql(ACQUIRE, "x", "you", 10)
    assert newer > fence
    timed.step_clock(10)
    assert timed.sql(ACQUIRE, "x", "you", 10) > newer, "also for the same holder: it may have been away"


def test_a_fence_grows_where_the_clock_does_not(timed: Table) -> None:
    first = timed.sql(ACQUIRE, "x", "me", 10)
    timed.sql(RELEASE, "x", "me")
    timed.step_clock(-1000)
    assert timed.sql(ACQUIRE, "x", "me", 10) > first


def test_waiters_are_served_in_the_order_they_came(timed: Table) -> None:
    timed.sql(ACQUIRE, "x", "holder", 60)
    assert timed.sql(QUEUE, "x", "first", 60) is None
    assert timed.sql(QUEUE, "x", "second", 60) is None
    timed.sql(RELEASE, "x", "holder")
    assert timed.sql(ACQUIRE, "x", "passer-by", 60) is None, "a waiter is not overtaken"
    assert timed.sql(QUEUE, "x", "second", 60) is None
    first = timed.sql(QUEUE, "x", "first", 60)
    assert left(timed, "x", "first") == 60
    timed.sql(RELEASE, "x", "first")
    assert timed.sql(QUEUE, "x", "second", 60) > first


def test_a_waiter_that_stops_asking_loses_its_place(timed: Table) -> None:
    timed.sql(ACQUIRE, "x", "holder", 3600)
    timed.sql(QUEUE, "x", "gone", 60)
    timed.sql(QUEUE, "x", "waiting", 60)
    for _ in range(3):
        timed.step_clock(4)
        assert timed.sql(QUEUE, "x", "waiting", 60) is None
    timed.sql(RELEASE, "x", "holder")
    assert timed.sql(QUEUE, "x", "waiting", 60) > 0


def test_a_place_in_the_line_can_be_given_up(timed: Table) -> None:
    timed.sql(ACQUIRE, "x", "holder", 3600)
    timed.sql(QUEUE, "x", "first", 60)
    timed.sql(QUEUE, "x", "second", 60)
    assert timed.sql(RELEASE, "x", "first") is True
    timed.sql(RELEASE, "x", "holder")
    assert timed.sql(QUEUE, "x", "second", 60) > 0


def test_psql_and_python_exclude_each_other(table: Table) -> None:
    locks = table.client()
    fence = int(table.psql("""SELECT {s}.acquire_lock('x', 'psql:1', 30, '{{"job": [1, "two"]}}')"""))
    assert locks.try_acquire("x") is None
    info = locks.info("x")
    assert info is not None
    assert (info.fence, info.holder_id, info.metadata) == (fence, "psql:1", {"job": [1, "two"]})
    with pytest.raises(LockAcquisitionError, match="held by psql:1") as caught:
        locks.acquire("x", timeout=0)
    assert caught.value.holder == "psql:1"
    assert table.psql("SELECT {s}.release_lock('x', 'psql:1')") == "t"

    with locks.lock("x", metadata={"by": "python"}) as handle:
        assert handle.fence > fence
        assert table.psql("SELECT {s}.acquire_lock('x', 'psql:1', 30) IS NULL") == "t"
        assert table.psql("SELECT metadata->>'by' FROM {s}.locks WHERE name = 'x'") == "python"
    assert int(table.psql("SELECT {s}.acquire_lock('x', 'psql:1', 30)")) > handle.fence


def test_a_python_waiter_is_woken_by_psql(table: Table) -> None:
    locks = table.client()
    table.sql(ACQUIRE, "x", "sql", 60)
    took: list[float] = []

    def wait() -> None:
        with locks.lock("x", timeout=30):
            took.append(time.monotonic())

    waiter = threading.Thread(target=wait)
    waiter.start()
    eventually(lambda: (info := locks.info("x")) is not None and info.waiting == 1, "it waits")
    began = time.monotonic()
    table.sql(RELEASE, "x", "sql")
    waiter.join(30)
    assert took[0] - began < 1.0, "not only at its next heartbeat"


def test_sql_and_python_wait_in_one_line(table: Table) -> None:
    first, second = table.client(), table.client()
    held = first.acquire("x")
    assert table.sql(QUEUE, "x", "sql", 60) is None
    fences: list[int] = []

    def wait() -> None:
        with second.lock("x", timeout=30) as handle:
            fences.append(handle.fence)

    waiter = threading.Thread(target=wait)
    waiter.start()
    eventually(lambda: (info := first.info("x")) is not None and info.waiting == 2, "both wait")
    held.release()
    fence = table.sql(QUEUE, "x", "sql", 60)
    assert fence > held.fence
    assert not fences
    table.sql(RELEASE, "x", "sql")
    waiter.join(30)
    assert fences[0] > fence


def test_the_view_shows_holders_and_waiters(table: Table) -> None:
    user = table.connect(application_name="billing")
    fence = table.sql(ACQUIRE, "x", "me", 60, on=user)
    table.sql(QUEUE, "x", "you", 60)
    rows = table.rows(
        "SELECT holder, fence = %s, state, since IS NULL, expires_at > now(), application, host(client_address),"
        " backend FROM {s}.locks ORDER BY fence",
        fence,
    )
    assert [row[:6] for row in rows] == [
        ("me", True, "holds", False, True, "billing"),
        ("you", False, "waits", True, True, ""),
    ]
    assert rows[0][6:] == ("127.0.0.1", user.info.backend_pid)


BAD = {
    "no name": (None, "me", 10.0),
    "empty name": ("", "me", 10.0),
    "long name": ("x" * 513, "me", 10.0),
    "control character": ("a\nb", "me", 10.0),
    "no holder": ("x", None, 10.0),
    "empty holder": ("x", "", 10.0),
    "long holder": ("x", "é" * 129, 10.0),
    "no ttl": ("x", "me", None),
    "ttl of 0": ("x", "me", 0.0),
    "negative ttl": ("x", "me", -1.0),
    "NaN": ("x", "me", float("nan")),
    "infinity": ("x", "me", float("inf")),
    "ten years": ("x", "me", 3650 * 86400.0),
}


def test_bad_input_is_refused_with_a_hint(table: Table) -> None:
    def check(statement: str, *arguments: Any) -> None:
        with pytest.raises(psycopg.errors.InvalidParameterValue) as caught:
            table.sql(statement, *arguments)
        assert caught.value.sqlstate == "22023"
        assert caught.value.diag.message_hint

    for name, holder, ttl in BAD.values():
        check("SELECT {s}.acquire_lock(%s, %s, %s)", name, holder, ttl)
        check("SELECT {s}.extend_lock(%s, %s, %s)", name, holder, ttl)
        if ttl == 10.0:
            check("SELECT {s}.release_lock(%s, %s)", name, holder)
    for metadata in ("[1]", '"text"', "null", "7"):
        check("SELECT {s}.acquire_lock(%s, %s, %s, %s)", "x", "me", 10, metadata)
    check("SELECT {s}.check_fence(%s, %s)", "x", None)
    check("SELECT {s}.check_fence(%s, %s)", None, 7)
    assert "HINT:" in table.psql("SELECT {s}.acquire_lock('', 'me', 10)")
    assert table.rows("SELECT * FROM {s}.distributed_locks") == []


def test_arguments_left_out_count_as_empty(table: Table) -> None:
    assert table.sql("SELECT {s}.acquire_lock('x', 'me', 10, NULL, NULL)") > 0
    assert table.sql("SELECT metadata FROM {s}.locks") == {}
    assert table.sql("SELECT {s}.acquire_lock(%s, %s, 10)", "ü" * 512, "h" * 256) > 0, "the longest there may be"


def test_a_lock_of_a_semaphores_name_is_refused(table: Table) -> None:
    drive(table.store().join(Ask("x", "python/1", 30.0, 10.0, capacity=3, weight=1), 5.0))
    with pytest.raises(psycopg.errors.ObjectInUse, match="capacity of 3"):
        table.sql(ACQUIRE, "x", "me", 10)


def test_a_rolled_back_acquire_or_release_has_no_effect(table: Table) -> None:
    locks = table.client()
    user = table.connect(autocommit=False)
    assert table.sql(ACQUIRE, "x", "me", 60, on=user) > 0
    assert not locks.is_locked("x")
    user.rollback()
    assert table.rows("SELECT * FROM {s}.distributed_locks") == table.rows("SELECT * FROM {s}.lock_names") == []
    table.sql(ACQUIRE, "x", "me", 60)
    table.sql(RELEASE, "x", "me", on=user)
    user.rollback()
    info = locks.info("x")
    assert info is not None
    assert info.holder_id == "me"


def test_an_open_transaction_holds_up_nothing_but_its_own_name(
    postgres_server: PostgresServer, postgres_schema: str
) -> None:
    with Table(postgres_server, postgres_schema) as table:
        store = table.store()
        for owner, ttl in {"a": 1.0, "b": 1.0, "c": 1.0, "d": 0.25}.items():
            standing = drive(store.join(Ask(f"name-{owner}", owner, ttl, ttl), 5.0))
            assert isinstance(standing, Standing)
        user = table.connect(autocommit=False)
        table.sql(EXTEND, "name-a", "a", 5, on=user)
        table.sql(EXTEND, "name-d", "d", 5, on=user)
        assert table.sql(ACQUIRE, "name-b", "sql", 60, on=user) is None
        table.sql(QUEUE, "name-b", "sql", 60, on=user)

        renewals = [Renewal(f"name-{owner}", owner, 60.0, 1.0) for owner in ("a", "b", "c")]
        began = time.monotonic()
        stuck, shared, free = drive(store.renew(renewals, 5.0))
        assert stuck == UNKNOWN, "neither renewed nor lost"
        assert shared is not None
        assert shared.held
        assert free is not None
        assert free.held
        with pytest.raises(StoreError, match="a transaction that is still open") as caught:
            drive(store.join(Ask("name-b", "late", 60.0, 10.0), 0.5))
        assert caught.value.transient
        assert isinstance(drive(store.join(Ask("name-c", "late", 60.0, 10.0), 5.0)), Standing)
        table.sql("SET statement_timeout = '3s'")
        table.sql("SELECT {s}.sweep_locks()")
        assert time.monotonic() - began < 5

        user.rollback()
        (again,) = drive(store.renew(renewals[:1], 5.0))
        assert again is None or again.held


def test_callers_wait_for_a_transaction_five_seconds_at_most(table: Table) -> None:
    settings = dict(
        table.rows(
            "SELECT p.proname, s.setting FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace,"
            " unnest(p.proconfig) AS s (setting) WHERE n.nspname = %s AND s.setting LIKE 'lock_timeout=%%'",
            table.schema,
        )
    )
    assert settings == {
        "acquire_lock": "lock_timeout=5s",
        "check_rate": "lock_timeout=5s",
        "release_lock": "lock_timeout=5s",
        "extend_lock": "lock_timeout=5s",
        "line_renew": "lock_timeout=200ms",
        "sweep_locks": "lock_timeout=200ms",
    }


@pytest.mark.parametrize(
    "step",
    [
        "SELECT {s}.line_join('x', 'newcomer', 60, 60, 1, 1, true, '{{}}', '', '')",
        "SELECT {s}.line_join('x', 'newcomer', 60, 60, 1, 1, false, '{{}}', '', '')",
        "SELECT {s}.line_renew('{{x}}', '{{waiter 5000}}', '{{60}}', '{{60}}', '{{t}}')",
        "SELECT {s}.line_leave('x', 'waiter 5000', 0, '')",
    ],
    ids=["join", "ask", "renew", "leave"],
)
def test_a_step_reads_the_front_of_a_line_only(table: Table, step: str) -> None:
    """A planner that does not know how long it is would rather read all of it, and sort."""
    table.sql(ACQUIRE, "x", "holder", 60)
    table.sql(
        "INSERT INTO {s}.distributed_locks (name, fence, holder, capacity, weight, renewed_at, expires_at)"
        " SELECT name, fence + n, 'waiter ' || n, capacity, weight, renewed_at, expires_at"
        " FROM {s}.distributed_locks, generate_series(1, 5000) AS n"
    )
    with table.connect(autocommit=False) as connection:
        table.sql(step, on=connection)
        read = table.sql(
            "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables"
            " WHERE schemaname = '{s}' AND relname = 'distributed_locks'",
            on=connection,
        )
    assert 0 < read < 200


@pytest.mark.parametrize("level", [psycopg.IsolationLevel.REPEATABLE_READ, psycopg.IsolationLevel.SERIALIZABLE])
@pytest.mark.parametrize("name", ["busy", "free"])
def test_a_lock_request_on_an_old_snapshot_gets_an_error_and_not_a_wrong_answer(
    table: Table, level: psycopg.IsolationLevel, name: str
) -> None:
    table.sql(ACQUIRE, "busy", "other", 60)
    user = table.connect(autocommit=False)
    user.isolation_level = level
    table.sql("SELECT 1", on=user)
    table.sql(RELEASE, "busy", "other")
    for statement in (ACQUIRE, QUEUE):
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="cannot be used"):
            table.sql(statement, name, "me", 60, on=user)
        user.rollback()
    reserve = "SELECT {s}.line_reserve(%s, 'other', 60, NULL, 0, '')"
    join_all = "SELECT {s}.line_join_all(ARRAY[%s], '{{me}}', '{{9}}', '{{9}}', '{{1}}', '{{1}}', NULL, '')"
    for statement, *arguments in ((RELEASE, name, "other"), (reserve, name), (join_all, name)):
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="cannot be used"):
            table.sql(statement, *arguments, on=user)
        user.rollback()


def test_sweeps_keep_the_tables_small(timed: Table) -> None:
    timed.sql("SELECT count({s}.acquire_lock('job:' || n, 'gone', 10)) FROM generate_series(1, 3000) n")
    timed.sql("SELECT {s}.acquire_lock('kept', 'me', 3600)")
    store = timed.store()
    drive(store.leave("job:1", "gone", 5.0, 30.0))
    timed.step_clock(61)
    for _ in range(8):
        timed.sql("SELECT {s}.sweep_locks()")
    assert timed.rows("SELECT name FROM {s}.distributed_locks") == [("kept",)]
    assert timed.sql("SELECT count(*) FROM {s}.lock_names") == 1
    assert timed.sql("SELECT count(*) FROM {s}.lock_tombstones") == 0


def test_clients_sweep_more_than_they_leave_behind(timed: Table) -> None:
    """Names that are used once and never again, with every client sweeping now and then."""
    store = timed.store()
    sizes = []
    for round_ in range(6):
        timed.sql("SELECT count({s}.acquire_lock(%s || n, 'gone', 1)) FROM generate_series(1, 255) n", f"{round_}-")
        timed.step_clock(61)
        store._joins = 255
        drive(store.join(Ask("x", "me", 30.0, 10.0, queue=False), 5.0))
        sizes.append(timed.sql("SELECT count(*) FROM {s}.lock_names"))
    assert max(sizes) <= 257, sizes


def test_a_swept_names_next_fence_is_greater(timed: Table) -> None:
    fence = timed.sql(ACQUIRE, "x", "me", 10)
    timed.step_clock(61)
    timed.sql("SELECT {s}.sweep_locks()")
    assert timed.sql("SELECT count(*) FROM {s}.lock_names") == 0
    timed.step_clock(-1000)
    assert timed.sql(ACQUIRE, "x", "me", 10) > fence


def test_no_waiter_is_overtaken_or_missed_where_fences_go_back(
    postgres_server: PostgresServer, postgres_schema: str
) -> None:
    """The sequence was not copied to this server, whose clock is behind."""
    with Table(postgres_server, postgres_schema, clock=True, changes={"random() < 0.02": "true"}) as timed:
        timed.sql(ACQUIRE, "x", "me", 60)
        timed.sql(RELEASE, "x", "me")
        bound = timed.sql("SELECT first FROM {s}.lock_names")
        assert bound > 0
        timed.step_clock(-1000)
        timed.sql("SELECT setval('{s}.lock_fence', 1)")
        assert timed.sql(ACQUIRE, "x", "first", 60) >= bound
        assert timed.sql(ACQUIRE, "x", "second", 60) is None
        timed.sql("SELECT setval('{s}.lock_fence', 1)")
        timed.sql(QUEUE, "x", "second", 60)
        assert timed.rows("SELECT holder FROM {s}.locks ORDER BY fence") == [("first",), ("second",)]


def test_a_bound_is_not_raised_above_a_place_renewed_at_the_last_moment(
    postgres_server: PostgresServer, postgres_schema: str
) -> None:
    """A leave finds a place expired whose renewal is being committed: it is live, and must be seen."""
    with Table(postgres_server, postgres_schema, changes={"random() < 0.02": "true"}) as table:
        table.sql(ACQUIRE, "x", "holder", 0.2)
        for waiter in ("first", "second"):
            table.sql(QUEUE, "x", waiter, 60)
        user = table.connect(autocommit=False)
        assert table.sql(EXTEND, "x", "holder", 60, on=user)
        time.sleep(0.25)
        leaver = threading.Thread(target=table.sql, args=(RELEASE, "x", "second"), kwargs={"on": table.connect()})
        leaver.start()
        blocked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s"
        eventually(lambda: table.sql(blocked, f"%{table.schema}.release_lock%"), "it waits for the renewal")
        user.commit()
        leaver.join(15)
        table.sql(RELEASE, "x", "first")
        assert table.sql(ACQUIRE, "x", "third", 60) is None


def test_a_leave_or_renewal_reads_only_the_front_of_the_line(table: Table) -> None:
    table.sql("INSERT INTO {s}.lock_names VALUES ('x')")
    table.sql(
        "INSERT INTO {s}.distributed_locks (name, fence, holder, capacity, weight, renewed_at, expires_at)"
        " SELECT 'x', n, 'waiter ' || n, 1, 1, now(), now() + interval '1 hour' FROM generate_series(1, 1000) AS n"
    )
    table.sql("ANALYZE {s}.distributed_locks")  # by which it may seem cheap to sort them all
    user = table.connect(autocommit=False)
    for number in range(1, 11):  # the plans of the first five are for once
        table.sql(RELEASE, "x", f"waiter {number}", on=user)
        assert table.sql(ACQUIRE, "x", "me", 60, on=user) is None
    read = (
        "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables"
        " WHERE schemaname = %s AND relname = 'distributed_locks'"
    )
    assert table.sql(read, table.schema, on=user) < 500


def test_a_sweep_wakes_the_places_that_hold_by_it(table: Table) -> None:
    table.sql(ACQUIRE, "x", "gone", 0.01)
    store = table.store()
    subscriber = table.connect()
    received: list[str] = []
    subscriber.add_notify_handler(lambda notice: received.append(notice.payload))
    subscriber.execute(f"LISTEN {store._channel}".encode())
    table.sql("UPDATE {s}.distributed_locks SET expires_at = expires_at + interval '1 hour'")
    assert not isinstance(drive(store.join(Ask("x", "next", 30.0, 30.0), 5.0)), Refusal)
    table.sql("UPDATE {s}.distributed_locks SET expires_at = renewed_at WHERE holder = 'gone'")
    table.sql("SELECT {s}.sweep_locks()")
    eventually(lambda: subscriber.execute("SELECT 1") and received == ["next"], "it receives the notification")


def test_a_session_that_stalls_takes_nothing_from_places_renewed_meanwhile(
    postgres_server: PostgresServer, postgres_schema: str
) -> None:
    """It read the clock, was not given the processor for a while, and finds places renewed later than its now."""
    stalled = {"moment timestamptz := clock_timestamp();": "moment timestamptz := clock_timestamp() - interval '3 s';"}
    with Table(postgres_server, postgres_schema, changes=stalled) as table:
        store = table.store()
        drive(store.join(Ask("x", "me", 60.0, 10.0), 5.0))
        table.sql(EXTEND, "x", "me", 600)
        promised = table.sql("SELECT expires_at FROM {s}.distributed_locks")
        table.sql("SELECT {s}.line_settle('x', 0, clock_timestamp() - interval '3 s')")
        assert table.sql("SELECT expires_at FROM {s}.distributed_locks") == promised
        (standing,) = drive(store.renew([Renewal("x", "me", 10.0, 10.0)], 5.0))
        assert standing.held
        assert table.sql("SELECT expires_at FROM {s}.distributed_locks") == promised


def test_a_python_waiter_follows_an_sql_holder_that_lets_it_expire(table: Table) -> None:
    table.sql(ACQUIRE, "x", "sql", 0.4)
    locks = table.client()
    with locks.lock("x", timeout=10):
        assert table.sql(ACQUIRE, "x", "sql", 1) is None


@pytest.mark.parametrize(
    "metadata",
    ['{"a":' * 3000 + "1" + "}" * 3000, '{"a":' * 300 + "1" + "}" * 300, '{"a": 1' + "0" * 5000 + "}"],
    ids=["deep", "not so deep", "a number of many digits"],
)
def test_metadata_that_python_cannot_read_hides_no_lock(
    table: Table, metadata: str, capsys: pytest.CaptureFixture[str]
) -> None:
    table.sql("SELECT {s}.acquire_lock('odd', 'sql', 60, %s)", metadata)
    table.sql("""SELECT {s}.acquire_lock('plain', 'sql', 60, '{{"a": [1]}}')""")
    odd, plain = table.client().inspect()
    assert (odd.name, odd.holder_id, plain.metadata) == ("odd", "sql", {"a": [1]})
    assert odd.metadata == {}
    assert odd.damage is not None
    assert """'odd', cannot be read: {"a": """ in odd.damage
    assert len(odd.damage) < 300
    url = f"{table.url}?schema={table.schema}"
    assert main(["ls", "--url", url]) == Exit.DAMAGED
    printed = capsys.readouterr()
    assert "odd" in printed.out
    assert "cannot be read" in printed.err
    assert main(["ls", "--url", url, "--json"]) == Exit.DAMAGED
    assert [lock["name"] for lock in json.loads(capsys.readouterr().out)] == ["odd", "plain"]
    assert main(["show", "odd", "--url", url]) == Exit.DAMAGED
    assert main(["show", "plain", "--url", url]) == 0
    assert main(["release", "odd", "--force", "--url", url]) == 0
    assert not table.client().is_locked("odd")
