"""A server that ends sessions, stalls, crashes or is gone while its locks are held and waited for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pytest

from lockstead import LockLostError, StoreError
from lockstead.core.model import Ask
from lockstead.core.retry import RetryPolicy
from lockstead.stores.postgres.table.schema import script
from tests.harness.clients import Harness, ask
from tests.servers.binaries import POSTGRES18
from tests.servers.clock import SteppedClock
from tests.servers.postgres import PostgresServer
from tests.servers.proxy import FaultProxy
from tests.stores.postgres.sessions import asking, listening, named, places

TTL = 1.2
SLACK = 1.0
"""What a loaded machine may add to a delay."""
PROMPTLY = 0.5
"""Less than any pause after which a waiter looks by itself."""

Start = Callable[..., PostgresServer]


ONCE = RetryPolicy(max_retries=0)
PATIENT = RetryPolicy(max_retries=30, max_delay=0.2)
"""For a lease that is to outlive a restart."""


async def hold(harness: Harness, url: str, name: str = "x", ttl: float = TTL, **options: Any) -> Any:
    """Acquire with a client of its own, and note when the loss is signalled."""
    notified: list[float] = []
    locks = harness.client(url, ttl=ttl)
    handle = await ask(locks.acquire(name, timeout=15, on_lost=lambda _: notified.append(time.monotonic()), **options))
    handle.notified = notified
    handle.lost  # noqa: B018 - from now on its loss is watched for
    return handle


@pytest.mark.parametrize("runtime_name", ["asyncio"])
@pytest.mark.parametrize("advisory", [False, True], ids=["table", "advisory"])
async def test_requests_on_a_session_that_was_just_ended_say_that_it_was(
    harness: Harness, server: PostgresServer, advisory: bool
) -> None:
    """All are sent before the loop could notice: one of them finds a connection that libpq has given up."""
    me = harness.options["schema"]
    if advisory:
        del harness.options["schema"]
    locks = harness.client(named(server.url, me), advisory=advisory, retry=ONCE)
    await ask((await locks.acquire("x")).release())
    assert server.terminate(me)
    results = await asyncio.gather(*(locks.acquire(name, timeout=0) for name in "abcdef"), return_exceptions=True)
    failures = [result for result in results if isinstance(result, BaseException)]
    assert failures
    for failure in failures:
        assert isinstance(failure, StoreError)
        assert failure.transient
        assert "closed the connection" in str(failure) or "the session has ended" in str(failure)


async def test_a_holder_whose_sessions_are_ended_goes_on_holding(harness: Harness, server: PostgresServer) -> None:
    me = harness.options["schema"]
    handle = await hold(harness, named(server.url, me))
    for _ in range(2):
        await harness.until(lambda: asking(server, me), "it is connected")
        assert server.terminate(me)
        await harness.sleep(TTL / 2)
    assert handle.is_held
    assert not handle.lost.is_set()
    await ask(handle.extend(5))
    await ask(handle.release())
    assert not places(harness, server)


@pytest.mark.parametrize("which", ["asking", "listening"])
async def test_a_waiter_whose_session_is_ended_is_woken_promptly(
    harness: Harness, server: PostgresServer, which: str
) -> None:
    me = harness.options["schema"]
    handle = await hold(harness, server.url, ttl=30)
    waiting = harness.start(hold(harness, named(server.url, me), ttl=30))
    await harness.waits(harness.client(server.url), "x")
    await harness.until(lambda: listening(server, me), "it listens")
    doomed = {"asking": asking, "listening": listening}[which](server, me)
    for pid in doomed:
        server.terminate(pid)
    await harness.until(lambda: set(listening(server, me)) - set(doomed), "it listens again")
    released = time.monotonic()
    await ask(handle.release())
    second = await waiting.result()
    assert second.fence > handle.fence
    assert waiting.ended_at - released < PROMPTLY
    with suppress(StoreError):  # a session that has just ended shows when it is used
        await ask(second.release())
    await harness.until(lambda: not places(harness, server), "it is given up all the same")


async def test_a_release_while_a_waiter_is_not_subscribed_is_not_missed(
    harness: Harness, server: PostgresServer
) -> None:
    me = harness.options["schema"]
    handle = await hold(harness, server.url, ttl=30)
    waiting = harness.start(hold(harness, named(server.url, me), ttl=30))
    await harness.waits(harness.client(server.url), "x")
    (pid,) = await harness.until(lambda: listening(server, me), "it listens")
    server.terminate(pid)
    released = time.monotonic()
    await ask(handle.release())
    await waiting.result()
    assert waiting.ended_at - released < SLACK


async def test_a_waiter_that_cannot_listen_polls(harness: Harness, server: PostgresServer) -> None:
    """As while the address to listen at is out of order."""
    handle = await hold(harness, server.url, ttl=30)
    with FaultProxy(server) as elsewhere:
        elsewhere.refuse()
        locks = harness.client(server.url, listen=elsewhere.url)
        waiting = harness.start(lambda: locks.acquire("x", timeout=10))
        await harness.waits(harness.client(server.url), "x")
        released = time.monotonic()
        await ask(handle.release())
        await waiting.result()
        assert waiting.ended_at - released < SLACK


async def test_a_release_just_before_a_waiter_is_subscribed_again_is_not_missed(
    harness: Harness, server: PostgresServer
) -> None:
    me = harness.options["schema"]
    handle = await hold(harness, server.url, ttl=30)
    with FaultProxy(server) as subscriber:
        locks = harness.client(server.url, ttl=30, listen=named(subscriber.url, me))
        waiting = harness.start(lambda: locks.acquire("x", timeout=10))
        await harness.waits(harness.client(server.url), "x")
        await harness.until(lambda: listening(server, me), "it listens")
        before = subscriber.accepted
        subscriber.hold()
        subscriber.reset_all()
        await harness.until(lambda: subscriber.accepted > before, "it connects again")
        await harness.sleep(0.1)  # a client that was woken has asked again
        await ask(handle.release())
        subscriber.heal()
        healed = time.monotonic()
        await waiting.result()
        assert waiting.ended_at - healed < PROMPTLY


async def test_requests_on_their_way_when_a_session_is_ended_all_get_an_answer(
    harness: Harness, server: PostgresServer
) -> None:
    """The first is stuck in another transaction, the others stand behind it or go their own way."""
    me = harness.options["schema"]
    store = harness.store(named(server.url, me))
    await store.join(Ask("x", "me/0", ttl=30.0, heartbeat=30.0), 5.0)
    with psycopg.connect(server.url) as other_session:
        other_session.execute(f"SELECT FROM {me}.lock_names FOR UPDATE".encode())
        joins = [
            harness.start(lambda n=n: store.join(Ask("x", f"me/{n}", ttl=30.0, heartbeat=30.0), 10.0))
            for n in range(1, 6)
        ]
        pid = other_session.info.backend_pid
        stuck = "SELECT pid FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))"
        for (victim,) in await harness.until(lambda: server.sql(stuck, [pid]), "a request is stuck"):
            server.terminate(victim)
        other_session.rollback()
    outcomes = []
    for join in joins:
        try:
            outcomes.append(await join.result(within=5))
        except StoreError as error:
            assert error.transient  # noqa: PT017 - some may succeed
            outcomes.append(error)
    assert any(isinstance(outcome, StoreError) for outcome in outcomes)
    assert await store.join(Ask("x", "me/0", ttl=30.0, heartbeat=30.0), 5.0)


async def test_a_server_that_stalls_for_less_than_the_ttl_costs_no_client_a_lock(
    harness: Harness, fresh: PostgresServer
) -> None:
    handle = await hold(harness, fresh.url, ttl=2.4)
    waiting = harness.start(hold(harness, fresh.url))
    await harness.waits(harness.client(fresh.url), "x")
    fresh.pause()
    await harness.sleep(0.8)
    assert handle.is_held
    fresh.resume()
    await harness.sleep(1.7)
    assert handle.is_held
    assert not handle.lost.is_set()
    assert not waiting.is_done
    await ask(handle.release())
    assert (await waiting.result()).fence > handle.fence


async def test_a_server_that_stalls_for_longer_than_the_ttl_is_signalled_as_a_loss_before_another_holds(
    harness: Harness, fresh: PostgresServer
) -> None:
    handle = await hold(harness, fresh.url)
    waiting = harness.start(hold(harness, fresh.url))
    await harness.waits(harness.client(fresh.url), "x")
    fresh.pause()
    await harness.until(handle.lost.is_set, "the loss is signalled", within=TTL + SLACK)
    await harness.until(lambda: handle.notified, "on_lost is called", within=SLACK)
    assert not handle.is_held
    with pytest.raises(LockLostError):
        handle.check()
    assert not waiting.is_done
    fresh.resume()
    second = await waiting.result()
    assert handle.notified[0] < waiting.ended_at
    assert second.fence > handle.fence
    with pytest.raises(LockLostError):
        await ask(handle.release())
    await harness.sleep(TTL)
    assert second.is_held
    await ask(second.release())
    third = await hold(harness, fresh.url)
    assert third.fence > second.fence


async def test_a_join_stuck_in_a_server_that_stalls_leaves_no_place(harness: Harness, fresh: PostgresServer) -> None:
    """The server carries it out when it goes on, after its caller has given up."""
    locks, other = harness.client(fresh.url, ttl=30), harness.client(fresh.url)
    await ask((await ask(locks.acquire("known"))).release())
    fresh.pause()
    with pytest.raises(StoreError):
        await ask(locks.acquire("x", timeout=0.4))
    fresh.resume()
    assert (await ask(other.acquire("x", timeout=5))).is_held
    await harness.until(lambda: not locks._engine.keeper.leases, "nothing is left to give up")
    assert [holder.rpartition("/")[0] for _, holder in places(harness, fresh)] == [other.holder_id]


async def test_a_server_that_crashes_and_recovers_keeps_its_locks(harness: Harness, fresh: PostgresServer) -> None:
    handle = await hold(harness, fresh.url, ttl=2.5)
    waiting = harness.start(hold(harness, fresh.url, retry=PATIENT))
    await harness.waits(harness.client(fresh.url), "x")
    await harness.aside(lambda: fresh.restart("immediate"))
    assert (await ask(harness.client(fresh.url).info("x"))).fence == handle.fence
    await harness.sleep(2.5)
    assert handle.is_held
    assert not handle.lost.is_set()
    assert not waiting.is_done
    released = time.monotonic()
    await ask(handle.release())
    assert (await waiting.result()).fence > handle.fence
    assert waiting.ended_at - released < SLACK


async def test_a_grant_survives_a_crash_right_after_it_was_answered(harness: Harness, fresh: PostgresServer) -> None:
    locks = harness.client(fresh.url, ttl=30)
    handles = []
    for number in range(2):
        handles.append(await ask(locks.acquire(f"x-{number}", retry=PATIENT)))
        await ask((await ask(locks.acquire(f"stays-{number}", at_least=60))).release())
        fresh.kill()
        fresh.restart()
    other = harness.client(fresh.url)
    assert [(await ask(other.info(f"x-{n}"))).fence for n in range(2)] == [handle.fence for handle in handles]
    assert all([(await ask(other.info(f"stays-{n}"))).holders[0].reserved for n in range(2)])
    assert await ask(other.try_acquire("x-1")) is None
    assert handles[0].fence < handles[1].fence < (await ask(other.acquire("y"))).fence
    for handle in handles:
        with suppress(StoreError):  # a session that has just ended shows when it is used
            await ask(handle.release())
    await harness.until(lambda: len(places(harness, fresh)) == 3, "all are given up but the other's, and what stays")


@pytest.mark.parametrize("runtime_name", ["threads"])
async def test_a_release_that_a_crash_undoes_costs_only_time(harness: Harness, start: Start) -> None:
    server = start(wal_writer_delay="10s")
    locks, other = harness.client(server.url, ttl=TTL), harness.client(server.url)
    first = await ask(locks.acquire("x"))
    await ask(first.release())
    server.kill()
    server.restart()
    assert [name for name, _ in places(harness, server)] == ["x"], "the release was written at once: it need not be"
    began = time.monotonic()
    second = await ask(other.acquire("x", timeout=10))
    assert time.monotonic() - began < TTL + SLACK
    assert second.fence > first.fence
    assert not first.is_held


async def test_a_server_that_is_gone_for_good_is_an_error_for_waiters_and_a_loss_for_holders(
    harness: Harness, fresh: PostgresServer
) -> None:
    handle = await hold(harness, fresh.url)
    locks, began = harness.client(fresh.url), time.monotonic()
    waiting = harness.start(lambda: locks.acquire("x", timeout=2.5))
    await harness.waits(harness.client(fresh.url), "x")
    fresh.kill()
    with pytest.raises(StoreError, match=str(fresh.port)):
        await waiting.result()
    assert 2.0 < waiting.ended_at - began < 2.5 + SLACK
    await harness.until(handle.lost.is_set, "the loss is signalled", within=TTL + SLACK)
    with pytest.raises(LockLostError):
        await ask(handle.release())


async def test_a_waiter_outlasts_a_restart_however_few_retries_its_requests_have(
    harness: Harness, fresh: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    locks = harness.client(fresh.url, retry=ONCE)
    handle = await ask(harness.client(fresh.url).acquire("x", ttl=30))
    waiting = harness.start(lambda: locks.acquire("x"))
    await harness.waits(harness.client(fresh.url), "x")
    caplog.clear()
    fresh.kill()
    await harness.sleep(1.5)
    assert not waiting.is_done
    fresh.restart()
    await harness.waits(harness.client(fresh.url), "x")
    await ask(handle.release())
    assert (await waiting.result()).fence > handle.fence
    assert sum("unreachable" in record.message for record in caplog.records) <= 1, "the holder sent nothing"


async def test_a_first_contact_that_fails_is_an_error_soon(harness: Harness, fresh: PostgresServer) -> None:
    fresh.kill()
    began = time.monotonic()
    with pytest.raises(StoreError, match="refused"):
        await ask(harness.client(fresh.url).acquire("x"))
    assert time.monotonic() - began < 1 + SLACK


@pytest.fixture
def clocked(schema: str) -> Iterator[PostgresServer]:
    """Give a server of the test's own whose clock can be set."""
    with PostgresServer(POSTGRES18, SteppedClock, fsync="off") as server:
        server.sql(script(schema))
        yield server


@pytest.mark.parametrize("runtime_name", ["threads"])
async def test_a_clock_stepped_forward_ends_leases_and_back_keeps_them_and_fences_grow(
    harness: Harness, clocked: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    first = await hold(harness, clocked.url)
    waiting = harness.start(hold(harness, clocked.url))
    await harness.waits(harness.client(clocked.url), "x")
    clocked.step_clock(60)
    await harness.until(first.lost.is_set, "the loss is signalled", within=TTL)
    second = await waiting.result()
    assert second.fence > first.fence
    await harness.sleep(TTL / 2)  # its clock is read for the first time
    dead: Any = await harness.store(clocked.url).join(Ask("y", "dead/1", TTL, TTL), 5.0)
    clocked.step_clock(-60)
    assert (await hold(harness, clocked.url, "y")).fence > dead.ticket
    assert "clock stepped by -60." in caplog.text
    assert second.is_held
    await ask(second.release())
    assert (await hold(harness, clocked.url)).fence > second.fence
