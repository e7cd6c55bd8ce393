"""How many connections and commands it takes, and that none is left behind."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from lockstead import ClosedError, LockError, StoreError
from lockstead.core.model import Ask, Standing
from lockstead.runtimes.aio import AsyncRuntime
from lockstead.stores.redis.address import Address
from lockstead.stores.redis.pipelined import PipelinedNode
from lockstead.stores.redis.resp import pack
from lockstead.stores.redis.store import RedisStore
from tests.harness.clients import Harness, ask
from tests.servers.proxy import FaultProxy
from tests.servers.redis import RedisServer
from tests.servers.stats import commands_of, connections_to

only_asyncio = pytest.mark.parametrize("runtime_name", ["asyncio", "uvloop"])


@only_asyncio
async def test_one_process_of_tasks_has_two_connections_however_much_it_waits_for(
    harness: Harness, fresh_server: RedisServer
) -> None:
    locks, other = harness.client(fresh_server.url, ttl=5), harness.client(fresh_server.url, ttl=5)
    held = [await ask(other.acquire(f"x-{number}")) for number in range(30)]
    waiting = [harness.start(lambda n=n: locks.acquire(f"x-{n % 30}", timeout=20)) for n in range(90)]
    own = [await ask(locks.acquire(f"y-{number}")) for number in range(100)]
    for number in range(30):
        await harness.waits(other, f"x-{number}", 3)
    assert len(connections_to(fresh_server)) <= 3, "two, and the other's one"
    for handle in held:
        await ask(handle.release())
    await harness.until(lambda: sum(work.is_done for work in waiting) == 30, "the first of each are served")
    while not all(work.is_done for work in waiting):
        for work in [work for work in waiting if work.is_done]:
            await ask((await work.result()).release())
        await harness.sleep(0.01)
    for handle in own:
        await ask(handle.release())
    assert len(connections_to(fresh_server)) <= 3


async def test_a_client_that_is_closed_leaves_no_connection(harness: Harness, fresh_server: RedisServer) -> None:
    locks, other = harness.client(fresh_server.url), harness.client(fresh_server.url)
    await ask(other.acquire("x"))
    await ask(locks.acquire("y"))
    waiting = [harness.start(lambda: locks.acquire("x", timeout=20)) for _ in range(3)]
    await harness.waits(other, "x", 3)
    await ask(locks.close())
    for work in waiting:
        with pytest.raises(ClosedError):
            await work.result()
    await harness.waits(other, "x", 0)
    await ask(other.close())
    await harness.until(lambda: not connections_to(fresh_server), "nothing is connected")


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


async def test_a_wait_that_timed_out_leaves_no_state_in_its_client(harness: Harness, fresh_server: RedisServer) -> None:
    locks, other = harness.client(fresh_server.url), harness.client(fresh_server.url)
    await ask(other.acquire("x"))
    for _ in range(20):
        with pytest.raises(LockError):
            await ask(locks.acquire("x", timeout=0.02))
    store: RedisStore = locks._engine.store
    places = store._subscriber._places  # type: ignore[attr-defined]
    assert (places.messages, places.owners, places.woken) == ({}, {}, {})
    assert not locks._engine.keeper.leases


@pytest.mark.parametrize("waiters", [2, 10, 50])
async def test_a_contended_acquisition_takes_few_commands(
    harness: Harness, fresh_server: RedisServer, waiters: int
) -> None:
    """Each joins, is woken and looks, and leaves; heartbeats come on top while the line is long."""
    locks = harness.client(fresh_server.url, ttl=30)
    rounds = max(100 // waiters, 6)

    async def take_turns(rounds: int = rounds) -> None:
        for _ in range(rounds):
            handle = await ask(locks.acquire("x", timeout=60))
            await ask(handle.release())

    for work in [harness.start(take_turns(2)) for _ in range(2)]:  # from now on it listens
        await work.result()
    with commands_of(fresh_server) as counted:
        works = [harness.start(take_turns()) for _ in range(waiters)]
        for work in works:
            await work.result(within=60)
    calls = counted["evalsha"] + counted["eval"]
    print(f"{calls / (waiters * rounds):.2f} calls per acquisition")
    assert calls <= 3.5 * waiters * rounds
    assert counted["publish"] <= waiters * rounds


async def test_an_uncontended_acquisition_takes_two_commands(harness: Harness, fresh_server: RedisServer) -> None:
    locks = harness.client(fresh_server.url, ttl=30)
    await ask((await ask(locks.acquire("x"))).release())
    with commands_of(fresh_server) as counted:
        for _ in range(50):
            await ask((await ask(locks.acquire("x"))).release())
    assert counted["evalsha"] == 100
    assert counted["publish"] == 0


@only_asyncio
async def test_tasks_cancelled_anywhere_leave_nothing_in_any_line(
    harness: Harness, fresh_server: RedisServer, seed: int
) -> None:
    chance = random.Random(seed)
    locks, other = harness.client(fresh_server.url, ttl=30), harness.client(fresh_server.url)

    async def use(number: int) -> None:
        async with locks.lock(f"x-{number % 5}", timeout=30):
            await asyncio.sleep(chance.uniform(0, 0.01))

    async with asyncio.timeout(60):
        tasks = []
        for number in range(500):
            tasks.append(asyncio.create_task(use(number)))
            if chance.random() < 0.2:
                await asyncio.sleep(chance.uniform(0, 0.005))
            victim = chance.choice(tasks)
            if chance.random() < 0.7:
                victim.cancel()
        await asyncio.sleep(chance.uniform(0, 0.05))
        for task in tasks:
            if chance.random() < 0.8:
                task.cancel()
                if chance.random() < 0.1:
                    await asyncio.sleep(0)
        results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(result is None or isinstance(result, asyncio.CancelledError) for result in results), results
    await harness.until(lambda: no_place_in(other), "nothing is left in any line", within=5)
    fields = bucket_of(fresh_server, harness)
    assert all(field.startswith("\0") for field in fields), "tombstones, which the sweep removes later"


async def no_place_in(locks: Any) -> bool:
    return not await ask(locks.inspect())


def bucket_of(server: RedisServer, harness: Harness) -> list[str]:
    with server.client() as client:
        return list(client.hkeys(f"{harness.options['key_prefix']}:bucket:0"))


async def test_clients_that_are_gone_leave_only_the_bucket(harness: Harness, fresh_server: RedisServer) -> None:
    locks = harness.client(fresh_server.url)

    async def use(number: int) -> None:
        for turn in range(10):
            await ask((await ask(locks.acquire(f"x-{(turn + number) % 3}", timeout=20))).release())

    works = [harness.start(use(number)) for number in range(8)]
    for work in works:
        await work.result()
    assert bucket_of(fresh_server, harness) == ["\0"]


async def test_a_tombstone_is_removed_in_time(harness: Harness, proxy: FaultProxy) -> None:
    """A join without an answer leaves a tombstone of its owner, which the sweep removes later."""
    store = harness.store(proxy.server.url)
    await store.leave("x", "late/1", 5.0, tombstone=0.2)
    assert "\0late/1" in bucket_of(proxy.server, harness)
    refused = await store.join(Ask("x", "late/1", ttl=30.0, heartbeat=3.0), 5.0)
    assert not hasattr(refused, "ticket")

    async def is_swept() -> bool:
        for number in range(100):
            await store.join(Ask(f"y-{number}", f"me/{number}", ttl=30.0, heartbeat=3.0), 5.0)
            await store.leave(f"y-{number}", f"me/{number}", 5.0)
        return bucket_of(proxy.server, harness) == ["\0"]

    await harness.until(is_swept, "the mark is swept")


async def test_abandoned_names_do_not_pile_up(harness: Harness, fresh_server: RedisServer) -> None:
    store = harness.store(fresh_server.url)
    most = 0
    for number in range(2000):
        await store.join(Ask(f"name-{number}", f"dead/{number}", ttl=0.02, heartbeat=0.02), 5.0)
        if number % 100 == 0:
            most = max(most, len(bucket_of(fresh_server, harness)))
    print(f"at most {most} fields")
    assert most < 1000


async def test_names_abandoned_together_do_not_pile_up_either(harness: Harness, fresh_server: RedisServer) -> None:
    store = harness.store(fresh_server.url)
    assert isinstance(store, RedisStore)
    for number in range(300):
        names = [f"name-{number}-{which}" for which in range(4)]
        await store.join_all([Ask(name, f"dead/{name}", 0.001, 0.001, queue=False) for name in names], 5.0)
    assert len(bucket_of(fresh_server, harness)) < 600


async def test_a_line_of_nine_thousand_dead_waiters_is_removed(
    harness: Harness, start: Callable[..., RedisServer]
) -> None:
    """More than Lua unpacks at once."""
    server = start(clock=True)
    store = harness.store(server.url)
    for number in range(9000):
        await store.join(Ask("x", f"dead/{number}", ttl=30.0, heartbeat=30.0), 5.0)
    server.step_clock(40)
    standing = await store.join(Ask("x", "next/1", ttl=30.0, heartbeat=3.0), 5.0)
    assert isinstance(standing, Standing)
    assert standing.held
    await store.leave("x", "next/1", 5.0)
    assert bucket_of(server, harness) == ["\0"]


async def test_six_thousand_readers_are_let_in_at_once(harness: Harness, fresh_server: RedisServer) -> None:
    store = harness.store(fresh_server.url)
    everything = 2**31 - 1
    await store.join(Ask("x", "writer/1", ttl=30.0, heartbeat=30.0, capacity=everything, weight=everything), 5.0)
    for number in range(6000):
        await store.join(Ask("x", f"reader/{number}", ttl=30.0, heartbeat=30.0, capacity=everything), 5.0)
    assert await store.leave("x", "writer/1", 5.0)
    (line,) = await store.inspect("x", exact=True)
    assert len(line.places) == 6000
    assert all(place.acquired_at is not None for place in line.places)


@pytest.mark.parametrize("database", [0, 3])
def test_an_impatient_request_does_not_end_a_new_connection(proxy: FaultProxy, database: int) -> None:
    """With or without a greeting on it: SELECT is one."""

    async def scenario() -> None:
        node = PipelinedNode(AsyncRuntime(), Address(*proxy.address, database=database))
        connections = set()
        proxy.delay(0.06)
        for _ in range(8):
            with suppress(StoreError):
                await node.ask(pack(("PING",)), 1, 0.1)
            if node._shared.connection is not None:
                assert node._shared.connection.is_good
                connections.add(node._shared.connection)
        assert len(connections) == 1
        node.close()

    asyncio.run(scenario())
