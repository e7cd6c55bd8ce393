"""A network that loses requests, replies and connections: what is known afterwards, and what happens next."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from lockstead import LockAcquisitionError, StoreError
from lockstead.core.retry import RetryPolicy
from lockstead.core.timing import HEARTBEAT
from lockstead.stores.redis.commands import JOIN, LEAVE, RENEW, Script
from tests.harness.clients import Harness, ask
from tests.servers.proxy import FaultProxy

ONCE = RetryPolicy(max_retries=0)
SLACK = 1.0
"""What a loaded machine may add to a delay."""


def is_script(*scripts: Script) -> Callable[[list[bytes]], bool]:
    """Recognise calls of these scripts, by digest or in full."""
    known = {part for script in scripts for part in (script.digest, script._text)}
    return lambda command: command[0].upper() in {b"EVALSHA", b"EVAL"} and command[1] in known


async def know_scripts(locks: Any) -> None:
    """Have the server know every script, so that what is lost later is not its answer that it does not."""
    handle = await ask(locks.acquire("known"))
    await ask(handle.extend(2))
    await ask(handle.release())


async def test_an_acquire_whose_reply_is_lost_holds_its_own_place(harness: Harness, proxy: FaultProxy) -> None:
    locks = harness.client(proxy.url)
    await know_scripts(locks)
    proxy.lose_reply(when=is_script(JOIN))
    handle = await ask(locks.acquire("x", timeout=5))
    assert proxy.lost == 1
    assert handle.is_held
    (line,) = await harness.store(proxy.server.url).inspect("x", exact=True)
    assert [(place.ticket, place.owner.rpartition("/")[0]) for place in line.places] == [
        (handle.fence, locks.holder_id)
    ]
    await ask(handle.release())
    assert not await ask(locks.is_locked("x"))


async def test_a_try_acquire_whose_reply_is_lost_gets_the_lock(harness: Harness, proxy: FaultProxy) -> None:
    locks = harness.client(proxy.url)
    await know_scripts(locks)
    proxy.lose_reply(when=is_script(JOIN))
    handle = await ask(locks.try_acquire("x"))
    assert proxy.lost == 1
    assert handle is not None
    assert handle.is_held


async def test_an_acquire_that_gives_up_after_a_lost_reply_leaves_no_place(harness: Harness, proxy: FaultProxy) -> None:
    locks, other = harness.client(proxy.url), harness.client(proxy.server.url)
    await know_scripts(locks)
    proxy.lose_reply(when=is_script(JOIN))
    with pytest.raises(StoreError) as raised:
        await ask(locks.acquire("x", timeout=0, retry=ONCE, ttl=30))
    assert raised.value.transient
    assert str(proxy.port) in str(raised.value)
    assert (await ask(other.acquire("x", timeout=5))).is_held


async def test_a_join_that_waits_and_whose_reply_is_lost_has_one_place_in_line(
    harness: Harness, proxy: FaultProxy
) -> None:
    locks, other = harness.client(proxy.url), harness.client(proxy.server.url)
    first = await ask(other.acquire("x"))
    await know_scripts(locks)
    proxy.lose_reply(when=is_script(JOIN))
    waiting = harness.start(lambda: locks.acquire("x", timeout=10))
    await harness.waits(other, "x", 1)
    await harness.until(lambda: proxy.lost, "the reply is lost")
    await ask(first.release())
    second = await waiting.result()
    assert second.fence > first.fence
    assert (await ask(other.info("x"))).waiting == 0


async def test_a_lost_request_is_sent_again(harness: Harness, proxy: FaultProxy) -> None:
    locks = harness.client(proxy.url, ttl=1.2)
    await know_scripts(locks)
    proxy.lose_request(when=is_script(JOIN))
    handle = await ask(locks.acquire("x", timeout=5))
    proxy.lose_request(when=is_script(RENEW))
    await ask(handle.info())
    await harness.until(lambda: proxy.lost == 2, "a renewal is lost")
    await harness.sleep(1.2)
    assert handle.is_held


async def test_a_release_whose_reply_is_lost_has_released(harness: Harness, proxy: FaultProxy) -> None:
    locks, other = harness.client(proxy.url), harness.client(proxy.server.url)
    await know_scripts(locks)
    handle = await ask(locks.acquire("x", ttl=30))
    proxy.lose_reply(when=is_script(LEAVE))
    with pytest.raises(StoreError):
        await ask(handle.release())
    assert not handle.is_held
    await ask(handle.release())
    assert (await ask(other.try_acquire("x"))) is not None
    assert not handle.lost.is_set()


async def test_a_release_whose_request_is_lost_is_repeated_in_the_background(
    harness: Harness, proxy: FaultProxy
) -> None:
    locks, other = harness.client(proxy.url), harness.client(proxy.server.url)
    await know_scripts(locks)
    handle = await ask(locks.acquire("x", ttl=30))
    proxy.lose_request(when=is_script(LEAVE))
    with pytest.raises(StoreError):
        await ask(handle.release())
    assert (await ask(other.acquire("x", timeout=5))).is_held


async def test_a_renewal_whose_reply_is_lost_takes_nothing_away(harness: Harness, proxy: FaultProxy) -> None:
    locks = harness.client(proxy.url)
    await know_scripts(locks)
    handle = await ask(locks.acquire("x", ttl=1.5))
    proxy.lose_reply(3, when=is_script(RENEW))
    await harness.until(lambda: proxy.lost == 3, "three renewals are lost")
    assert handle.is_held
    await harness.sleep(1.2)
    assert handle.is_held
    assert not handle.lost.is_set()
    await ask(handle.release())


async def test_an_extension_whose_reply_is_lost_says_so_and_keeps_the_lock(harness: Harness, proxy: FaultProxy) -> None:
    locks = harness.client(proxy.url)
    await know_scripts(locks)
    handle = await ask(locks.acquire("x"))
    proxy.lose_reply(when=is_script(RENEW))
    with pytest.raises(StoreError):
        await ask(handle.extend(5))
    assert handle.is_held
    await ask(handle.extend(5))
    assert handle.remaining > 4


async def test_a_waiter_whose_connections_are_reset_is_served_promptly(harness: Harness, proxy: FaultProxy) -> None:
    locks, other = harness.client(proxy.url, ttl=30), harness.client(proxy.server.url)
    first = await ask(other.acquire("x"))
    waiting = harness.start(lambda: locks.acquire("x", timeout=10))
    await harness.waits(other, "x")
    await harness.until(lambda: proxy.open >= 2, "it listens")
    before = proxy.accepted
    proxy.reset_all()
    await harness.until(lambda: proxy.accepted > before, "it listens again")
    await harness.sleep(0.3)
    released = time.monotonic()
    await ask(first.release())
    assert (await waiting.result()).fence > first.fence
    assert waiting.ended_at - released < 1.0, "it was not woken"


async def test_a_release_right_after_a_reset_is_not_missed(harness: Harness, proxy: FaultProxy) -> None:
    locks, other = harness.client(proxy.url, ttl=30), harness.client(proxy.server.url)
    first = await ask(other.acquire("x"))
    waiting = harness.start(lambda: locks.acquire("x", timeout=10))
    await harness.waits(other, "x")
    await harness.until(lambda: proxy.open >= 2, "it listens")
    proxy.reset_all()
    released = time.monotonic()
    await ask(first.release())
    await waiting.result()
    assert waiting.ended_at - released < SLACK


async def test_a_waiter_that_receives_nothing_any_more_is_served_within_a_heartbeat(
    harness: Harness, proxy: FaultProxy
) -> None:
    locks, other = harness.client(proxy.url, ttl=30), harness.client(proxy.server.url)
    first = await ask(other.acquire("x"))
    looks: list[list[bytes]] = []

    def look(command: list[bytes]) -> bool:
        if is_script(RENEW)(command):
            looks.append(command)
        return False

    proxy.lose_request(when=look)
    waiting = harness.start(lambda: locks.acquire("x", timeout=10))
    await harness.until(lambda: len(looks) >= 2, "it has looked once more after it began to listen")
    proxy.black_hole("replies")
    released = time.monotonic()
    await ask(first.release())
    await harness.until(lambda: proxy.dropped, "the wake-up is lost")
    proxy.swallowed.clear()  # what lost something stays dumb, everything else works
    handle = await waiting.result()
    assert waiting.ended_at - released < HEARTBEAT + SLACK
    with suppress(StoreError):  # the connection of a renewal that was sent just then is dumb, too
        await ask(handle.release())


async def test_a_client_with_many_dead_connections_does_not_need_as_many_attempts(
    harness: Harness, proxy: FaultProxy
) -> None:
    locks = harness.client(proxy.url)
    works = [harness.start(lambda name=f"x-{number}": locks.acquire(name, timeout=5)) for number in range(12)]
    handles = [await work.result() for work in works]
    releases = [harness.start(handle.release) for handle in handles]
    for release in releases:
        await release.result()
    proxy.reset_all()
    handle = await ask(locks.acquire("y", timeout=5, retry=RetryPolicy(max_retries=1)))
    assert handle.is_held


async def test_a_server_that_answers_too_late_costs_only_the_timeout(harness: Harness, proxy: FaultProxy) -> None:
    locks, other = harness.client(proxy.url, ttl=30), harness.client(proxy.server.url)
    await know_scripts(locks)
    proxy.hold("replies")
    began = time.monotonic()
    with pytest.raises((StoreError, LockAcquisitionError)):
        await ask(locks.acquire("x", timeout=0.5, retry=ONCE))
    assert time.monotonic() - began < 0.5 + SLACK
    proxy.heal()
    assert (await ask(other.acquire("x", timeout=5))).is_held
