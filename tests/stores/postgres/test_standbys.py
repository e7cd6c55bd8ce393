"""Standbys, before and after they take over."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from lockstead import LockAcquisitionError, StoreError
from lockstead.testing.proxy import FaultProxy
from tests.harness.clients import Harness, ask
from tests.servers.postgres import PostgresServer, unprivileged
from tests.servers.process import identity
from tests.stores.postgres.test_bad_servers import refusal

Start = Callable[..., PostgresServer]
pytestmark = pytest.mark.parametrize("runtime_name", ["asyncio"])


@pytest.fixture
def primary(start: Start) -> PostgresServer:
    return start(fsync="off", wal_level="replica", max_wal_senders="4")


async def test_a_standby_is_passed_over_until_it_is_promoted_and_has_what_it_received(
    harness: Harness, primary: PostgresServer, start_postgres: Start
) -> None:
    standby = follower(primary, primary.port, start_postgres)
    assert "this is a standby" in await refusal(harness, standby.url, is_transient=True)
    both = f"postgresql://postgres@127.0.0.1:{standby.port},127.0.0.1:{primary.port}/postgres"
    locks = harness.client(f"{both}?target_session_attrs=read-write", ttl=30)
    handle = await ask(locks.acquire("x", timeout=5))
    waiting = harness.start(lambda: locks.acquire("x", timeout=5))
    await harness.waits(locks, "x")
    await ask(handle.release())
    following = await waiting.result()
    await harness.until(lambda: is_up_to_date(standby, primary), "it has received everything")
    other = harness.client(failover(primary, standby))
    with pytest.raises(LockAcquisitionError):
        await ask(other.acquire("x", timeout=0))
    assert following.is_held
    with suppress(StoreError):  # a session that has just ended shows when it is used
        await ask(following.release())
    assert (await ask(other.acquire("x", timeout=5))).fence > following.fence


async def test_a_lock_that_a_synchronous_standby_has_not_received_is_not_held(
    harness: Harness, primary: PostgresServer, start_postgres: Start
) -> None:
    with FaultProxy(primary.address) as link:
        standby = follower(primary, link.port, start_postgres)
        primary.sql("ALTER SYSTEM SET synchronous_standby_names = '*'")
        primary.sql("SELECT pg_reload_conf()")
        state = "SELECT sync_state FROM pg_stat_replication"
        await harness.until(lambda: primary.sql(state) == [("sync",)], "the primary waits for its standby")
        locks = harness.client(primary.url, ttl=30)
        replicated = await ask(locks.acquire("replicated", timeout=5))
        link.black_hole()
        with pytest.raises((LockAcquisitionError, StoreError)):
            await ask(locks.acquire("unreplicated", timeout=1))
        other = harness.client(failover(primary, standby))
        with pytest.raises(LockAcquisitionError):
            await ask(other.acquire("replicated", timeout=0))
        assert replicated.is_held
        assert (await ask(other.acquire("unreplicated", timeout=0))).is_held
        with suppress(StoreError):  # its server is gone
            await ask(replicated.release())


async def test_a_lock_that_an_asynchronous_standby_has_not_received_may_be_held_twice_with_fences_that_grow(
    harness: Harness, primary: PostgresServer, start_postgres: Start
) -> None:
    """Not promised: see docs/guarantees.md."""
    with FaultProxy(primary.address) as link:
        standby = follower(primary, link.port, start_postgres)
        link.black_hole()
        unreplicated = await ask(harness.client(primary.url, ttl=30).acquire("x", timeout=5))
        taken = await ask(harness.client(failover(primary, standby)).acquire("x", timeout=0))
        assert unreplicated.is_held
        assert taken.fence > unreplicated.fence
        with suppress(StoreError):  # its server is gone
            await ask(unreplicated.release())


def follower(primary: PostgresServer, port: int, start_postgres: Start) -> PostgresServer:
    """Start a standby that is a copy of the primary, and listens to it at a port."""
    primary_at = f"host=127.0.0.1 port={port} user=postgres"
    standby = start_postgres(fsync="off", hot_standby="on", primary_conninfo=primary_at)
    standby.stop()
    shutil.rmtree(standby._data)
    address = ["-h", "127.0.0.1", "-p", str(primary.port), "-U", "postgres"]
    options = ["-X", "stream", "-c", "fast", "--no-sync"]
    command: list[str | Path] = [standby._programs / "pg_basebackup", "-D", standby._data, *address, *options]
    subprocess.run(command, check=True, cwd="/", timeout=60, capture_output=True, **identity(unprivileged()))
    (standby._data / "standby.signal").touch()
    standby.restart()
    assert standby.sql("SELECT pg_is_in_recovery()") == [(True,)]
    return standby


def failover(primary: PostgresServer, standby: PostgresServer) -> str:
    """Let the standby take over from a primary that dies, and return its URL."""
    primary.kill()
    standby.sql("SELECT pg_promote()")
    return standby.url


def is_up_to_date(standby: PostgresServer, primary: PostgresServer) -> bool:
    ((sent,),) = primary.sql("SELECT pg_current_wal_insert_lsn()::text")
    return standby.sql("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", [sent]) == [(True,)]
