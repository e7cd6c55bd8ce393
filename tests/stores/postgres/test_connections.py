"""How many connections and statements it takes, and that none is left behind."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import time

import psycopg
import pytest

from lockstead import AsyncDistributedLock, ClosedError, LockError, StoreError
from lockstead.core.model import GONE, UNKNOWN, Ask, Renewal
from tests.harness.clients import Harness, ask
from tests.harness.conditions import eventually
from tests.servers.postgres import PostgresServer
from tests.servers.proxy import FaultProxy
from tests.stores.postgres.sessions import asking, listening, named, places

only_asyncio = pytest.mark.parametrize("runtime_name", ["asyncio", "uvloop"])
only_threads = pytest.mark.parametrize("runtime_name", ["threads"])
A_HANDFUL = 10


def statements(harness: Harness, server: PostgresServer) -> dict[str, int]:
    """Count the calls of the store's functions so far."""
    server.sql("SELECT pg_stat_force_next_flush()")
    query = "SELECT funcname, calls FROM pg_stat_user_functions WHERE schemaname = %s"
    return dict(server.sql(query, [harness.options["schema"]]))


async def test_a_hundred_waiters_of_one_process_are_served_in_order_by_a_handful_of_connections(
    harness: Harness, server: PostgresServer
) -> None:
    me = harness.options["schema"]
    locks, other = harness.client(named(server.url, me), ttl=30), harness.client(server.url, ttl=30)
    first = await ask(other.acquire("x"))
    served: list[int] = []
    most = 0

    async def use() -> None:
        handle = await ask(locks.acquire("x", timeout=60))
        served.append(handle.fence)
        await ask(handle.release())

    works = [harness.start(use()) for _ in range(100)]
    await harness.waits(other, "x", 100)
    in_line = server.sql(f"SELECT fence FROM {me}.distributed_locks ORDER BY fence")
    await harness.until(lambda: listening(server, me), "a session listens")
    before = len(asking(server, me)), len(listening(server, me))
    await ask(first.release())
    while not all(work.is_done for work in works):
        most = max(most, len(asking(server, me)) + len(listening(server, me)))
        await harness.sleep(0.01)
    for work in works:
        await work.result()
    print(f"{before} connections of waiters, at most {most} while they are served")
    assert [(fence,) for fence in served] == in_line[1:]
    assert not places(harness, server)
    assert sum(before) <= A_HANDFUL
    assert most <= A_HANDFUL
    if harness.runtime_name != "threads":
        assert most <= 4, "one for requests, one for heartbeats, one that listens, one for many requests of one name"


@pytest.mark.parametrize("waiters", [2, 20])
async def test_a_contended_acquisition_takes_few_statements(
    harness: Harness, server: PostgresServer, waiters: int
) -> None:
    """Each joins, is woken, and leaves; heartbeats come on top while the line is long."""
    me = harness.options["schema"]
    counting = f"{named(server.url, me)}&options=-ctrack_functions%3Dpl"
    locks = harness.client(counting, ttl=30)
    rounds = 100 // waiters

    async def take_turns(rounds: int = rounds) -> None:
        for _ in range(rounds):
            handle = await ask(locks.acquire("x", timeout=60))
            await ask(handle.release())

    for work in [harness.start(take_turns()) for _ in range(waiters)]:
        await work.result(within=60)
    await ask(locks.close())
    await harness.until(lambda: not asking(server, me), "its sessions are gone, and have reported what they did")
    calls = statements(harness, server)
    print(calls)
    assert calls["line_join"] == calls["line_leave"] == waiters * rounds
    assert calls.get("line_renew", 0) <= 1.5 * waiters * rounds


async def test_a_client_that_is_closed_leaves_no_connection(harness: Harness, server: PostgresServer) -> None:
    me = harness.options["schema"]
    locks, other = harness.client(named(server.url, me)), harness.client(server.url)
    await ask(other.acquire("x"))
    await ask(locks.acquire("y"))
    waiting = [harness.start(lambda: locks.acquire("x", timeout=20)) for _ in range(3)]
    await harness.waits(other, "x", 3)
    await harness.until(lambda: listening(server, me), "it listens")
    await ask(locks.close())
    for work in waiting:
        with pytest.raises(ClosedError):
            await work.result()
    await harness.waits(other, "x", 0)
    await harness.until(lambda: not server.connections(me), "nothing is connected")
    assert [name for name, _ in places(harness, server)] == ["x"]


@only_asyncio
async def test_a_client_closed_while_it_connects_cancels_no_other(harness: Harness, proxy: FaultProxy) -> None:
    proxy.hold()
    locks = harness.client(proxy.url, ttl=1)
    acquiring = harness.start(lambda: locks.acquire("x"))
    await harness.until(lambda: proxy.open, "it connects")
    closing = harness.start(locks._engine.store.close)
    await closing.result()
    proxy.heal()
    assert (await acquiring.result()).is_held


async def test_a_burst_of_threads_does_not_keep_its_connections(harness: Harness, server: PostgresServer) -> None:
    me = harness.options["schema"]
    locks = harness.client(named(server.url, me), ttl=30)
    works = [harness.start(lambda n=n: locks.acquire(f"x-{n}", timeout=20)) for n in range(60)]
    handles = [await work.result() for work in works]
    assert server.connections(me) <= A_HANDFUL
    for work in [harness.start(handle.release) for handle in handles]:
        await work.result()
    assert server.connections(me) <= A_HANDFUL
    assert not places(harness, server)


@pytest.mark.parametrize("runtime_name", ["asyncio"])
def test_a_loop_that_ends_without_a_close_leaves_no_connection(harness: Harness, server: PostgresServer) -> None:
    me = harness.options["schema"]

    async def main() -> None:
        locks = AsyncDistributedLock(named(server.url, me), schema=me)
        await (await locks.acquire("x")).release()
        assert server.connections(me) == 1

    asyncio.run(main())  # which imports what it needs, once
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    asyncio.run(main())
    gc.collect()
    eventually(lambda: server.connections(me) == 0, "nothing is connected")
    assert len(os.listdir("/proc/self/fd")) <= before


@only_threads
async def test_requests_that_are_stuck_do_not_hold_up_others_for_long(harness: Harness, server: PostgresServer) -> None:
    me = harness.options["schema"]
    locks = harness.client(named(server.url, me), ttl=30)
    with psycopg.connect(server.url) as other_session:
        other_session.execute(f"SELECT {me}.acquire_lock('x', 'other', 0.1)".encode())
        stuck = [harness.start(lambda: locks.acquire("x", timeout=20)) for _ in range(12)]
        await harness.until(lambda: len(asking(server, me)) >= 12, "all are stuck, one more after another")
        began = time.monotonic()
        for number in range(5):
            await ask(locks.acquire(f"y-{number}"))
        assert time.monotonic() - began < 1.5, "each waited"
        other_session.rollback()
    for _ in stuck:
        (done,) = await harness.until(lambda: [work for work in stuck if work.is_done][:1], "the next is served")
        stuck.remove(done)
        await ask((await done.result()).release())
    assert server.connections(me) <= A_HANDFUL


@only_asyncio
async def test_answers_that_come_late_do_not_leave_a_second_connection(harness: Harness, proxy: FaultProxy) -> None:
    store = harness.store(proxy.url)
    request = Ask("x", "me/1", ttl=30.0, heartbeat=3.0)
    await store.join(request, 5.0)
    proxy.hold("replies")
    patient = harness.start(lambda: store.join(request, 10.0))
    with pytest.raises(LockError):
        await store.join(request, 0.2)
    second = harness.start(lambda: store.join(request, 10.0))  # on a new connection, for that one is silent
    await harness.until(lambda: proxy.open == 2, "it connects anew")
    proxy.heal()
    await patient.result()
    await second.result()
    await harness.until(lambda: proxy.open == 1, "the first connection is closed")


async def test_an_error_in_one_statement_spoils_no_other(harness: Harness, server: PostgresServer) -> None:
    store = harness.store(server.url)
    await store.join(Ask("x", "me/1", ttl=30.0, heartbeat=3.0), 5.0)
    for number in range(3):
        with pytest.raises(StoreError):
            await store.join(Ask("y", f"bad/{number}", ttl=30.0, heartbeat=3.0, metadata='{"a":"\\u0000"}'), 5.0)
        assert await store.join(Ask("x", "me/1", ttl=30.0, heartbeat=3.0), 5.0)
        assert await store.renew([Renewal("x", "me/1", 30.0, 3.0, True)], 5.0) != [GONE]
    assert await store.leave("x", "me/1", 5.0)
    assert not places(harness, server)


async def test_a_wait_that_timed_out_leaves_no_state_in_its_client(harness: Harness, server: PostgresServer) -> None:
    locks, other = harness.client(server.url), harness.client(server.url)
    await ask(other.acquire("x"))
    for _ in range(20):
        with pytest.raises(LockError):
            await ask(locks.acquire("x", timeout=0.02))
    subscriber = locks._engine.store._subscriber
    waiting = subscriber._places
    assert (waiting.messages, waiting.owners, waiting.woken) == ({}, {}, {})
    assert not locks._engine.keeper.leases
    assert len(places(harness, server)) == 1


@only_asyncio
async def test_tasks_cancelled_anywhere_leave_nothing_in_any_line(
    harness: Harness, server: PostgresServer, seed: int
) -> None:
    chance = random.Random(seed)
    locks = harness.client(server.url, ttl=30)

    async def use(number: int) -> None:
        async with locks.lock(f"x-{number % 5}", timeout=30):
            await asyncio.sleep(chance.uniform(0, 0.01))

    async with asyncio.timeout(60):
        tasks = []
        for number in range(200):
            tasks.append(asyncio.create_task(use(number)))
            if chance.random() < 0.3:
                await asyncio.sleep(chance.uniform(0, 0.005))
            if chance.random() < 0.7:
                chance.choice(tasks).cancel()
        await asyncio.sleep(chance.uniform(0, 0.05))
        for task in tasks:
            if chance.random() < 0.8:
                task.cancel()
                if chance.random() < 0.1:
                    await asyncio.sleep(0)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(result is None or isinstance(result, asyncio.CancelledError) for result in results), results
        await harness.until(lambda: not places(harness, server), "nothing is left in any line", within=5)
        async with locks.lock("x-0", timeout=5):
            pass


async def test_a_thousand_held_locks_are_kept_by_a_few_connections(harness: Harness, server: PostgresServer) -> None:
    me = harness.options["schema"]
    locks = harness.client(named(server.url, me), ttl=2.4)
    began = time.monotonic()
    if harness.runtime_name == "threads":
        handles = [locks.acquire(f"x-{number}") for number in range(1000)]
    else:
        handles = list(await asyncio.gather(*(locks.acquire(f"x-{number}") for number in range(1000))))
    print(f"acquired in {time.monotonic() - began:.2f} s")
    await harness.sleep(2.5)
    assert all(handle.is_held for handle in handles)
    assert server.connections(me) <= 3, "one to ask, one to renew, and one to sweep now and then"
    ((kept,),) = server.sql(f"SELECT count(*) FROM {me}.distributed_locks WHERE expires_at > clock_timestamp()")
    assert kept == 1000
    await ask(locks.release_all())
    assert not places(harness, server)


async def test_a_name_stuck_in_a_transaction_does_not_hold_up_the_others(
    harness: Harness, server: PostgresServer
) -> None:
    schema = harness.options["schema"]
    locks = harness.client(server.url, ttl=1.0)
    handles = {name: await ask(locks.acquire(name)) for name in ("x", "y", "z")}
    owner = server.sql(f"SELECT holder FROM {schema}.distributed_locks WHERE name = 'x'")[0][0]
    with psycopg.connect(server.url) as other_session:
        other_session.execute(f"SELECT {schema}.acquire_lock('x', 'other', 30, queue => true)".encode())
        other_session.execute(f"SELECT {schema}.acquire_lock('w', 'other', 30)".encode())
        waiting = harness.start(lambda: locks.acquire("w", timeout=10))
        await harness.sleep(1.1)
        assert not waiting.is_done
        assert all(handle.is_held for handle in handles.values()), "a name that is only waited for is not stuck"
        other_session.execute(f"SELECT {schema}.extend_lock('x', %s, 1)".encode(), [owner])
        await harness.until(handles["x"].lost.is_set, "the stuck one is lost", within=3)
        assert handles["y"].is_held
        assert handles["z"].is_held
        other_session.rollback()
    assert (await waiting.result()).is_held
    assert handles["y"].is_held
    assert handles["z"].is_held


async def test_a_renewal_of_a_stuck_place_is_unknown_and_of_others_known(
    harness: Harness, server: PostgresServer
) -> None:
    schema = harness.options["schema"]
    store = harness.store(server.url)
    for name in ("x", "y"):
        await store.join(Ask(name, f"me/{name}", ttl=30.0, heartbeat=3.0), 5.0)
    renewals = [Renewal(name, f"me/{name}", 30.0, 3.0, True) for name in ("x", "y", "gone")]
    with psycopg.connect(server.url) as other_session:
        other_session.execute(f"SELECT {schema}.extend_lock('x', 'me/x', 1)".encode())
        began = time.monotonic()
        stuck, fine, gone = await store.renew(renewals, 5.0)
        assert time.monotonic() - began < 1.0
    assert stuck is UNKNOWN
    assert fine is not None
    assert fine.held
    assert gone == GONE


LARGE = [Renewal(f"{number:0>512}", "me/1", 30.0, 3.0, True) for number in range(20000)]
"""More than a network takes at once from a sender whose peer does not read."""


async def test_a_request_too_large_for_a_stalled_connection_ends_in_time(harness: Harness, proxy: FaultProxy) -> None:
    store = harness.store(proxy.url)
    assert await store.renew(LARGE[:1], 5.0) == [GONE]
    proxy.hold("requests")
    sending = harness.start(lambda: store.renew(LARGE, 0.5))
    try:
        with pytest.raises(StoreError, match="in time"):
            await sending.result(within=3)
    finally:
        proxy.heal()


async def test_a_connection_that_ends_in_the_middle_of_a_large_request_ends_it(
    harness: Harness, proxy: FaultProxy, caplog: pytest.LogCaptureFixture
) -> None:
    store = harness.store(proxy.url)
    assert await store.renew(LARGE[:1], 5.0) == [GONE]
    proxy.hold("requests")
    sending = harness.start(lambda: store.renew(LARGE, 10.0))
    await harness.sleep(0.2)
    assert not sending.is_done
    proxy.reset_all()
    with pytest.raises(StoreError) as raised:
        await sending.result(within=3)
    assert raised.value.transient
    proxy.heal()
    assert await store.renew(LARGE[:1], 5.0) == [GONE]
    assert not caplog.text


async def test_clients_that_are_gone_leave_the_table_empty_and_the_sweep_removes_the_names(
    harness: Harness, server: PostgresServer
) -> None:
    schema = harness.options["schema"]
    locks = harness.client(server.url)

    async def use(number: int) -> None:
        for turn in range(10):
            await ask((await ask(locks.acquire(f"x-{(turn + number) % 3}", timeout=20))).release())

    for work in [harness.start(use(number)) for number in range(8)]:
        await work.result()
    assert not places(harness, server)
    server.sql(f"SELECT {schema}.sweep_locks()")
    assert server.sql(f"SELECT name FROM {schema}.lock_names") == []
    assert server.sql(f"SELECT holder FROM {schema}.lock_tombstones") == []
