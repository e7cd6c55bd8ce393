"""Client objects of redis-py lead to the same locks as the URL; and uvloop is as good a loop as any."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
import redis
import redis.asyncio
import redis.asyncio.cluster
import redis.asyncio.sentinel
from redis.cluster import ClusterNode, RedisCluster
from redis.sentinel import Sentinel

from lockstead import InvalidInputError
from lockstead.runtimes.threads import ThreadRuntime
from lockstead.stores import Source, open_store
from tests.harness.clients import Harness, ask
from tests.servers.cluster import ClusterDeployment
from tests.servers.proxy import FaultProxy
from tests.servers.redis import RedisServer
from tests.servers.sentinel import SentinelDeployment
from tests.servers.tls import Authority

Make = Callable[[dict[str, Any]], Any]


def pooled(kind: Any, pool: Any) -> Make:
    return lambda settings: kind(connection_pool=pool(**settings))


CLIENTS: dict[str, Make] = {
    "Redis": lambda settings: redis.Redis(**settings),
    "decode_responses": lambda settings: redis.Redis(**settings, decode_responses=True),
    "asyncio.Redis": lambda settings: redis.asyncio.Redis(**settings),
    "BlockingConnectionPool": pooled(redis.Redis, redis.BlockingConnectionPool),
    "asyncio.BlockingConnectionPool": pooled(redis.asyncio.Redis, redis.asyncio.BlockingConnectionPool),
    "from_url": lambda settings: redis.Redis.from_url(
        f"redis://:{quote(settings['password'], safe='')}@{settings['host']}:{settings['port']}/{settings['db']}"
    ),
}


async def same_locks(harness: Harness, source: Source, url: str) -> None:
    """Check that the two wait in one line, and wake each other."""
    by_client, by_url = harness.client(source), harness.client(url)
    held = await ask(by_client.acquire("x"))
    assert await ask(by_url.try_acquire("x")) is None
    waiting = harness.start(lambda: by_url.acquire("x", timeout=10))
    await harness.waits(by_client, "x")
    await ask(held.release())
    back = harness.start(lambda: by_client.acquire("x", timeout=10))
    taken = await waiting.result()
    await harness.waits(by_url, "x")
    await ask(taken.release())
    assert (await back.result()).fence > taken.fence


@pytest.mark.parametrize("kind", CLIENTS)
async def test_a_client_object_leads_to_the_same_locks(
    harness: Harness, start: Callable[..., RedisServer], kind: str
) -> None:
    server = start(password="p4ss/w0rd")
    client = CLIENTS[kind]({"host": "127.0.0.1", "port": server.port, "db": 3, "password": "p4ss/w0rd"})
    await same_locks(harness, client, server.url.removesuffix("/0") + "/3")
    with server.client() as looking:
        assert list(looking.info("keyspace")) == ["db3"]


async def test_a_client_object_with_tls_is_used_with_tls(
    harness: Harness, tls_proxy: FaultProxy, authority: Authority
) -> None:
    client = redis.Redis(port=tls_proxy.port, host="127.0.0.1", ssl=True, ssl_ca_certs=str(authority.authorities))
    await same_locks(harness, client, tls_proxy.server.url)


async def test_the_credentials_of_a_client_object_are_used(harness: Harness, start: Callable[..., RedisServer]) -> None:
    server = start(password="secret")
    provider = redis.UsernamePasswordCredentialProvider("default", "secret")
    await same_locks(harness, redis.Redis(port=server.port, credential_provider=provider), server.url)


async def test_a_cluster_client_is_accepted(harness: Harness, cluster: ClusterDeployment) -> None:
    url = "redis+cluster://" + ",".join(f"{host}:{port}" for host, port in cluster.addresses)
    with RedisCluster(startup_nodes=[ClusterNode(host, port) for host, port in cluster.addresses[:1]]) as client:
        await same_locks(harness, client, url)


@pytest.mark.parametrize("runtime_name", ["asyncio"])
async def test_an_asyncio_cluster_client_is_accepted(harness: Harness, cluster: ClusterDeployment) -> None:
    url = "redis+cluster://" + ",".join(f"{host}:{port}" for host, port in cluster.addresses)
    host, port = cluster.addresses[0]
    client = redis.asyncio.cluster.RedisCluster(host=host, port=port)
    try:
        await same_locks(harness, client, url)
    finally:
        await client.aclose()


@pytest.mark.parametrize("kind", [Sentinel, redis.asyncio.sentinel.Sentinel], ids=["blocking", "asyncio"])
async def test_a_sentinel_client_is_accepted(harness: Harness, sentinel: SentinelDeployment, kind: Any) -> None:
    hosts = ",".join(f"{host}:{port}" for host, port in sentinel.addresses)
    client = kind(sentinel.addresses).master_for(sentinel.service)
    await same_locks(harness, client, f"redis+sentinel://{hosts}/{sentinel.service}")


async def test_several_clients_are_a_redlock(harness: Harness, redlock_servers: list[RedisServer]) -> None:
    hosts = ",".join(f"127.0.0.1:{server.port}" for server in redlock_servers)
    clients = [redis.Redis(port=server.port) for server in redlock_servers]
    by_clients, by_url = harness.client(clients), harness.client(f"redlock://{hosts}")
    held = await ask(by_clients.acquire("x", timeout=5))
    assert await ask(by_url.try_acquire("x")) is None
    await ask(held.release())
    assert (await ask(by_url.acquire("x", timeout=5))).fence > held.fence


@pytest.mark.parametrize("source", [object(), 5, {"host": "localhost"}], ids=["object", "number", "settings"])
def test_an_object_that_is_not_a_client_is_refused(source: Any) -> None:
    with pytest.raises(InvalidInputError):
        open_store(source, ThreadRuntime())


@pytest.mark.parametrize("runtime_name", ["uvloop"])
async def test_the_main_paths_work_on_uvloop(harness: Harness, proxy: FaultProxy) -> None:
    await same_locks(harness, proxy.url, proxy.server.url)
    locks = harness.client(proxy.url, ttl=1.0)
    held = await ask(locks.acquire("y"))
    proxy.reset_all()
    await harness.sleep(1.3)
    assert held.is_held
    proxy.refuse()
    proxy.reset_all()
    await harness.until(held.lost.is_set, "the loss is signalled", within=2)
    proxy.heal()
    assert (await ask(locks.acquire("y", timeout=5))).fence > held.fence
