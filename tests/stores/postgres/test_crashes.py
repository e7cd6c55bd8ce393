"""A server that crashes before a release is on disk: decision 0024, on a real one."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from lockstead.core.model import Ask, PlaceState, Refusal, Renewal, Reservation, Standing, Wake
from lockstead.core.store import Reserving
from tests.harness.clients import Harness
from tests.servers.postgres import PostgresServer
from tests.stores.postgres.sessions import places

Start = Callable[..., PostgresServer]
TTL, HEARTBEAT = 60.0, 30.0
"""Seconds: longer than the restart of a server takes."""
TIMEOUT = 15.0


@pytest.fixture
def fragile(start: Start) -> PostgresServer:
    """Give a server on which only a commit that waits for the disk flushes the log."""
    server = start(autovacuum="off")
    server.sql("CHECKPOINT")
    ((pid,),) = server.sql("SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'")
    os.kill(pid, signal.SIGSTOP)
    return server


def crash(server: PostgresServer) -> None:
    server.kill()
    server.restart()


def request(owner: str, *, queue: bool = True) -> Ask:
    return Ask("x", owner, TTL, HEARTBEAT, queue=queue)


async def test_a_release_that_a_crash_undoes_lets_no_third_client_hold(
    harness: Harness, fragile: PostgresServer
) -> None:
    """The waiter that it let hold has its place, behind that of the released holder, and so does its fence."""
    store = harness.store(fragile.url)
    held = await store.join(request("first/1"), TIMEOUT)
    queued = await store.join(request("second/1"), TIMEOUT)
    assert isinstance(held, Standing)
    assert isinstance(queued, Standing)
    assert await store.leave("x", "first/1", TIMEOUT)
    assert await store.wait("x", "second/1", TIMEOUT) is Wake.GRANT
    crash(fragile)
    assert places(harness, fragile) == [("x", "first/1"), ("x", "second/1")], "the release was on disk"
    after = harness.store(fragile.url)
    assert isinstance(await after.join(request("third/1", queue=False), TIMEOUT), Refusal)
    behind = await after.join(request("third/2"), TIMEOUT)
    assert isinstance(behind, Standing)
    assert behind.state is PlaceState.WAITING
    assert behind.ticket > queued.ticket > held.ticket
    (refuted,) = await after.renew([Renewal("x", "second/1", TTL, HEARTBEAT)], TIMEOUT)
    assert refuted.state is PlaceState.WAITING, "its client would not learn that the grant is undone"
    assert await after.leave("x", "first/1", TIMEOUT)
    (renewed,) = await after.renew([Renewal("x", "second/1", TTL, HEARTBEAT)], TIMEOUT)
    assert (renewed.state, renewed.ticket) == (PlaceState.HELD, queued.ticket)


async def test_no_crash_undoes_a_release_before_anything_that_a_client_trusts_for_a_ttl(
    harness: Harness, fragile: PostgresServer
) -> None:
    store = harness.store(fragile.url)
    await store.join(request("first/1"), TIMEOUT)
    await store.join(request("second/1"), TIMEOUT)
    await store.leave("x", "first/1", TIMEOUT)
    (claimed,) = await store.renew([Renewal("x", "second/1", TTL, HEARTBEAT)], TIMEOUT)
    assert claimed.state is PlaceState.HELD
    crash(fragile)
    assert places(harness, fragile) == [("x", "second/1")]


async def test_a_grant_at_once_a_reservation_and_a_tombstone_outlive_a_crash(
    harness: Harness, fragile: PostgresServer
) -> None:
    store = harness.store(fragile.url)
    await store.join(request("first/1"), TIMEOUT)
    assert isinstance(store, Reserving)
    await store.reserve(Reservation("x", "first/1", TTL), TIMEOUT)
    crash(fragile)
    assert places(harness, fragile) == [("x", "first/1+")]
    after = harness.store(fragile.url)
    assert not await after.leave("x", "late/1", TIMEOUT, TTL)
    crash(fragile)
    assert isinstance(await harness.store(fragile.url).join(request("late/1"), TIMEOUT), Refusal)
    await harness.store(fragile.url).join(Ask("y", "second/1", TTL, HEARTBEAT), TIMEOUT)
    crash(fragile)
    assert ("y", "second/1") in places(harness, fragile)


async def test_a_release_does_not_wait_while_a_join_of_its_name_waits_for_the_disk(
    harness: Harness, start: Start
) -> None:
    """Or for a standby: here one that does not exist, so that no commit which waits ever ends."""
    server = start()
    store, other = harness.store(server.url), harness.store(server.url)
    await store.join(request("first/1"), TIMEOUT)
    server.sql("ALTER SYSTEM SET synchronous_standby_names = 'none'")
    server.sql("SELECT pg_reload_conf()")
    joining = harness.start(lambda: other.join(request("second/1"), TIMEOUT))
    await harness.until(lambda: places(harness, server) == [("x", "first/1"), ("x", "second/1")], "it is in line")
    assert await store.leave("x", "first/1", 1.0)
    assert places(harness, server) == [("x", "second/1")]
    assert not joining.is_done, "what is not on disk was answered"
    server.sql("ALTER SYSTEM RESET synchronous_standby_names")
    server.sql("SELECT pg_reload_conf()")
    answer = await joining.result()
    assert isinstance(answer, Standing)
