"""The servers as fixtures: shared ones for behaviour, fresh ones for what breaks a server."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from lockstead.stores.postgres.table.schema import script
from tests.servers.binaries import (
    FLAVOURS,
    POSTGRES_FLAVOURS,
    Flavour,
    PostgresFlavour,
    postgres_flavours,
    redis_flavours,
)
from tests.servers.cluster import ClusterDeployment
from tests.servers.pgbouncer import PgBouncer, pgbouncer_program
from tests.servers.pooler import OwnPooler, Pooler
from tests.servers.postgres import PostgresServer, random_name
from tests.servers.proxy import FaultProxy
from tests.servers.redis import RedisServer
from tests.servers.sentinel import SentinelDeployment
from tests.servers.tls import Authority


@pytest.fixture(params=[flavour.name for flavour in redis_flavours()])
def flavour(request: pytest.FixtureRequest) -> Flavour:
    """Give each server of the family in turn; one that should be there and is not fails the test."""
    return FLAVOURS[request.param]


@pytest.fixture(scope="session")
def shared_servers() -> Iterator[Callable[[Flavour], RedisServer]]:
    servers: dict[Flavour, RedisServer] = {}

    def shared(flavour: Flavour) -> RedisServer:
        if flavour not in servers:
            servers[flavour] = stack.enter_context(RedisServer(flavour))
        return servers[flavour]

    with ExitStack() as stack:
        yield shared


@pytest.fixture
def redis_server(flavour: Flavour, shared_servers: Callable[[Flavour], RedisServer]) -> RedisServer:
    """Give a server of each flavour that all tests share: keep to the `key_prefix`, and do it no harm."""
    return shared_servers(flavour)


@pytest.fixture
def key_prefix() -> str:
    """Draw what the names of this test's keys begin with."""
    return f"test-{secrets.token_hex(6)}:"


@pytest.fixture
def start_server(flavour: Flavour) -> Iterator[Callable[..., RedisServer]]:
    """Start servers with options, of each flavour, that do not outlive the test."""

    def start(**options: object) -> RedisServer:
        return stack.enter_context(RedisServer(flavour, **options))  # type: ignore[arg-type]

    with ExitStack() as stack:
        yield start


@pytest.fixture
def fresh_server(start_server: Callable[..., RedisServer]) -> RedisServer:
    """Give a server of the test's own, to be broken."""
    return start_server()


@pytest.fixture
def proxy(redis_server: RedisServer) -> Iterator[FaultProxy]:
    """Put a network that can be broken in front of the shared server, which takes no harm."""
    with FaultProxy(redis_server) as proxy:
        yield proxy


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(Path(tmp_path_factory.mktemp("tls")))


@pytest.fixture(scope="session")
def shared_sentinel() -> Iterator[SentinelDeployment]:
    with SentinelDeployment() as deployment:
        yield deployment


@pytest.fixture
def sentinel(shared_sentinel: SentinelDeployment) -> SentinelDeployment:
    """Give the master, replica and sentinels that all tests share, whole again whatever the last test did."""
    shared_sentinel.restore()
    return shared_sentinel


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator[ClusterDeployment]:
    with ClusterDeployment() as deployment:
        yield deployment


@pytest.fixture
def cluster(shared_cluster: ClusterDeployment) -> ClusterDeployment:
    """Give the cluster of three masters that all tests share, whole again whatever the last test did."""
    shared_cluster.restore()
    return shared_cluster


@pytest.fixture(scope="session")
def redlock_servers() -> Iterator[list[RedisServer]]:
    """Give three servers that know nothing of each other, to be shared by all tests and done no harm."""
    with ExitStack() as stack:
        yield [stack.enter_context(RedisServer()) for _ in range(3)]


TABLES = ("distributed_locks", "lock_names", "lock_tombstones", "lock_fences", "rate_limits")


@pytest.fixture(params=[flavour.name for flavour in postgres_flavours()])
def postgres_flavour(request: pytest.FixtureRequest) -> PostgresFlavour:
    """Give each PostgreSQL in turn; one that should be there and is not fails the test."""
    return POSTGRES_FLAVOURS[request.param]


@pytest.fixture(scope="session")
def shared_postgres() -> Iterator[Callable[[PostgresFlavour], PostgresServer]]:
    servers: dict[PostgresFlavour, PostgresServer] = {}

    def shared(flavour: PostgresFlavour) -> PostgresServer:
        if flavour not in servers:
            servers[flavour] = stack.enter_context(PostgresServer(flavour, fsync="off"))
        return servers[flavour]

    with ExitStack() as stack:
        yield shared


@pytest.fixture
def postgres_server(
    postgres_flavour: PostgresFlavour, shared_postgres: Callable[[PostgresFlavour], PostgresServer]
) -> PostgresServer:
    """Give a server of each flavour that all tests share: keep to the `postgres_schema`, and do it no harm."""
    return shared_postgres(postgres_flavour)


@pytest.fixture
def postgres_schema(postgres_server: PostgresServer) -> Iterator[str]:
    """Draw the name of a schema in the shared server's database; it is dropped if the test creates it."""
    name = random_name()
    yield name
    postgres_server.sql(f"DROP SCHEMA IF EXISTS {name} CASCADE")


@pytest.fixture(scope="session")
def _migrated() -> dict[PostgresServer, str]:
    return {}


@pytest.fixture
def lease_schemas(_migrated: dict[PostgresServer, str]) -> Callable[[PostgresServer], str]:
    """Give a schema with an empty lease table. One serves test after test: to make it takes longer than to use it."""

    def give(server: PostgresServer) -> str:
        if server not in _migrated:
            _migrated[server] = random_name()
            server.sql(script(_migrated[server]))
        schema = _migrated[server]
        server.sql("; ".join(f"DELETE FROM {schema}.{table}" for table in TABLES))
        return schema

    return give


@pytest.fixture
def lease_schema(postgres_server: PostgresServer, lease_schemas: Callable[[PostgresServer], str]) -> str:
    """Give a schema with the lease table on the shared server."""
    return lease_schemas(postgres_server)


@pytest.fixture
def lease_url(postgres_server: PostgresServer, lease_schema: str) -> str:
    """Give the URL of a lease table of the test's own, on the shared server."""
    return f"{postgres_server.url}?schema={lease_schema}"


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """Create a database on the shared server; 200 times slower than a schema."""
    with postgres_server.database() as url:
        yield url


@pytest.fixture
def start_postgres(postgres_flavour: PostgresFlavour) -> Iterator[Callable[..., PostgresServer]]:
    """Start servers with settings, of each flavour, that do not outlive the test."""

    def start(**settings: str) -> PostgresServer:
        return stack.enter_context(PostgresServer(postgres_flavour, **settings))

    with ExitStack() as stack:
        yield start


@pytest.fixture
def fresh_postgres(start_postgres: Callable[..., PostgresServer]) -> PostgresServer:
    """Give a server of the test's own, to be broken; it syncs what it commits."""
    return start_postgres()


@pytest.fixture
def postgres_proxy(postgres_server: PostgresServer) -> Iterator[FaultProxy]:
    """Put a network that can be broken in front of the shared server, which takes no harm."""
    with FaultProxy(postgres_server) as proxy:
        yield proxy


@pytest.fixture(params=["own", *(["pgbouncer"] if pgbouncer_program() else [])])
def start_pooler(request: pytest.FixtureRequest, postgres_server: PostgresServer) -> Iterator[Callable[..., Pooler]]:
    """Start poolers of each kind in front of the shared server, by default in transaction mode with 2 connections."""
    kind: Any = {"own": OwnPooler, "pgbouncer": PgBouncer}[request.param]

    def start(**options: Any) -> Pooler:
        pooler: Pooler = stack.enter_context(kind(postgres_server, **options))
        return pooler

    with ExitStack() as stack:
        yield start


@pytest.fixture
def pooler(start_pooler: Callable[..., Pooler]) -> Pooler:
    """Give a pooler in transaction mode that sends one client after the other to the same connection."""
    return start_pooler()
