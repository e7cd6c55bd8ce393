"""Sentinel and Cluster: failovers, moved slots and dead nodes while locks are held and waited for."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from redis.crc import key_slot

from lockstead import DistributedLock, LockAcquisitionError, StoreError
from lockstead.core.model import Ask, RateRequest, RateResult, Refusal, Renewal
from lockstead.runtimes.aio import AsyncRuntime
from lockstead.stores import open_store
from lockstead.stores.redis.store import RedisStore
from tests.harness.clients import Harness, ask
from tests.servers.cluster import ClusterDeployment
from tests.servers.redis import RedisServer
from tests.servers.sentinel import SentinelDeployment
from tests.servers.stats import connections_to

SLACK = 1.5
NAMES = [f"name-{number}" for number in range(64)]
"""Enough for all buckets."""


def hosts(addresses: Iterable[tuple[str, int]]) -> str:
    return ",".join(f"{host}:{port}" for host, port in addresses)


def sentinel_url(deployment: SentinelDeployment) -> str:
    return f"redis+sentinel://{hosts(deployment.addresses)}/{deployment.service}"


def cluster_url(deployment: ClusterDeployment) -> str:
    return f"redis+cluster://{hosts(deployment.addresses)}"


def key_of(locks: Any, name: str) -> str:
    return str(locks._engine.store._key(name).decode())


def slot_of(locks: Any, name: str) -> int:
    return int(key_slot(key_of(locks, name).encode()))


@pytest.mark.parametrize(("runtime_name", "how"), [("threads", "kill"), ("asyncio", "kill"), ("asyncio", "pause")])
async def test_a_failover_keeps_a_lock_or_signals_its_loss_and_serves_waiters(
    harness: Harness, sentinel: SentinelDeployment, how: Any
) -> None:
    url = sentinel_url(sentinel)
    locks, other = harness.client(url), harness.client(url)
    kept, short = await ask(locks.acquire("kept", ttl=60)), await ask(locks.acquire("short", ttl=1.5))
    assert not kept.lost.is_set()
    assert not short.lost.is_set()
    patient = [harness.start(lambda name=name: other.acquire(name, timeout=40)) for name in ("kept", "short")]
    for name in ("kept", "short"):
        await harness.waits(locks, name)
    with sentinel.master().client() as client:
        assert client.wait(1, 5000) == 1
    await harness.aside(lambda: sentinel.failover(how))
    next_short = await patient[1].result(within=20)
    assert short.lost.is_set() or not short.is_held, "no client holds inside another's trust window"
    assert next_short.fence > short.fence
    assert kept.is_held
    assert not patient[0].is_done
    await harness.until(lambda: renewed(locks, "kept"), "it is renewed on the new primary")
    released = time.monotonic()
    await ask(kept.release())
    following = await patient[0].result()
    assert patient[0].ended_at - released < 3 + SLACK
    assert following.fence > kept.fence


async def renewed(locks: Any, name: str) -> bool:
    try:
        await ask(locks.acquire(f"{name}-neighbour", timeout=5))
        return await ask(locks.info(name)) is not None
    except StoreError:
        return False


async def with_retries(harness: Harness, locks: Any, name: str, timeout: float = 20) -> Any:
    """Acquire as a program would that goes on through a failover."""
    while True:
        try:
            return await ask(locks.acquire(name, timeout=timeout))
        except StoreError as error:
            if not error.transient:
                raise
            await harness.sleep(0.05)


async def test_a_lock_that_its_replica_does_not_confirm_is_not_acquired(
    harness: Harness, sentinel: SentinelDeployment
) -> None:
    url = f"{sentinel_url(sentinel)}?min_replicas=1"
    locks = harness.client(url)
    held = await ask(locks.acquire("x", ttl=30))
    (replica,) = sentinel.replicas()
    with replica.client() as client:
        assert client.hlen(f"{harness.options['key_prefix']}:bucket:0") == 2, "it was confirmed"
    replica.pause()
    began = time.monotonic()
    with pytest.raises(StoreError, match="replica") as raised:
        await ask(locks.acquire("y", timeout=1.0))
    assert time.monotonic() - began < 4
    assert "'y'" in str(raised.value)
    store = harness.store(url)
    assert isinstance(store, RedisStore)
    with pytest.raises(StoreError, match="released again: 'y1', 'y2'"):
        await store.join_all([Ask(name, f"me/{name}", 30.0, 3.0, queue=False) for name in ("y1", "y2")], 0.5)
    refusal = await store.join_all([Ask("x", "me/x", 30.0, 3.0, queue=False)], 0.5)
    assert isinstance(refusal, Refusal), "which needs no confirmation"
    with sentinel.master().client() as client:
        await harness.until(
            lambda: not [f for f in client.hkeys(f"{harness.options['key_prefix']}:bucket:0") if f.startswith("y")],
            "nothing is left behind",
        )
    assert held.is_held
    replica.resume()
    assert (await ask(locks.acquire("y", timeout=10))).is_held


async def test_names_of_all_buckets_are_held_and_renewed(harness: Harness, cluster: ClusterDeployment) -> None:
    locks, other = harness.client(cluster_url(cluster), ttl=1.5), harness.client(cluster_url(cluster))
    handles = [await ask(locks.acquire(name)) for name in NAMES]
    assert len({key_of(locks, name) for name in NAMES}) == 16
    await harness.sleep(1.7)
    assert all(handle.is_held for handle in handles)
    assert [info.name for info in await ask(other.inspect())] == sorted(NAMES)
    for name in NAMES[:10]:
        assert await ask(other.try_acquire(name)) is None
    assert await ask(locks.release_all()) == len(NAMES)
    assert await ask(other.inspect()) == []


async def test_names_of_several_buckets_are_not_acquired_in_one_step(
    harness: Harness, cluster: ClusterDeployment
) -> None:
    store = harness.store(cluster_url(cluster))
    assert isinstance(store, RedisStore)
    asks = [Ask(name, f"me/{name}", 30.0, 3.0, queue=False) for name in NAMES]
    assert await store.join_all(asks, 5.0) is None
    assert await store.inspect() == []


async def test_rates_are_kept_by_all_nodes(harness: Harness, cluster: ClusterDeployment) -> None:
    store = harness.store(cluster_url(cluster))
    assert isinstance(store, RedisStore)
    for name in NAMES:
        assert await store.consume(RateRequest(name, 10.0, 10.0), 5.0) == RateResult(True, 10.0)
    for node in cluster.masters():
        with node.client() as client:
            assert client.keys(f"{harness.options['key_prefix']}:rate:*")


async def test_a_slot_may_move_while_its_lock_is_held_and_waited_for(
    harness: Harness, cluster: ClusterDeployment
) -> None:
    locks, other = (harness.client(cluster_url(cluster), ttl=1.2) for _ in range(2))
    held = await ask(locks.acquire("x"))
    waiting = harness.start(lambda: other.acquire("x", timeout=20))
    await harness.waits(locks, "x")
    slot = slot_of(locks, "x")
    await harness.aside(lambda: cluster.move_slot(slot, cluster.other_master(slot)))
    await harness.sleep(1.4)
    assert held.is_held
    assert not waiting.is_done
    released = time.monotonic()
    await ask(held.release())
    assert (await waiting.result()).fence > held.fence
    assert waiting.ended_at - released < SLACK


@pytest.mark.parametrize("has_moved", [True, False], ids=["its key has moved", "its key is still there"])
async def test_a_lock_is_used_in_the_middle_of_its_slots_move(
    harness: Harness, cluster: ClusterDeployment, has_moved: bool
) -> None:
    locks, other = (harness.client(cluster_url(cluster), ttl=1.2) for _ in range(2))
    held = await ask(locks.acquire("x"))
    waiting = harness.start(lambda: other.acquire("x", timeout=20))
    await harness.waits(locks, "x")
    slot = slot_of(locks, "x")
    target = cluster.other_master(slot)
    with cluster.moving_slot(slot, target) as move:
        if has_moved:
            move.move_keys(key_of(locks, "x"))
        await harness.sleep(1.4)
        assert held.is_held
        assert await ask(harness.client(cluster_url(cluster)).try_acquire("x")) is None
        await ask(held.release())
        second = await waiting.result()
        assert second.fence > held.fence
    await harness.sleep(0.5)
    assert second.is_held
    assert (await ask(locks.info("x"))).fence == second.fence


async def test_a_dead_node_costs_only_its_own_locks(
    harness: Harness, cluster: ClusterDeployment, caplog: pytest.LogCaptureFixture
) -> None:
    locks = harness.client(cluster_url(cluster), ttl=1.5)
    with cluster.client() as client:  # which blocks the event loop, and so comes before there is anything to renew
        client.config_set("cluster-require-full-coverage", "no", target_nodes="all")
    doomed = cluster.owner(slot_of(locks, NAMES[0]))
    theirs = {name for name in NAMES if cluster.owner(slot_of(locks, name)) is doomed}
    assert 0 < len(theirs) < len(NAMES)
    handles = {name: await ask(locks.acquire(name)) for name in NAMES}
    for handle in handles.values():
        assert not handle.lost.is_set()
    doomed.pause()
    await harness.until(lambda: all(handles[name].lost.is_set() for name in theirs), "theirs are lost", within=4)
    await harness.sleep(1.5)
    assert {name for name, handle in handles.items() if not handle.is_held} == theirs
    assert "stepped" not in caplog.text
    mine = next(name for name in NAMES if name not in theirs)
    await ask(handles[mine].release())
    began = time.monotonic()
    assert (await ask(locks.acquire(mine, timeout=10))).is_held
    print(f"{time.monotonic() - began:.2f} s to acquire elsewhere")
    doomed.resume()
    await harness.aside(cluster.restore)
    again = await with_retries(harness, locks, NAMES[0])
    assert again.fence > handles[NAMES[0]].fence


@pytest.mark.parametrize("runtime_name", ["asyncio"])
async def test_a_replica_that_takes_over_in_a_cluster_has_what_it_received(harness: Harness) -> None:
    with ClusterDeployment(replicas=1, cluster_node_timeout="1000") as cluster:
        locks, other = (harness.client(cluster_url(cluster), ttl=60) for _ in range(2))
        held = await ask(locks.acquire("x"))
        master = cluster.owner(slot_of(locks, "x"))
        with master.client() as client:
            assert client.wait(1, 5000) == 1
        await harness.aside(lambda: cluster.failover(master))
        with pytest.raises(LockAcquisitionError):
            await with_retries(harness, other, "x", timeout=0)
        assert held.is_held
        with suppress(StoreError):  # it asks where the lock was; then it is given up in the background
            await ask(held.release())
        following = await with_retries(harness, other, "x")
        assert following.fence > held.fence
        await ask(following.release())


async def test_one_node_of_a_cluster_is_refused_as_a_server_of_its_own(
    harness: Harness, cluster: ClusterDeployment
) -> None:
    locks = harness.client(cluster.url)
    with pytest.raises(StoreError, match=r"redis\+cluster"):
        for name in NAMES:
            for node in cluster.nodes:
                await ask(harness.client(node.url).acquire(name, timeout=1))
    assert locks


async def test_a_server_without_cluster_support_is_an_error(harness: Harness, server: RedisServer) -> None:
    with pytest.raises(StoreError, match="cluster support disabled"):
        await ask(harness.client(f"redis+cluster://127.0.0.1:{server.port}").acquire("x", timeout=1))


@pytest.mark.parametrize("runtime_name", ["asyncio"])
async def test_many_callers_that_look_for_the_primary_at_once_share_one_connection(
    harness: Harness, sentinel: SentinelDeployment
) -> None:
    master = sentinel.master()
    before = {one["id"] for one in connections_to(master)}
    locks = harness.client(sentinel_url(sentinel))
    for work in [harness.start(lambda name=name: locks.acquire(name, timeout=5)) for name in NAMES[:20]]:
        assert (await work.result()).is_held
    assert len({one["id"] for one in connections_to(master)} - before) == 1


async def test_a_service_that_no_sentinel_knows_is_an_error(harness: Harness, sentinel: SentinelDeployment) -> None:
    with pytest.raises(StoreError, match="no-service"):
        await ask(harness.client(f"redis+sentinel://{hosts(sentinel.addresses)}/no-service").acquire("x", timeout=1))


async def test_a_sentinel_that_is_down_is_passed_over(harness: Harness, sentinel: SentinelDeployment) -> None:
    sentinel.sentinels[0].kill()
    assert (await ask(harness.client(sentinel_url(sentinel)).acquire("x", timeout=5))).is_held


class FakeSentinel:
    """A Sentinel that names the primary that a test chooses."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def url(self) -> str:
        return f"redis+sentinel://127.0.0.1:{self._listener.getsockname()[1]}/service"

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        with connection:
            while connection.recv(4096):
                port = str(self.port).encode()
                connection.sendall(b"*2\r\n$9\r\n127.0.0.1\r\n$%d\r\n%s\r\n" % (len(port), port))

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def fake_sentinel() -> Iterator[Callable[[int], FakeSentinel]]:
    sentinels: list[FakeSentinel] = []

    def make(port: int) -> FakeSentinel:
        sentinels.append(FakeSentinel(port))
        return sentinels[-1]

    yield make
    for each in sentinels:
        each.close()


def test_a_dead_primary_named_by_sentinel_is_looked_up_again(
    server: RedisServer, fake_sentinel: Callable[[int], FakeSentinel], key_prefix: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        sentinel = fake_sentinel(free.getsockname()[1])
    with DistributedLock(sentinel.url, key_prefix=key_prefix) as locks:
        with pytest.raises(StoreError):
            locks.acquire("x")
        sentinel.port = server.port
        locks.acquire("x").release()


def test_one_callers_timeout_cancels_no_other_caller(fake_sentinel: Callable[[int], FakeSentinel]) -> None:
    async def test() -> None:
        with RedisServer() as server:
            store = open_store(fake_sentinel(server.port).url, AsyncRuntime())
            await store.join(Ask("x", "o", 60.0, 3.0), 5.0)
            server.client().client_kill_filter(_type="normal", skipme=True)
            server.pause()
            renewals = [Renewal("x", "o", 60.0, 3.0)]
            patient = asyncio.create_task(store.renew(renewals, 2.0))
            await asyncio.sleep(0)
            hasty = asyncio.create_task(store.renew(renewals, 0.2))
            outcomes = await asyncio.gather(patient, hasty, return_exceptions=True)
            assert all(isinstance(outcome, StoreError) for outcome in outcomes), outcomes
            server.resume()
            await store.close()

    asyncio.run(test())
