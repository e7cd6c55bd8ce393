"""One name that is kept in an open transaction holds up no other name."""

from __future__ import annotations

import time

import psycopg
import pytest

from lockstead.stores.postgres.table.schema import script
from tests.harness.clients import Harness, ask
from tests.servers.postgres import PostgresServer


async def test_clients_that_wait_for_one_name_hold_up_no_client_of_another(
    harness: Harness, server: PostgresServer
) -> None:
    schema = harness.options["schema"]
    locks = harness.client(server.url, ttl=2.0)

    async def take_stuck() -> None:
        await ask((await ask(locks.acquire("stuck", timeout=20))).release())

    fine = await ask(locks.acquire("fine"))
    with psycopg.connect(server.url) as forgotten:
        forgotten.execute(f"SELECT {schema}.acquire_lock('stuck', 'me', 60)".encode())
        stuck = [harness.start(take_stuck()) for _ in range(40)]
        await harness.until(lambda: _waiting(server, schema) > 0, "a session waits for the name")
        slowest = 0.0
        until = time.monotonic() + 2.5
        while time.monotonic() < until:
            began = time.monotonic()
            await ask((await ask(locks.acquire("other", timeout=3))).release())
            slowest = max(slowest, time.monotonic() - began)
        assert slowest < 1.5
        assert fine.is_held
        forgotten.rollback()
        for work in stuck:
            await work.result()
    await ask(fine.release())


def _waiting(server: PostgresServer, schema: str) -> int:
    ((count,),) = server.sql(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s", [f"%{schema}%"]
    )
    return int(count)


async def test_concurrent_extensions_all_succeed(harness: Harness, server: PostgresServer) -> None:
    handle = await ask(harness.client(server.url, ttl=5.0).acquire("x"))

    async def extend() -> None:
        for _ in range(30):
            await ask(handle.extend(10.0))

    works = [harness.start(extend()) for _ in range(3)]
    for work in works:
        await work.result()
    assert handle.is_held
    await ask(handle.release())


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
async def test_the_databases_default_isolation_level_has_no_effect(
    harness: Harness, postgres_server: PostgresServer, isolation: str
) -> None:
    with postgres_server.database() as url:
        name = url.rpartition("/")[2]
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(script(harness.options["schema"]).encode())
            connection.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = '{isolation}'".encode())
        first, second = harness.client(url), harness.client(url)
        held = await ask(first.acquire("x"))
        waiting = harness.start(lambda: second.acquire("x", timeout=10))
        await harness.waits(first, "x")
        assert not waiting.is_done
        await ask(held.release())
        await ask((await waiting.result()).release())
        await ask(first.close())
        await ask(second.close())
