"""Nothing that another role planted in the schema public, or in pg_temp, runs as a role that locks (CVE-2018-1058)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import cache
from typing import Any

import psycopg
import pytest

from lockstead import DistributedLock, LockAcquisitionError
from lockstead.core.model import Ask, RateRequest, Renewal, Reservation
from lockstead.stores.postgres.address import parse_url
from lockstead.stores.postgres.table.migrate import migrate
from lockstead.stores.postgres.table.schema import migration_sql, script
from tests.harness.clients import Harness, ask
from tests.servers.binaries import POSTGRES18, PostgresFlavour, postgres_flavours
from tests.servers.pooler import Pooler
from tests.servers.postgres import PostgresServer, query, through
from tests.stores.postgres.hostile import Hostile, hostile_database
from tests.stores.postgres.transaction.users import (
    Asyncpg,
    AsyncPsycopg,
    Psycopg,
    SqlalchemyAsyncpgConnection,
    SqlalchemyConnection,
    SqlalchemySession,
    User,
)

on_each_flavour = pytest.mark.parametrize("postgres_flavour", postgres_flavours(), indirect=True, ids=str)
CALLS = """
SELECT {s}.acquire_lock('x', 'me', 30, '{{"a": {{"b": 1}}}}');
SELECT {s}.acquire_lock('x', 'me', 30);
SELECT {s}.acquire_lock('x', 'you', 30);
SELECT {s}.acquire_lock('x', 'you', 30, queue => true);
SELECT {s}.acquire_lock('short', 'me', 0.001), pg_catalog.pg_sleep(0.01);
SELECT {s}.acquire_lock('short', 'you', 30);
SELECT {s}.acquire_lock('short', 'third', 0.001, queue => true), pg_catalog.pg_sleep(0.01);
SELECT {s}.extend_lock('x', 'me', 60);
SELECT {s}.check_fence('x', 7), {s}.check_fence('x', 8);
SELECT * FROM {s}.check_rate('x', 10, interval '1 minute', burst => 5, cost => 2);
SELECT * FROM {s}.check_rate('x', 10, interval '1 minute', burst => 1);
SELECT * FROM {s}.consume_rate('x', 1.5, 60);
SELECT * FROM {s}.locks ORDER BY name, fence;
SELECT {s}.release_lock('x', 'me');
SELECT {s}.release_lock('x', 'another');
SELECT {s}.sweep_locks(), {s}.sweep_rates(), {s}.sweep_locks(1), {s}.sweep_rates(1);
"""
REFUSED = """
SELECT {s}.acquire_lock('', 'me', 30);
SELECT {s}.acquire_lock('x', '', 30);
SELECT {s}.acquire_lock('x', 'me', 'NaN');
SELECT {s}.acquire_lock('x', 'me', 30, '[1]');
SELECT {s}.acquire_lock('semaphore', 'you', 30);
SELECT {s}.check_fence('x', 6);
SELECT {s}.check_fence('', 6);
SELECT {s}.check_rate('', 1, interval '1 s');
SELECT {s}.check_rate('x', 0, interval '1 s');
SELECT {s}.consume_rate('x', 'NaN', 1);
"""
INTERNAL = """
SELECT {s}.line_draw();
SELECT {s}.line_check_isolation();
SELECT {s}.line_lock('y');
SELECT {s}.line_head('y', 0, pg_catalog.clock_timestamp());
SELECT {s}.line_settle('y', 0, pg_catalog.clock_timestamp());
SELECT {s}.line_check('y', 'me', 1);
SELECT {s}.line_recheck(true, pg_catalog.clock_timestamp(), pg_catalog.clock_timestamp());
SELECT {s}.rate_level(1, pg_catalog.clock_timestamp(), pg_catalog.clock_timestamp());
SELECT {s}.line_join('semaphore', 'me', 30, 3, 2, 1, true, '{{}}', '', '');
SELECT {s}.line_join('y', 'me', 30, 3, 1, 1, true, '{{}}', '', '50ms');
CALL {s}.line_join_and_flush('y', 'you', 30, 3, 1, 1, true, '{{}}', '', '50ms', NULL, NULL, NULL, NULL, NULL, NULL);
SELECT {s}.line_renew('{{y}}', '{{me}}', '{{30}}', '{{3}}', '{{t}}');
SELECT {s}.line_reserve('y', 'me', 0.001, '{{}}', 1, '');
SELECT {s}.line_leave('y', 'me', 1, '50ms');
SELECT {s}.line_join_all('{{v,w}}', '{{me,us}}', '{{9,9}}', '{{3,3}}', '{{1,1}}', '{{1,1}}', '{{"{{}}","{{}}"}}', '1s');
SELECT {s}.line_join_all('{{u,v}}', '{{me,us}}', '{{9,9}}', '{{3,3}}', '{{1,1}}', '{{1,1}}', '{{"{{}}","{{}}"}}', '1s');
"""


@pytest.fixture
def postgres_flavour(request: pytest.FixtureRequest) -> PostgresFlavour:
    return getattr(request, "param", POSTGRES18)


@pytest.fixture(scope="module")
def hostiles(
    shared_postgres: Callable[[PostgresFlavour], PostgresServer],
) -> Iterator[Callable[[PostgresFlavour], Hostile]]:
    """Plant once on each server: it takes half a second."""
    with ExitStack() as stack:
        yield cache(lambda flavour: stack.enter_context(hostile_database(shared_postgres(flavour))))


@pytest.fixture
def hostile(hostiles: Callable[[PostgresFlavour], Hostile], postgres_flavour: PostgresFlavour) -> Hostile:
    hostile = hostiles(postgres_flavour)
    hostile.caught()
    return hostile


@pytest.fixture
def ready(hostile: Hostile, schema: str) -> Hostile:
    """Give a lease table that its owner migrated from a clean session, and that the application may use."""
    address, _ = parse_url(f"{hostile.as_role(hostile.owner)}?options=-c%20search_path%3Dpg_catalog")
    migrate(address, schema, [hostile.app])
    hostile.caught()
    return hostile


def call(connection: psycopg.Connection, statements: str, schema: str) -> None:
    for statement in statements.strip().format(s=schema).split(";\n"):
        connection.execute(statement.encode())


def refuse(connection: psycopg.Connection, statements: str, schema: str) -> None:
    for statement in statements.strip().format(s=schema).split(";\n"):
        with pytest.raises(psycopg.Error):
            connection.execute(statement.encode())


def test_planted_objects_run_where_a_name_has_no_schema(hostile: Hostile) -> None:
    query(hostile.as_role(hostile.app), "SELECT 1.5 * 2, length('x') FROM pg_locks WHERE 'x'::text = 'x'")
    kinds = {what.partition(" ")[0] for what in hostile.caught()}
    assert kinds == {"operator", "function", "relation", "type"}
    with psycopg.connect(hostile.as_role(hostile.app), autocommit=True) as connection:
        connection.execute("""SET search_path = "$user", public""")  # the server's default, and all that it takes
        connection.execute("SELECT 1.5 * 2")
    assert hostile.caught() == [f"operator *(numeric,integer) ran as {hostile.app}"]


@on_each_flavour
def test_the_migration_runs_nothing_that_is_planted(hostile: Hostile, schema: str) -> None:
    owner = hostile.as_role(hostile.owner)
    for _ in range(2):
        migrate(parse_url(owner)[0], schema, [hostile.app])
    assert hostile.caught() == []

    with psycopg.connect(owner, autocommit=True) as connection:
        for is_in_transaction in (False, True):
            connection.autocommit = not is_in_transaction
            connection.execute("SET search_path = public, pg_catalog")
            connection.execute(migration_sql(schema).encode())
            assert connection.execute("SHOW search_path").fetchone() == ("public, pg_catalog",), "as the caller set it"
            connection.commit()
            assert connection.execute("SHOW search_path").fetchone() == ("public, pg_catalog",)
            connection.commit()
        hostile.caught()
        hostile.plant_temporary(connection)
        connection.execute("SET search_path = public")
        connection.execute(migration_sql(schema).encode())
        connection.execute(migration_sql(f"{schema}_2").encode())
    assert hostile.caught() == []
    with psycopg.connect(hostile.as_role(hostile.app), autocommit=True) as connection:
        call(connection, f"SELECT {schema}.acquire_lock('x', 'me', 30);\nSELECT * FROM {schema}.locks", schema)
    assert hostile.caught() == []


@on_each_flavour
@pytest.mark.parametrize("role", ["app", "owner"])
def test_the_functions_run_nothing_that_is_planted(ready: Hostile, schema: str, role: str) -> None:
    with psycopg.connect(ready.as_role(getattr(ready, role)), autocommit=True) as connection:
        call(connection, INTERNAL, schema)
        call(connection, CALLS, schema)
        refuse(connection, REFUSED, schema)
    assert ready.caught() == []


def test_temporary_objects_are_not_mistaken_for_the_servers(ready: Hostile, schema: str) -> None:
    with psycopg.connect(ready.as_role(ready.app), autocommit=True) as connection:
        ready.plant_temporary(connection)
        ready.caught()
        call(connection, INTERNAL, schema)
        call(connection, CALLS, schema)
        refuse(connection, REFUSED, schema)
    assert ready.caught() == []


def test_every_function_has_a_search_path_of_its_own(server: PostgresServer, schema: str) -> None:
    found = server.sql(
        "SELECT p.proname, p.proconfig, p.prosqlbody IS NOT NULL"
        f" FROM pg_proc p WHERE p.pronamespace = '{schema}'::regnamespace"
    )
    assert len(found) > 15
    for name, settings, is_resolved in found:
        # These bodies are parsed when they are created, so there is nothing to look up later; with a SET they would not
        # be inlined.
        # A procedure with a SET could not commit; the tests above show that nothing planted runs in it.
        is_exempt = (is_resolved and name in {"rate_level", "line_recheck"}) or name == "line_join_and_flush"
        assert "search_path=pg_catalog, pg_temp" in (settings or []) or is_exempt, name


def test_a_table_of_this_version_that_was_unsafe_is_made_safe_by_a_migration(
    server: PostgresServer, schema: str
) -> None:
    functions = f"SELECT oid::regprocedure::text FROM pg_proc WHERE pronamespace = '{schema}'::regnamespace"
    for (function,) in server.sql(functions):
        server.sql(f"ALTER ROUTINE {function} RESET ALL")
    with DistributedLock(server.url, schema=schema) as locks:
        (unsafe,) = [finding for finding in locks.examine() if "search_path" in finding.message]
        assert unsafe.level == "error"
        assert "line_join, " in unsafe.message
        server.sql(script(schema))
        assert not [finding for finding in locks.examine() if "search_path" in finding.message]
    test_every_function_has_a_search_path_of_its_own(server, schema)


def test_a_default_that_was_resolved_to_another_roles_function_is_refused(hostile: Hostile, schema: str) -> None:
    owner = hostile.as_role(hostile.owner)
    address, _ = parse_url(owner)
    migrate(address, schema)
    query(owner, f"ALTER TABLE {schema}.distributed_locks ALTER COLUMN backend SET DEFAULT public.pg_backend_pid()")
    with pytest.raises(Exception, match=r"distributed_locks.*public\.pg_backend_pid"):
        migrate(address, schema)


@on_each_flavour
async def test_a_client_runs_nothing_that_is_planted(ready: Hostile, harness: Harness) -> None:
    await use_leases(harness, ready.as_role(ready.app))
    assert ready.caught() == []


async def test_a_client_behind_a_pooler_runs_nothing_that_is_temporary(
    ready: Hostile, harness: Harness, start_pooler: Callable[..., Pooler]
) -> None:
    pooler = start_pooler(pool_size=1)
    url = through(ready.as_role(ready.app), pooler.port)
    with psycopg.connect(url, autocommit=True, prepare_threshold=None) as connection:
        ready.plant_temporary(connection)
    ready.caught()
    await use_leases(harness, url)
    assert ready.caught() == []


async def use_leases(harness: Harness, url: str) -> None:
    """Do everything that a client of the lease table can."""
    locks, other = harness.client(url), harness.client(url)
    held = await ask(locks.acquire("x", metadata={"by": "me"}))
    await ask(held.extend(30))
    waiting = harness.start(lambda: other.acquire("x", timeout=10))
    await harness.waits(locks, "x")
    with pytest.raises(LockAcquisitionError):
        await ask(other.acquire("x", timeout=0))
    await ask(held.release())
    await ask((await waiting.result()).release())
    with pytest.raises(LockAcquisitionError):
        await ask(locks.acquire("y", at_least=5))
        await ask(other.acquire("y", timeout=0.2))
    assert await ask(locks.inspect("y"))
    await ask(locks.examine())
    await ask(locks.force_release("y"))

    store: Any = harness.store(url)
    asks = [Ask(name, f"me/{name}", 30.0, 3.0, queue=False) for name in ("a", "b", "c")]
    await store.join_all(asks, 5.0)
    await store.join_all([one._replace(owner=f"you/{one.name}") for one in asks], 5.0)
    await store.renew([Renewal(one.name, one.owner, 30.0, 3.0, claim=True) for one in asks], 5.0)
    await store.reserve(Reservation("a", "me/a", 1.0), 5.0)
    await store.leave("b", "me/b", 5.0, 1.0)
    await store.consume(RateRequest("r", 1.0, 10.0), 5.0)
    await store.inspect("", exact=False)
    await store.inspect("c", exact=True)
    assert (await store.examine())[0].level == "ok"
    await store._server.ask(store._statements.sweep, (), 5.0)


async def test_advisory_locks_run_nothing_that_is_planted(hostile: Hostile, harness: Harness) -> None:
    harness.options.clear()
    await use_sessions(harness, hostile.as_role(hostile.app))
    assert hostile.caught() == []


async def use_sessions(harness: Harness, url: str) -> None:
    """Do everything that a client of advisory locks can."""
    url = url.replace("postgresql:", "postgresql+advisory:")
    locks, other = harness.client(url), harness.client(url)
    held = await ask(locks.acquire("x"))
    pair = await ask(locks.acquire("pg:7,42"))
    await ask(held.extend(30))
    waiting = harness.start(lambda: other.acquire("x", timeout=10))
    await harness.waits(locks, "x")
    with pytest.raises(LockAcquisitionError):
        await ask(other.acquire("pg:7,42", timeout=0.1))
    with pytest.raises(LockAcquisitionError):
        await ask(other.acquire("x", timeout=0))
    await ask(held.release())
    await ask((await waiting.result()).release())
    await ask(pair.release())
    reading = [await ask(each.read_lock("r").acquire()) for each in (locks, other)]
    for handle in reading:
        await ask(handle.release())
    assert await ask(locks.inspect()) == []
    last = await ask(locks.acquire("z"))
    assert await ask(other.force_release("z"))
    with suppress(Exception):
        await ask(last.release())


KINDS = [Psycopg, AsyncPsycopg, Asyncpg, SqlalchemyConnection, SqlalchemySession, SqlalchemyAsyncpgConnection]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("is_temporary", [False, True], ids=["public", "pg_temp"])
def test_a_lock_in_a_transaction_runs_nothing_that_is_planted(
    hostile: Hostile, kind: type[User], *, is_temporary: bool
) -> None:
    user = kind(hostile.as_role(hostile.app))
    with psycopg.connect(hostile.url, autocommit=True) as peer:

        async def scenario() -> None:
            for statement in hostile.temporary() if is_temporary else ["SELECT 1"]:
                await user.execute(statement)
            hostile.caught()  # what the library itself has asked when it connected
            async with user.lock("one"), user.lock("b", "a", (7, 42), shared=True), user.lock("c", timeout=1):
                pass
            peer.execute("SELECT pg_advisory_lock(7)")
            for timeout in (0, 0.01):
                with pytest.raises(LockAcquisitionError, match="held by"):
                    async with user.lock("free", 7, timeout=timeout):
                        pass
            await user.commit()

        user.run(scenario())
    assert hostile.caught() == []
