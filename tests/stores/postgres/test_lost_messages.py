"""A network that loses requests, replies and connections: what is known afterwards, and what happens next."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from lockstead import LockAcquisitionError, StoreError
from lockstead.core.model import Ask, Refusal, Standing
from lockstead.core.retry import RetryPolicy
from lockstead.core.timing import HEARTBEAT
from tests.harness.clients import Harness, ask
from tests.servers.postgres import PostgresServer
from tests.servers.proxy import FaultProxy
from tests.stores.postgres.sessions import listening, named, places

ONCE = RetryPolicy(max_retries=0)
SLACK = 1.0
"""What a loaded machine may add to a delay."""


def calls(function: str) -> Callable[[list[bytes]], bool]:
    """Recognise a call of one of the store's functions."""
    return lambda command: any(function.encode() in statement for statement in command)


async def know_statements(locks: Any) -> None:
    """Have a session know every statement, so that what is lost later is not its preparation."""
    handle = await ask(locks.acquire("known"))
    await ask(handle.extend(2))
    await ask(handle.release())


async def test_an_acquire_whose_reply_is_lost_holds_its_own_place(harness: Harness, proxy: FaultProxy) -> None:
    locks = harness.client(proxy.url)
    await know_statements(locks)
    proxy.lose_reply(when=calls("line_join"))
    handle = await ask(locks.acquire("x", timeout=5))
    assert proxy.lost == 1
    assert handle.is_held
    (line,) = await harness.store(proxy.server.url).inspect("x", exact=True)
    assert [(place.ticket, place.owner.rpartition("/")[0]) for place in line.places] == [
        (handle.fence, locks.holder_id)
    ]
    await ask(handle.release())
    assert not places(harness, proxy.server)


async def test_a_try_acquire_whose_reply_is_lost_gets_the_lock(harness: Harness, proxy: FaultProxy) -> None:
    locks = harness.client(proxy.url)
    await know_statements(locks)
    proxy.lose_reply(when=calls("line_join"))
    handle = await ask(locks.try_acquire("x"))
    assert proxy.lost == 1
    assert handle is not None
    assert handle.is_held


async def test_an_acquire_that_gives_up_after_a_lost_reply_leaves_no_place(harness: Harness, proxy: FaultProxy) -> None:
    locks, other = harness.client(proxy.url), harness.client(proxy.server.url)
    await know_statements(locks)
    proxy.lose_reply(when=calls("line_join"))
    with pytest.raises(StoreError) as raised:
        await ask(locks.acquire("x", timeout=0, retry=ONCE, ttl=30))
    assert raised.value.transient
    assert str(proxy.port) in str(raised.value)
    handle = await ask(other.acquire("x", timeout=5))
    assert [holder.rpartition("/")[0] for _, holder in places(harness, proxy.server)] == [other.holder_id]
    await ask(handle.release())


async def test_a_join_that_waits_and_whose_reply_is_lost_has_one_place_in_line(
    harness: Harness, proxy: FaultProxy
) -> None:
    locks, other = harness.client(proxy.url), harness.client(proxy.server.url)
    first = await ask(other.acquire("x"))
    await know_statements(locks)
    proxy.lose_reply(when=calls("line_join"))
    waiting = harness.start(lambda: locks.acquire("x", timeout=10))
    await harness.waits(other, "x", 1)
    await harness.until(lambda: proxy.lost, "the reply is lost")
    await ask(first.release())
    second = await waiting.result()
    assert second.fence > first.fence
    assert len(places(harness, proxy.server)) == 1


async def test_a_lost_request_is_sent_again(harness: Harness, proxy: FaultProxy) -> None:
    locks = harness.client(proxy.url, ttl=0.9)
    await know_statements(locks)
    proxy.lose_request(when=calls("line_join"))
    handle = await ask(locks.acquire("x", timeout=5))
    proxy.lose_request(when=calls("line_renew"))
    await harness.until(lambda: proxy.lost == 2, "a renewal is lost")
    await harness.sleep(0.9)
    assert handle.is_held


async def test_a_release_whose_reply_is_lost_has_released(harness: Harness, proxy: FaultProxy) -> None:
    locks, other = harness.client(proxy.url), harness.client(proxy.server.url)
    await know_statements(locks)
    handle = await ask(locks.acquire("x", ttl=30))
    proxy.lose_reply(when=calls("line_leave"))
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
    await know_statements(locks)
    handle = await ask(locks.acquire("x", ttl=30))
    proxy.lose_request(when=calls("line_leave"))
    with pytest.raises(StoreError):
        await ask(handle.release())
    assert (await ask(other.acquire("x", timeout=5))).is_held


async def test_a_renewal_whose_reply_is_lost_takes_nothing_away(harness: Harness, proxy: FaultProxy) -> None:
    locks = harness.client(proxy.url)
    await know_statements(locks)
    handle = await ask(locks.acquire("x", ttl=1.5))
    proxy.lose_reply(3, when=calls("line_renew"))
    await harness.until(lambda: proxy.lost == 3, "three renewals are lost")
    assert handle.is_held
    await harness.sleep(0.8)
    assert handle.is_held
    assert not handle.lost.is_set()
    await ask(handle.release())


async def test_an_extension_whose_reply_is_lost_says_so_and_keeps_the_lock(harness: Harness, proxy: FaultProxy) -> None:
    locks = harness.client(proxy.url)
    await know_statements(locks)
    handle = await ask(locks.acquire("x"))
    proxy.lose_reply(when=calls("line_renew"))
    with pytest.raises(StoreError):
        await ask(handle.extend(5))
    assert handle.is_held
    await ask(handle.extend(5))
    assert handle.remaining > 4


async def test_a_waiter_whose_connections_are_reset_is_served_promptly(harness: Harness, proxy: FaultProxy) -> None:
    locks, other = harness.client(named(proxy.url, harness.options["schema"]), ttl=30), harness.client(proxy.server.url)
    first = await ask(other.acquire("x"))
    waiting = harness.start(lambda: locks.acquire("x", timeout=10))
    await harness.waits(other, "x")
    await harness.until(lambda: listening(proxy.server, harness.options["schema"]), "it listens")
    before = listening(proxy.server, harness.options["schema"])
    proxy.reset_all()
    await harness.until(
        lambda: set(listening(proxy.server, harness.options["schema"])) - set(before), "it listens again"
    )
    released = time.monotonic()
    await ask(first.release())
    assert (await waiting.result()).fence > first.fence
    assert waiting.ended_at - released < 1.0, "it was not woken"


async def test_a_release_right_after_a_reset_is_not_missed(harness: Harness, proxy: FaultProxy) -> None:
    locks, other = harness.client(named(proxy.url, harness.options["schema"]), ttl=30), harness.client(proxy.server.url)
    first = await ask(other.acquire("x"))
    waiting = harness.start(lambda: locks.acquire("x", timeout=10))
    await harness.waits(other, "x")
    await harness.until(lambda: listening(proxy.server, harness.options["schema"]), "it listens")
    proxy.reset_all()
    released = time.monotonic()
    await ask(first.release())
    await waiting.result()
    assert waiting.ended_at - released < SLACK


async def test_a_waiter_that_receives_nothing_any_more_is_served_within_a_heartbeat(
    harness: Harness, proxy: FaultProxy
) -> None:
    me = harness.options["schema"]
    other = harness.client(proxy.server.url)
    locks = harness.client(proxy.server.url, ttl=30, listen=named(proxy.url, me))
    first = await ask(other.acquire("x"))
    waiting = harness.start(lambda: locks.acquire("x", timeout=10))
    await harness.waits(other, "x")
    await harness.until(lambda: listening(proxy.server, me), "it listens")
    proxy.black_hole("replies")
    released = time.monotonic()
    await ask(first.release())
    await waiting.result()
    assert waiting.ended_at - released < HEARTBEAT + SLACK


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
    await know_statements(locks)
    proxy.hold("replies")
    began = time.monotonic()
    with pytest.raises((StoreError, LockAcquisitionError)):
        await ask(locks.acquire("x", timeout=0.5, retry=ONCE))
    assert time.monotonic() - began < 0.5 + SLACK
    proxy.heal()
    assert (await ask(other.acquire("x", timeout=5))).is_held


async def test_a_join_that_arrives_after_its_leave_takes_no_place(harness: Harness, proxy: FaultProxy) -> None:
    """It was on its way when its caller gave up, and is delivered when the network heals."""
    me = harness.options["schema"]
    slow, quick = harness.store(named(proxy.url, me)), harness.store(proxy.server.url)
    request = Ask("x", "me/1", ttl=30.0, heartbeat=3.0)
    await slow.join(request, 5.0)
    await slow.leave("x", "me/1", 5.0)
    proxy.hold("requests")
    with pytest.raises(StoreError, match="in time"):
        await slow.join(request, 0.2)
    await quick.leave("x", "me/1", 5.0, tombstone=30.0)
    proxy.heal()
    await harness.until(lambda: not proxy.server.connections(me), "all that was sent is carried out")
    assert not places(harness, proxy.server)


async def test_the_owner_of_a_tombstone_gets_no_place_and_the_tombstone_expires_in_time(
    harness: Harness, server: PostgresServer
) -> None:
    store = harness.store(server.url)
    request = Ask("x", "late/1", ttl=30.0, heartbeat=3.0)
    await store.leave("x", "late/1", 5.0, tombstone=0.3)
    assert isinstance(await store.join(request, 5.0), Refusal)
    schema = harness.options["schema"]

    def is_swept() -> bool:
        server.sql(f"SELECT {schema}.sweep_locks()")
        return server.sql(f"SELECT holder FROM {schema}.lock_tombstones") == []

    await harness.until(is_swept, "the mark is swept")
    assert isinstance(await store.join(request, 5.0), Standing)


@pytest.mark.parametrize("is_known", [False, True], ids=["a new name", "a known name"])
async def test_a_leave_waits_for_a_join_that_is_just_being_carried_out(
    harness: Harness, server: PostgresServer, *, is_known: bool
) -> None:
    """As while a commit waits for a disk or a standby: the place is not to be seen yet, and will be."""
    store = harness.store(server.url)
    if is_known:
        await store.join(Ask("x", "other/1", ttl=30.0, heartbeat=3.0), 5.0)
        await store.leave("x", "other/1", 5.0)
    with psycopg.connect(server.url) as slow:
        join = f"SELECT {harness.options['schema']}.line_join('x', 'late/1', 30, 3, 1, 1, true, '{{}}', '', '')"
        slow.execute(join.encode())
        leaving = harness.start(lambda: store.leave("x", "late/1", 5.0, tombstone=5.0))
        in_line = "SELECT pid FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))"
        pid = slow.info.backend_pid
        await harness.until(lambda: leaving.is_done or server.sql(in_line, [pid]), "the leave waits, or is done")
        slow.commit()
    await leaving.result()
    assert not places(harness, server), "the join is a late request now"
