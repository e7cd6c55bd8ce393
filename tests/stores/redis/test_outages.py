"""A server that stalls, dies, restarts empty, or is flushed while its locks are held and waited for."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from lockstead import ClosedError, LockLostError, RetryPolicy, StoreError
from lockstead.core.model import Ask
from tests.harness.clients import Harness, ask
from tests.servers.redis import RedisServer

TTL = 1.2
SLACK = 1.0
"""What a loaded machine may add to a delay."""

Start = Callable[..., RedisServer]


async def hold(harness: Harness, server: RedisServer, name: str = "x", ttl: float = TTL) -> Any:
    """Acquire with a client of its own, and note when the loss is signalled."""
    notified: list[float] = []
    locks = harness.client(server.url, ttl=ttl)
    handle = await ask(locks.acquire(name, timeout=10, on_lost=lambda _: notified.append(time.monotonic())))
    handle.notified = notified
    handle.lost  # noqa: B018 - from now on its loss is watched for
    return handle


async def test_a_server_that_stalls_for_less_than_the_ttl_costs_no_client_a_lock(
    harness: Harness, fresh_server: RedisServer
) -> None:
    handle = await hold(harness, fresh_server, ttl=2.0)
    waiting = harness.start(hold(harness, fresh_server))
    await harness.waits(harness.client(fresh_server.url), "x")
    fresh_server.pause()
    await harness.sleep(0.8)
    assert handle.is_held
    fresh_server.resume()
    await harness.sleep(1.5)
    assert handle.is_held
    assert not handle.lost.is_set()
    assert not waiting.is_done
    await ask(handle.release())
    assert (await waiting.result()).fence > handle.fence


async def test_a_server_that_stalls_for_longer_than_the_ttl_is_signalled_as_a_loss_before_another_holds(
    harness: Harness, fresh_server: RedisServer
) -> None:
    handle = await hold(harness, fresh_server)
    waiting = harness.start(hold(harness, fresh_server))
    await harness.waits(harness.client(fresh_server.url), "x")
    fresh_server.pause()
    await harness.until(handle.lost.is_set, "the loss is signalled", within=TTL + SLACK)
    await harness.until(lambda: handle.notified, "on_lost is called", within=SLACK)
    assert not handle.is_held
    with pytest.raises(LockLostError):
        handle.check()
    assert not waiting.is_done
    fresh_server.resume()
    second = await waiting.result()
    assert handle.notified[0] < waiting.ended_at
    assert second.fence > handle.fence
    with pytest.raises(LockLostError):
        await ask(handle.release())
    await harness.sleep(TTL)
    assert second.is_held
    await ask(second.release())
    third = await hold(harness, fresh_server)
    assert third.fence > second.fence


async def test_a_loss_is_signalled_to_a_block(harness: Harness, fresh_server: RedisServer) -> None:
    locks = harness.client(fresh_server.url, ttl=TTL)

    async def block() -> None:
        if harness.runtime_name == "threads":
            with locks.lock("x") as handle:
                fresh_server.pause()
                assert handle.lost.wait(TTL + SLACK)
        else:
            async with locks.lock("x"):
                fresh_server.pause()
                await harness.sleep(60)

    with pytest.raises(LockLostError):
        await block()
    fresh_server.resume()
    assert (await ask(locks.acquire("x", timeout=5))).is_held


async def test_a_server_killed_and_restarted_with_its_log_keeps_its_locks(harness: Harness, start: Start) -> None:
    server = start(append_only=True)
    handle = await hold(harness, server, ttl=2.0)
    waiting = harness.start(hold(harness, server))
    watch = harness.client(server.url)
    await harness.waits(watch, "x")
    await ask((await ask(watch.acquire("stays", at_least=60))).release())
    assert await ask(watch.rate_limiter("rate", 1, 60).try_acquire())
    server.kill()
    server.restart()
    after = harness.client(server.url)
    assert (await ask(after.info("x"))).fence == handle.fence
    assert (await ask(after.info("stays"))).holders[0].reserved
    assert not await ask(after.rate_limiter("rate", 1, 60).try_acquire())
    await harness.sleep(2.0)
    assert handle.is_held
    assert not handle.lost.is_set()
    assert not waiting.is_done
    released = time.monotonic()
    await ask(handle.release())
    assert (await waiting.result()).fence > handle.fence
    assert waiting.ended_at - released < SLACK


async def test_a_server_restarted_empty_is_signalled_as_a_loss_and_waiters_are_served(
    harness: Harness, fresh_server: RedisServer
) -> None:
    handle = await hold(harness, fresh_server)
    waiting = harness.start(hold(harness, fresh_server))
    await harness.waits(harness.client(fresh_server.url), "x")
    fresh_server.kill()
    fresh_server.restart()
    second = await waiting.result()
    assert second.fence > handle.fence
    await harness.until(handle.lost.is_set, "the loss is signalled", within=TTL)
    with pytest.raises(LockLostError):
        await ask(handle.release())
    assert second.is_held


async def test_flushing_everything_is_signalled_as_a_loss_and_waiters_are_served(
    harness: Harness, fresh_server: RedisServer
) -> None:
    handle = await hold(harness, fresh_server)
    waiting = harness.start(hold(harness, fresh_server))
    await harness.waits(harness.client(fresh_server.url), "x")
    with fresh_server.client() as client:
        client.flushall()
    second = await waiting.result()
    assert second.fence > handle.fence
    await harness.until(handle.lost.is_set, "the loss is signalled", within=TTL)
    assert second.is_held


async def test_scripts_flushed_in_the_middle_of_use_are_sent_again(harness: Harness, fresh_server: RedisServer) -> None:
    handle = await hold(harness, fresh_server)
    waiting = harness.start(hold(harness, fresh_server))
    watch = harness.client(fresh_server.url)
    await harness.waits(watch, "x")
    with fresh_server.client() as client:
        for _ in range(8):
            client.script_flush()
            await harness.sleep(0.15)
        assert handle.is_held
        client.script_flush()
        await ask(handle.release())
        assert (await waiting.result()).fence > handle.fence
        client.script_flush()
        assert (await ask(watch.info("x"))).waiting == 0


async def test_a_server_that_is_gone_for_good_is_an_error_for_waiters_and_a_loss_for_holders(
    harness: Harness, fresh_server: RedisServer
) -> None:
    handle = await hold(harness, fresh_server)
    locks, began = harness.client(fresh_server.url), time.monotonic()
    waiting = harness.start(lambda: locks.acquire("x", timeout=2.5))
    await harness.waits(harness.client(fresh_server.url), "x")
    fresh_server.kill()
    with pytest.raises(StoreError, match=str(fresh_server.port)):
        await waiting.result()
    assert 2.0 < waiting.ended_at - began < 2.5 + SLACK
    await harness.until(handle.lost.is_set, "the loss is signalled", within=TTL + SLACK)
    with pytest.raises(LockLostError):
        await ask(handle.release())


@pytest.mark.parametrize("outage", [1.5, 4.5], ids="{}s".format)
async def test_a_waiter_outlasts_a_restart_however_few_retries_its_requests_have(
    harness: Harness, start: Start, outage: float, caplog: pytest.LogCaptureFixture
) -> None:
    server = start(append_only=True)
    handle = await hold(harness, server, ttl=30)
    locks = harness.client(server.url, retry=RetryPolicy(max_retries=0))
    waiting = harness.start(lambda: locks.acquire("x"))
    await harness.waits(harness.client(server.url), "x")
    caplog.clear()
    server.kill()
    await harness.sleep(outage)
    assert not waiting.is_done
    server.restart()
    await harness.waits(harness.client(server.url), "x")
    await harness.until(lambda: reports(caplog, "reachable again"), "the waiter reports the end of the outage")
    assert (reports(caplog, "unreachable"), reports(caplog, "reachable again")) == (1, 1), "the holder sent nothing"
    await ask(handle.release())
    assert (await waiting.result()).fence > handle.fence


def reports(caplog: pytest.LogCaptureFixture, text: str) -> int:
    return sum(text in record.message for record in caplog.records if record.levelname == "WARNING")


async def test_a_client_that_was_answered_before_waits_for_a_server_that_is_down(
    harness: Harness, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    server = start(append_only=True)
    locks = harness.client(server.url)
    await ask((await ask(locks.acquire("x"))).release())
    server.kill()
    waiting = harness.start(lambda: locks.acquire("x", timeout=20))
    with pytest.raises(StoreError, match="refused"):
        await ask(locks.try_acquire("x"))
    await harness.sleep(1.0)
    assert not waiting.is_done
    server.restart()
    handle = await waiting.result()
    assert (reports(caplog, "unreachable"), reports(caplog, "reachable again")) == (1, 1)
    await ask(handle.release())


async def test_a_client_that_is_closed_in_an_outage_ends_its_waits(harness: Harness, start: Start) -> None:
    server = start(append_only=True)
    handle = await hold(harness, server, ttl=30)
    locks = harness.client(server.url)
    waits = [
        harness.start(lambda: locks.acquire("x")),
        harness.start(lambda: locks.multi_lock(["x", "y"]).acquire()),
    ]
    await harness.waits(harness.client(server.url), "x", 2)
    server.kill()
    later = harness.start(lambda: locks.multi_lock(["a", "b"]).acquire())
    await harness.sleep(0.5)
    await ask(locks.close())
    for waiting in (*waits, later):
        with pytest.raises(ClosedError):
            await waiting.result(within=5)
    server.restart()
    with suppress(StoreError):  # a connection that has just ended shows when it is used
        await ask(handle.release())


async def test_a_multi_lock_outlasts_a_restart(harness: Harness, start: Start) -> None:
    server = start(append_only=True)
    locks = harness.client(server.url, retry=RetryPolicy(max_retries=0))
    await ask((await ask(locks.acquire("x"))).release())
    server.kill()
    with pytest.raises(StoreError, match=r"refused|closed"):
        await ask(locks.multi_lock(["x", "y"], timeout=0).acquire())
    waiting = harness.start(lambda: locks.multi_lock(["x", "y"], timeout=20).acquire())
    await harness.sleep(0.7)
    assert not waiting.is_done
    server.restart()
    await ask((await waiting.result()).release())


async def test_acquisitions_that_fail_in_an_outage_leave_nothing_in_the_subscriber(
    harness: Harness, start: Start
) -> None:
    server = start(append_only=True)
    locks = harness.client(server.url)
    await ask((await ask(locks.acquire("x"))).release())
    server.kill()
    with pytest.raises(StoreError):
        await ask(locks.try_acquire("x"))  # on the connection that it had
    for _ in range(3):
        with pytest.raises(StoreError, match="refused"):
            await ask(locks.acquire("x", timeout=0.3))
    places = locks._engine.store._subscriber._places
    await harness.until(lambda: not places.messages, "the places are forgotten: their joins were not sent")
    assert not places.owners


async def test_a_first_contact_that_fails_is_an_error_soon(harness: Harness, fresh_server: RedisServer) -> None:
    fresh_server.kill()
    began = time.monotonic()
    with pytest.raises(StoreError, match="refused"):
        await ask(harness.client(fresh_server.url).acquire("x"))
    assert time.monotonic() - began < 1 + SLACK


async def test_a_waiter_outlasts_a_primary_that_is_read_only_for_a_while(
    harness: Harness, fresh_server: RedisServer
) -> None:
    locks = harness.client(fresh_server.url)
    handle = await ask(locks.acquire("x", ttl=30))
    waiting = harness.start(lambda: harness.client(fresh_server.url).acquire("y", timeout=20))
    await ask((await waiting.result()).release())
    with fresh_server.client() as client:
        client.replicaof("127.0.0.1", 1)
        waiting = harness.start(lambda: locks.acquire("y", timeout=20))
        await harness.sleep(1.0)
        assert not waiting.is_done
        client.replicaof("no", "one")
    await ask((await waiting.result()).release())
    await ask(handle.release())


async def test_a_clock_stepped_far_forward_ends_every_lease_and_fences_grow(harness: Harness, start: Start) -> None:
    server = start(clock=True)
    handle = await hold(harness, server)
    waiting = harness.start(hold(harness, server))
    await harness.waits(harness.client(server.url), "x")
    server.step_clock(60)
    await harness.until(handle.lost.is_set, "the loss is signalled", within=TTL)
    second = await waiting.result()
    assert second.fence > handle.fence
    await ask(second.release())
    assert (await hold(harness, server)).fence > second.fence


@pytest.mark.parametrize("step", [1.2, -60], ids=["forward", "back"])
async def test_a_stepped_clock_is_reported(
    harness: Harness, start: Start, step: float, caplog: pytest.LogCaptureFixture
) -> None:
    server = start(clock=True)
    handle = await hold(harness, server, ttl=3)
    waiting = harness.start(hold(harness, server))
    await harness.waits(harness.client(server.url), "x")
    await harness.sleep(1.1)  # its clock is read for the first time
    server.step_clock(step)
    await harness.until(lambda: "clock stepped" in caplog.text, "the step is reported")
    assert f"clock stepped by {'+1.' if step > 0 else '-60.'}" in caplog.text
    assert handle.is_held
    assert not waiting.is_done
    await ask(handle.release())
    assert (await waiting.result()).fence > handle.fence


async def die_holding(harness: Harness, server: RedisServer) -> Any:
    """Take a place that is never released."""
    return await harness.store(server.url).join(Ask("x", "dead/1", TTL, TTL), 5.0)


async def test_after_a_step_back_a_dead_holders_lock_is_free_within_its_ttl(harness: Harness, start: Start) -> None:
    server = start(clock=True)
    dead = await die_holding(harness, server)
    waiting = harness.start(hold(harness, server))
    await harness.waits(harness.client(server.url), "x")
    server.step_clock(-60)
    stepped = time.monotonic()
    second = await waiting.result()
    assert waiting.ended_at - stepped < TTL + SLACK
    assert second.fence > dead.ticket


async def test_after_a_step_back_a_dead_holders_lock_is_free_for_a_newcomer_too(harness: Harness, start: Start) -> None:
    server = start(clock=True)
    dead = await die_holding(harness, server)
    server.step_clock(-60)
    assert (await hold(harness, server)).fence > dead.ticket


async def test_a_step_forward_and_back_again_keeps_what_is_held(harness: Harness, start: Start) -> None:
    server = start(clock=True)
    with server.client() as client:
        assert client.ping()
    server.step_clock(60)
    handle = await hold(harness, server)
    server.step_clock(-60)
    await harness.sleep(TTL + 0.2)
    assert handle.is_held
    await ask(handle.release())
    assert (await hold(harness, server)).fence > handle.fence
