"""`lockstead migrate` and what `lockstead doctor` says of a PostgreSQL server."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Callable
from importlib.resources import files
from urllib.parse import urlsplit

import psycopg
import pytest
import sqlalchemy

from lockstead import AsyncDistributedLock, DistributedLock
from lockstead.core.model import Ask, RateRequest, Reservation
from lockstead.core.runtime import drive
from lockstead.errors import InvalidInputError, StoreError
from lockstead.runtimes.threads import ThreadRuntime
from lockstead.stores import open_store
from lockstead.stores.postgres.table.schema import grants, migration_sql
from lockstead.stores.postgres.table.store import TableStore
from tests.harness.command import Lockstead
from tests.servers.binaries import POSTGRES18, PostgresFlavour
from tests.servers.pooler import Pooler
from tests.servers.postgres import PostgresServer, query, random_name, through

ODD = "My-ówn-locks"


@pytest.fixture
def postgres_flavour() -> PostgresFlavour:
    """PostgreSQL 18 only: what is tested on each is the SQL itself, elsewhere."""
    return POSTGRES18


def as_role(url: str, role: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=f"{role}@{parts.hostname}:{parts.port}").geturl()


def test_a_database_is_brought_up_to_date_once(lockstead: Lockstead, postgres_url: str) -> None:
    parts = urlsplit(postgres_url)
    first = lockstead("migrate", "--url", postgres_url)
    where = f"schema lockstead of {parts.path[1:]} at {parts.hostname}:{parts.port} is at version 3"
    assert (first.returncode, first.stdout, first.stderr) == (0, f"{where} (was: none)\n", "")
    with DistributedLock(postgres_url) as locks:
        handle = locks.acquire("x")
        assert lockstead("migrate", "--url", postgres_url).stdout == f"{where} (was: 3)\n"
        handle.extend(30)
    output = lockstead.json("migrate", "--url", postgres_url)
    assert (output["schema"], output["version"], output["was"]) == ("lockstead", 3, 3)


@pytest.mark.parametrize("way", ["--schema", "URL"])
def test_migrate_accepts_a_schema_of_any_name(lockstead: Lockstead, postgres_url: str, way: str) -> None:
    url = sqlalchemy.make_url(postgres_url).update_query_dict({"schema": ODD}).render_as_string(hide_password=False)
    flags = ("--url", url) if way == "URL" else ("--url", postgres_url, "--schema", ODD)
    assert lockstead.json("migrate", *flags)["schema"] == ODD
    with DistributedLock(postgres_url, schema=ODD) as locks, locks.lock("x"):
        assert locks.is_locked("x")
    assert lockstead("doctor", "--url", url).stdout.startswith("ok ")


def test_concurrent_migrations_do_not_collide(lockstead: Lockstead, postgres_url: str) -> None:
    commands = [lockstead.start("migrate", "--url", postgres_url) for _ in range(3)]
    ends = [command.communicate(timeout=30) for command in commands]
    assert [error for _, error in ends] == ["", "", ""]
    assert sum("was: none" in output for output, _ in ends) == 1


def test_the_printed_migration_can_be_applied_by_psql(lockstead: Lockstead, postgres_url: str) -> None:
    lockstead.environment.pop("LOCKSTEAD_URL")
    printed = lockstead("migrate", "--print", "--schema", ODD)
    assert printed.returncode == 0
    assert "op.execute" in printed.stdout
    assert "migrations.RunSQL" in printed.stdout
    psql = POSTGRES18.program.path.with_name("psql")
    subprocess.run([psql, "-q", "-v", "ON_ERROR_STOP=1", postgres_url], input=printed.stdout, text=True, check=True)
    assert lockstead.json("migrate", "--url", postgres_url, "--schema", ODD)["was"] == 3


def test_the_migration_runs_through_sqlalchemy_and_as_one_statement(postgres_url: str) -> None:
    """As Alembic's `op.execute` does, which looks for :parameters, and by drivers that take one statement at a time."""
    engine = sqlalchemy.create_engine(postgres_url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text(migration_sql("theirs")))
    engine.dispose()
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(migration_sql("ours").encode(), prepare=True)
    ours, theirs = (DistributedLock(postgres_url, schema=schema) for schema in ("ours", "theirs"))
    with ours, theirs, theirs.lock("x"):
        assert not ours.is_locked("x")


def test_a_newer_schema_is_left_alone(lockstead: Lockstead, postgres_url: str) -> None:
    query(postgres_url, migration_sql())
    query(postgres_url, "UPDATE lockstead.lock_state SET version = 7")
    done = lockstead("migrate", "--url", postgres_url)
    assert done.returncode == 2
    assert "version 7" in done.stderr
    assert "upgrade lockstead" in done.stderr
    with pytest.raises(psycopg.Error, match="version 7"):
        query(postgres_url, migration_sql())
    done = lockstead("doctor", "--url", postgres_url)
    assert done.returncode == 1
    assert "newer than this lockstead" in done.stdout


def test_migrate_names_missing_rights_and_grants_them(
    lockstead: Lockstead, postgres_server: PostgresServer, postgres_url: str
) -> None:
    role, odd_role = random_name(), f'{random_name()} "x"'
    quoted = odd_role.replace('"', '""')
    postgres_server.sql(f'CREATE ROLE {role} LOGIN; CREATE ROLE "{quoted}" LOGIN')
    url = as_role(postgres_url, role)
    try:
        done = lockstead("migrate", "--url", url)
        assert done.returncode == 2
        assert "permission denied" in done.stderr
        assert "GRANT CREATE ON DATABASE" in done.stderr
        assert "--print" in done.stderr

        assert lockstead.json("migrate", "--url", postgres_url)["granted"] == []
        assert "--grant" in lockstead("ls", "--url", url).stderr
        found = lockstead("doctor", "--url", url)
        assert found.returncode == 1
        assert "--grant" in found.stdout
        assert lockstead.json("migrate", "--url", postgres_url, "--grant", role, odd_role)["granted"] == [
            role,
            odd_role,
        ]
        with DistributedLock(url) as locks:
            for _ in range(300):  # with a sweep among them
                locks.acquire("x").release()
        query(url, "SELECT lockstead.check_rate('x', 1, '1 s'), lockstead.sweep_rates()")

        postgres_server.sql(f"CREATE SCHEMA own AUTHORIZATION {role}", database=urlsplit(url).path[1:])
        assert lockstead("migrate", "--url", url, "--schema", "own").returncode == 0, "a schema of its own is enough"
    finally:
        postgres_server.sql(f"DROP DATABASE {urlsplit(url).path[1:]} WITH (FORCE)")
        postgres_server.sql(f'DROP ROLE {role}; DROP ROLE "{quoted}"')


def first_migration() -> str:
    """Give what made the lease table when there was only the first file."""
    _, second, *_ = sorted(
        files("lockstead.stores.postgres.table").joinpath("migrations").iterdir(), key=lambda file: file.name
    )
    head, mark, _ = migration_sql().partition(second.read_text("utf-8").splitlines()[0])
    assert mark
    return f"{head}END $lockstead$"


def test_an_old_table_is_brought_up_to_date_while_locks_are_held(
    lockstead: Lockstead, postgres_server: PostgresServer, postgres_url: str
) -> None:
    role = random_name()
    postgres_server.sql(f"CREATE ROLE {role} LOGIN")
    url = as_role(postgres_url, role)
    try:
        query(postgres_url, "ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON ROUTINES FROM PUBLIC")
        query(postgres_url, first_migration() + ";" + grants("lockstead", [role]))
        store = open_store(url, ThreadRuntime())
        assert isinstance(store, TableStore)
        with DistributedLock(url) as locks, psycopg.connect(postgres_url) as user:
            query(url, "SELECT lockstead.acquire_lock('x', 'holder of the old table', 60)")
            found = lockstead("doctor", "--url", url)
            assert found.returncode == 1
            assert "lease table of version 1" in found.stdout
            assert "missing or too old: run `lockstead migrate" in found.stdout
            with pytest.raises(StoreError, match="run `lockstead migrate") as caught:
                drive(store.consume(RateRequest("x", 1.0, 1.0), 5.0))
            assert not caught.value.transient
            done: list[str] = []
            with pytest.raises(StoreError, match="run `lockstead migrate"):
                locks.once("z", period=60).run(lambda: done.append("too early"))
            assert done == []

            user.execute("SELECT lockstead.acquire_lock('kept in a transaction', 'me', 60)")
            output = lockstead.json("migrate", "--url", postgres_url)
            assert (output["was"], output["version"]) == (1, 3)
            assert not any("too old" in finding.message for finding in locks.examine())
            assert not locks.try_acquire("x")
            query(url, "SELECT lockstead.release_lock('x', 'holder of the old table')")
            with locks.lock("x"):
                locks.once("z", period=60).run(lambda: done.append("once"))
            assert done == ["once"]
        # The role was not named again: it has on the new table the rights it had on the others.
        assert drive(store.consume(RateRequest("x", 1.0, 1.0), 5.0)).allowed
        asks = [Ask(name, f"me/{name}", 30.0, 10.0, queue=False) for name in ("x", "y")]
        assert isinstance(drive(store.join_all(asks, 5.0)), list)
        assert drive(store.reserve(Reservation("x", "me/x", 30.0), 5.0))
        query(url, "SELECT lockstead.sweep_locks(), lockstead.sweep_rates(), lockstead.check_rate('x', 1, '1 s')")
        drive(store.close())
    finally:
        postgres_server.sql(f"DROP DATABASE {urlsplit(url).path[1:]} WITH (FORCE)")
        postgres_server.sql(f"DROP ROLE {role}")


def test_an_open_transaction_does_not_hold_a_repeated_migration_up(lockstead: Lockstead, postgres_url: str) -> None:
    query(postgres_url, migration_sql())
    with psycopg.connect(postgres_url) as connection:
        connection.execute("SELECT lockstead.acquire_lock('x', 'me', 60), lockstead.check_rate('x', 1, '1 s')")
        connection.execute("SELECT version FROM lockstead.lock_state")
        assert lockstead("migrate", "--url", postgres_url).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--url", "redis://localhost"), "only PostgreSQL needs a migration"),
        ((), "only PostgreSQL needs a migration"),
        (("--print", "--schema", "a$$b"), "schema must be 1 to 63 bytes"),
        (("--print", "--schema", ""), "schema must be 1 to 63 bytes"),
        (("--print", "--schema", "x" * 64), "1 to 63 bytes"),
        (("--url", "postgresql://localhost/?schem=x"), "schem"),
    ],
)
def test_bad_input_of_migrate_is_refused(lockstead: Lockstead, arguments: tuple[str, ...], said: str) -> None:
    done = lockstead("migrate", *arguments)
    assert done.returncode == 2
    assert said in done.stderr


def test_migration_sql_refuses_an_invalid_schema() -> None:
    with pytest.raises(InvalidInputError, match="1 to 63"):
        migration_sql("")


def test_a_server_that_is_down_is_an_error(lockstead: Lockstead, postgres_server: PostgresServer) -> None:
    done = lockstead("migrate", "--url", "postgresql://postgres@127.0.0.1:1/x", "--json")
    assert done.returncode == 69
    assert "connection refused" in json.loads(done.stderr)["message"]


def test_doctor_finds_a_missing_migration_and_settings_that_lose_data(
    lockstead: Lockstead, postgres_server: PostgresServer, postgres_url: str
) -> None:
    done = lockstead("doctor", "--url", postgres_url)
    assert done.returncode == 1
    assert "lockstead migrate" in done.stdout

    query(postgres_url, migration_sql())
    (fine, *rest) = json.loads(lockstead("doctor", "--url", postgres_url, "--json").stdout)
    assert fine["level"] == "ok"
    assert fine["message"].startswith("PostgreSQL 18")
    assert [finding["level"] for finding in rest] == ["error"]
    assert "fsync=off" in rest[0]["message"], "the tests' own server"

    query(postgres_url, "ALTER TABLE lockstead.distributed_locks SET UNLOGGED")
    query(postgres_url, f"ALTER DATABASE {urlsplit(postgres_url).path[1:]} SET synchronous_commit = off")
    query(postgres_url, "UPDATE lockstead.lock_state SET version = 0")
    found = lockstead("doctor", "--url", postgres_url).stdout
    assert "UNLOGGED" in found
    assert "for distributed_locks" in found
    assert "warning  " in found
    assert "synchronous_commit=off" in found
    assert "missing or too old" in found


def test_doctor_finds_nothing_wrong_with_a_sound_server_behind_a_pooler(
    lockstead: Lockstead, postgres_url: str, start_pooler: Callable[..., Pooler]
) -> None:
    query(postgres_url, migration_sql())
    pooled = through(postgres_url, start_pooler().port)
    assert "there is a pooler before it" in lockstead("doctor", "--url", pooled).stdout
    for cured in (f"{pooled}?pooler=session", f"{pooled}?listen={postgres_url}", f"{pooled}?push=no"):
        with DistributedLock(cured) as locks:
            assert not any("pooler" in finding.message for finding in locks.examine())


def test_the_asyncio_client_examines_too(postgres_url: str, start_pooler: Callable[..., Pooler]) -> None:
    query(postgres_url, migration_sql())

    async def examine() -> list[str]:
        async with AsyncDistributedLock(through(postgres_url, start_pooler().port)) as locks:
            return [finding.message for finding in await locks.examine()]

    messages = asyncio.run(examine())
    assert messages[0].startswith("PostgreSQL 18")
    assert any("there is a pooler" in message for message in messages)


def test_doctor_finds_nothing_wrong_with_a_sound_server(lockstead: Lockstead, fresh_postgres: PostgresServer) -> None:
    assert lockstead("migrate", "--url", fresh_postgres.url).returncode == 0
    done = lockstead("doctor", "--url", fresh_postgres.url)
    assert done.returncode == 0, done.stdout
