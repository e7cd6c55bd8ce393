"""Servers that cannot be used: a typed error at once that names the server and the cause, and never the password."""

from __future__ import annotations

import logging
import shutil
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from lockstead import InvalidInputError, StoreError
from lockstead.core.model import Ask
from lockstead.stores import Source
from lockstead.stores.postgres.table.schema import grants, script
from tests.harness.clients import Harness, ask
from tests.servers.binaries import POSTGRES_SYSTEM, postgres_flavours
from tests.servers.ports import Port
from tests.servers.postgres import PostgresServer, random_name
from tests.servers.redis import RedisServer
from tests.servers.tls import Authority
from tests.servers.wrong_server import WrongServer
from tests.stores.postgres.sessions import places

Start = Callable[..., PostgresServer]
SECRET = "s3cret-f00"
AT_ONCE = 2.0

on_each_flavour = pytest.mark.parametrize(
    "postgres_flavour", postgres_flavours(), ids=lambda flavour: flavour.name, indirect=True
)


async def refusal(
    harness: Harness,
    source: Source,
    caplog: pytest.LogCaptureFixture | None = None,
    *,
    is_transient: bool,
    name: str = "x",
    within: float = AT_ONCE,
    metadata: dict[str, Any] | None = None,
    **options: Any,
) -> str:
    """Acquire what cannot be had, and return what is said about it, having looked for the password everywhere."""
    if caplog is not None:
        caplog.set_level(logging.DEBUG)
    began = time.monotonic()
    locks = harness.client(source, **options)
    with pytest.raises(StoreError) as raised:
        await ask(locks.acquire(name, timeout=5.0, metadata=metadata))
    assert time.monotonic() - began < within
    error = raised.value
    shown = "".join(traceback.format_exception(error)) + "".join(map(repr, chain(error))) + repr(locks)
    assert SECRET not in shown + (caplog.text if caplog is not None else "")
    assert error.transient == is_transient, error
    return str(error)


def chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


@pytest.fixture
def role(server: PostgresServer) -> Iterator[str]:
    """Create a role that may log in, and nothing else."""
    name = random_name()
    server.sql(f"CREATE ROLE {name} LOGIN PASSWORD '{SECRET}'")
    yield name
    server.sql(f"DROP OWNED BY {name}; DROP ROLE {name}")


def url_as(server: PostgresServer, role: str, database: str = "postgres") -> str:
    return f"postgresql://{role}:{SECRET}@127.0.0.1:{server.port}/{database}"


async def test_a_refused_connection_is_named(harness: Harness) -> None:
    port = Port()
    said = await refusal(harness, f"postgresql://me:{SECRET}@127.0.0.1:{port.number}/db", is_transient=True, within=1.0)
    port.close()
    assert f"127.0.0.1:{port.number}/db" in said
    assert "connection refused" in said


async def test_an_unknown_host_is_named(harness: Harness) -> None:
    said = await refusal(harness, f"postgresql://me:{SECRET}@no-such-host.invalid:7777/db", is_transient=True)
    assert "no-such-host.invalid:7777/db" in said
    assert "known" in said or "resolution" in said or "translate" in said


@on_each_flavour
async def test_a_missing_table_is_named_with_the_command_that_makes_it(
    harness: Harness, postgres_server: PostgresServer
) -> None:
    said = await refusal(harness, postgres_server.url, is_transient=False)
    assert f"lockstead migrate --url URL --schema {harness.options['schema']}" in said
    assert str(postgres_server.port) in said


async def test_many_clients_that_find_a_missing_table_all_get_an_error_that_names_the_next_action(
    harness: Harness, postgres_server: PostgresServer
) -> None:
    """A request that uses a statement which another has just failed to prepare."""
    locks = harness.client(postgres_server.url)
    for work in [harness.start(lambda n=n: locks.acquire(f"x-{n}", timeout=5)) for n in range(5)]:
        with pytest.raises(StoreError, match="lockstead migrate"):
            await work.result()


async def test_a_missing_function_is_named(harness: Harness, server: PostgresServer) -> None:
    server.sql(f"DROP FUNCTION {harness.options['schema']}.line_join")
    said = await refusal(harness, server.url, is_transient=False)
    assert "lockstead migrate" in said


@on_each_flavour
async def test_a_role_without_rights_is_named(
    harness: Harness, server: PostgresServer, role: str, caplog: pytest.LogCaptureFixture
) -> None:
    said = await refusal(harness, url_as(server, role), caplog, is_transient=False)
    assert "lockstead migrate --url URL --grant ROLE" in said
    server.sql(f"GRANT USAGE ON SCHEMA {harness.options['schema']} TO {role}")
    said = await refusal(harness, url_as(server, role), caplog, is_transient=False)
    assert "lockstead migrate --url URL --grant ROLE" in said


async def test_a_role_with_the_rights_that_the_advice_names_can_do_everything(
    harness: Harness, server: PostgresServer, role: str
) -> None:
    schema = harness.options["schema"]
    server.sql(grants(schema, [role]))
    first, second = (harness.client(url_as(server, role), ttl=1.0) for _ in range(2))
    held = await ask(first.acquire("x"))
    waiting = harness.start(lambda: second.acquire("x", timeout=20))
    await harness.waits(first, "x")
    await harness.sleep(0.7)
    await ask(held.release())
    taken = await waiting.result()
    assert [info.name for info in await ask(first.inspect())] == ["x"]
    await ask(taken.extend(5))
    await ask(taken.release())
    second._engine.store._joins = -1
    await ask((await ask(second.acquire("swept"))).release())


@contextmanager
def requiring_passwords(server: PostgresServer, role: str) -> Iterator[None]:
    rules = server._data / "pg_hba.conf"
    before = rules.read_text()
    rules.write_text(f"host all {role} 127.0.0.1/32 scram-sha-256\n{before}")
    server.sql("SELECT pg_reload_conf()")
    try:
        yield
    finally:
        rules.write_text(before)
        server.sql("SELECT pg_reload_conf()")


async def test_a_wrong_password_is_named_and_not_shown(
    harness: Harness, server: PostgresServer, role: str, caplog: pytest.LogCaptureFixture
) -> None:
    with requiring_passwords(server, role):
        said = await refusal(harness, url_as(server, role).replace(SECRET, f"{SECRET}-not"), caplog, is_transient=False)
        assert "password authentication failed" in said
        assert role in said
        without = f"postgresql://{role}@127.0.0.1:{server.port}/postgres"
        assert "no password" in await refusal(harness, without, is_transient=False)


async def test_an_unknown_database_is_named(harness: Harness, postgres_server: PostgresServer) -> None:
    said = await refusal(harness, postgres_server.url_at(postgres_server.port, database="nowhere"), is_transient=False)
    assert "nowhere" in said
    assert "create the database" in said


@pytest.mark.parametrize("name", ["recovery", "terminating"])
async def test_the_name_of_a_missing_database_is_not_mistaken_for_the_servers_state(
    harness: Harness, postgres_server: PostgresServer, name: str
) -> None:
    said = await refusal(harness, postgres_server.url_at(postgres_server.port, database=name), is_transient=False)
    assert "create the database" in said


async def test_an_unknown_role_is_named(harness: Harness, postgres_server: PostgresServer) -> None:
    said = await refusal(harness, url_as(postgres_server, "no_such_user"), is_transient=False)
    assert "no_such_user" in said


async def test_a_server_that_is_not_postgres_is_named(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    with WrongServer(lambda _: b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n") as wrong_server:
        said = await refusal(
            harness, f"postgresql://me:{SECRET}@127.0.0.1:{wrong_server.port}/db", caplog, is_transient=False
        )
    assert str(wrong_server.port) in said
    assert "PostgreSQL" in said


@pytest.mark.parametrize("sslmode", ["prefer", "disable", "require"])
async def test_a_redis_server_is_named(harness: Harness, redis_server: RedisServer, sslmode: str) -> None:
    url = f"postgresql://me:{SECRET}@127.0.0.1:{redis_server.port}/db?sslmode={sslmode}"
    said = await refusal(harness, url, is_transient=False)
    assert f"127.0.0.1:{redis_server.port}" in said
    assert "this is a Redis server" in said


async def test_a_read_only_server_is_refused(harness: Harness, server: PostgresServer) -> None:
    """A stand-in for a standby, and what becomes of a primary that is demoted."""
    url = f"{server.url}?options=-cdefault_transaction_read_only%3Don"
    said = await refusal(harness, url, is_transient=True)
    assert "target_session_attrs=read-write" in said


async def test_one_of_several_servers_that_is_silent_or_down_is_passed_over(
    harness: Harness, server: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    down = Port()
    with WrongServer(lambda _: b"") as silent:
        hosts = f"127.0.0.1:{down.number},127.0.0.1:{silent.port},127.0.0.1:{server.port}"
        locks = harness.client(f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write", ttl=6)
        began = time.monotonic()
        held = await ask(locks.acquire("x", timeout=10))
        assert time.monotonic() - began < 4.0, "half of a request's time, for the silent one"
        waiting = harness.start(lambda: locks.acquire("x", timeout=10))
        await harness.waits(locks, "x")
        began = time.monotonic()
        for number in range(3):
            await ask((await ask(locks.acquire(f"y-{number}"))).release())
        assert time.monotonic() - began < 1.0, "a silent host is tried last for a while"
        released = time.monotonic()
        await ask(held.release())
        await waiting.result()
        assert waiting.ended_at - released < 1.0
    down.close()
    assert not caplog.text


async def test_several_unreachable_servers_are_all_named(harness: Harness) -> None:
    first, second = Port(), Port()
    url = f"postgresql://me:{SECRET}@127.0.0.1:{first.number},127.0.0.1:{second.number}/db"
    said = await refusal(harness, url, is_transient=True)
    assert str(first.number) in said
    assert str(second.number) in said
    first.close()
    second.close()


async def test_too_many_connections_is_an_error_that_says_so(harness: Harness, start: Start) -> None:
    """A client with a session keeps it, one that cannot listen polls, and a newcomer gets an error."""
    # Plenty is reserved for looking: sessions that were just refused or closed have their places a little longer.
    server = start(fsync="off", max_connections="16", superuser_reserved_connections="10")
    role = "app"
    schema = harness.options["schema"]
    server.sql(f"CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA {schema} TO {role}")
    server.sql(
        f"GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {role}; GRANT ALL ON ALL SEQUENCES IN SCHEMA {schema} TO {role}"
    )
    url = f"postgresql://{role}@127.0.0.1:{server.port}/postgres"
    locks = harness.client(url, ttl=30)
    held = await ask(locks.acquire("x"))
    crowd: list[psycopg.Connection[Any]] = []
    try:
        with pytest.raises(psycopg.OperationalError):
            while True:
                crowd.append(psycopg.connect(url))
        said = await refusal(harness, url, is_transient=True)
        assert "raise max_connections" in said
        waiting = harness.start(lambda: locks.acquire("x", timeout=10))
        await harness.until(lambda: len(places(harness, server)) == 2, "it stands in line")
        await harness.sleep(0.3)
        assert not waiting.is_done
        released = time.monotonic()
        with suppress(StoreError):  # the only session may just be in use, and is there for the next attempt
            await ask(held.release())
        await waiting.result()
        assert waiting.ended_at - released < 1.0
    finally:
        for connection in crowd:
            connection.close()


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
async def test_a_database_in_another_encoding_works_and_refuses_what_it_cannot_store(
    harness: Harness, postgres_server: PostgresServer, encoding: str
) -> None:
    name = random_name()  # of a database that stays: to drop one may take a minute, until every process takes notice
    postgres_server.sql(f"CREATE DATABASE {name} ENCODING {encoding} LOCALE 'C' TEMPLATE template0")
    url = postgres_server.url_at(postgres_server.port, database=name)
    postgres_server.sql(script(harness.options["schema"]), database=name)
    locks = harness.client(url)
    handle = await ask(locks.acquire("straße", metadata={"wer": "Zoë"}))
    assert (await ask(locks.info("straße"))).metadata == {"wer": "Zoë"}
    assert [info.name for info in await ask(locks.inspect("straß"))] == ["straße"]
    await ask(handle.release())
    if encoding == "LATIN1":
        said = await refusal(harness, url, is_transient=False, name="锁")
        assert "LATIN1" in said
        assert "UTF8" in said
        assert "NUL" not in said
        said = await refusal(harness, url, is_transient=False, metadata={"a": "锁"})
        assert "LATIN1" in said
    else:
        await ask((await ask(locks.acquire("锁", metadata={"a": "锁"}))).release())
    assert postgres_server.sql(f"SELECT name FROM {harness.options['schema']}.distributed_locks", database=name) == []


async def test_metadata_with_a_null_character_is_refused_and_leaves_nothing(
    harness: Harness, server: PostgresServer
) -> None:
    with pytest.raises(InvalidInputError, match="NUL"):
        await ask(harness.client(server.url).acquire("x", metadata={"a": "\0"}))
    with pytest.raises(StoreError, match="NUL character") as raised:
        await harness.store(server.url).join(Ask("x", "me/1", 30.0, 3.0, metadata='{"a":"\\u0000"}'), 5.0)
    assert not raised.value.transient
    assert not places(harness, server)
    schema = harness.options["schema"]
    assert server.sql(f"SELECT name FROM {schema}.lock_names") == []


async def test_a_string_that_is_no_unicode_in_metadata_is_refused(harness: Harness, server: PostgresServer) -> None:
    store = harness.store(server.url)
    with pytest.raises(StoreError) as raised:
        await store.join(Ask("x", "me/1", ttl=30.0, heartbeat=3.0, metadata='{"a":"\\ud800"}'), 5.0)
    assert not raised.value.transient
    assert not places(harness, server)


@pytest.fixture
def tls_server(start: Start, authority: Authority) -> PostgresServer:
    """Give a server that speaks TLS, and accepts nothing else."""
    server = start(fsync="off")
    for source, name in ((authority.certificate, "server.crt"), (authority.key, "server.key")):
        copy = server._data / name
        shutil.copy(source, copy)
        shutil.chown(copy, server._data.owner())
        copy.chmod(0o600)
    (server._data / "pg_hba.conf").write_text("hostssl all all 127.0.0.1/32 trust\n")
    server.settings["ssl"] = "on"
    server.restart()
    return server


on_a_server_with_tls = pytest.mark.parametrize(  # the wheels' are built without
    "postgres_flavour", [POSTGRES_SYSTEM] if POSTGRES_SYSTEM.is_present else [], ids=["postgres-system"], indirect=True
)


@on_a_server_with_tls
async def test_a_lock_is_held_renewed_and_waited_for_over_tls(
    harness: Harness, tls_server: PostgresServer, authority: Authority, tmp_path: Path
) -> None:
    trusting = f"{tls_server.url}?sslmode=verify-full&sslrootcert={authority.authorities}"
    first, second = harness.client(trusting, ttl=1.0), harness.client(trusting, ttl=1.0)
    held = await ask(first.acquire("x"))
    waiting = harness.start(lambda: second.acquire("x", timeout=10))
    await harness.waits(first, "x")
    await harness.sleep(1.2)
    assert held.is_held
    released = time.monotonic()
    await ask(held.release())
    assert (await waiting.result()).is_held
    assert waiting.ended_at - released < 0.5
    said = await refusal(harness, f"{tls_server.url}?sslmode=disable", is_transient=False)
    assert "no encryption" in said
    other = tmp_path / "other"
    other.mkdir()
    wrong = Authority(other).authorities
    said = await refusal(harness, f"{tls_server.url}?sslmode=verify-full&sslrootcert={wrong}", is_transient=False)
    assert "certificate" in said


async def test_tls_to_a_server_without_tls_is_refused(harness: Harness, postgres_server: PostgresServer) -> None:
    said = await refusal(harness, f"{postgres_server.url}?sslmode=require", is_transient=False)
    assert "does not support SSL" in said
