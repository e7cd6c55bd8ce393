from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from lockstead.stores.postgres.table.schema import script
from tests.harness.clients import Harness, pytest_pyfunc_call  # noqa: F401
from tests.servers.binaries import POSTGRES18, PostgresFlavour
from tests.servers.pooler import Pooler
from tests.servers.postgres import PostgresServer, random_name
from tests.servers.proxy import FaultProxy


@pytest.fixture(params=["threads", "asyncio"])
def runtime_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def postgres_flavour(request: pytest.FixtureRequest) -> PostgresFlavour:
    """PostgreSQL 18 only: tests for which servers may differ are marked with `on_each_flavour`."""
    return getattr(request, "param", POSTGRES18)


@pytest.fixture
def schema() -> str:
    """Draw the name of the schema that this test's lease table is in, on whatever server."""
    return random_name()


@pytest.fixture
def harness(runtime_name: str, schema: str) -> Harness:
    return Harness(runtime_name, schema=schema)


@pytest.fixture
def server(postgres_server: PostgresServer, schema: str) -> Iterator[PostgresServer]:
    """Give the server that all tests share, with a lease table of this test's own: do it no harm."""
    postgres_server.sql(script(schema))
    yield postgres_server
    postgres_server.sql(f"DROP SCHEMA {schema} CASCADE")


@pytest.fixture
def start(start_postgres: Callable[..., PostgresServer], schema: str) -> Callable[..., PostgresServer]:
    """Start servers with settings, and with a lease table, to be broken."""

    def start(**settings: str) -> PostgresServer:
        server = start_postgres(**settings)
        server.sql(script(schema))
        return server

    return start


@pytest.fixture
def fresh(start: Callable[..., PostgresServer]) -> PostgresServer:
    """Give a server of the test's own, to be broken; it syncs what it commits."""
    return start()


@pytest.fixture
def proxy(server: PostgresServer) -> Iterator[FaultProxy]:
    """Put a network that can be broken in front of the shared server, which takes no harm."""
    with FaultProxy(server) as proxy:
        yield proxy


@pytest.fixture
def pooler(server: PostgresServer, start_pooler: Callable[..., Pooler]) -> Pooler:
    """Put a pooler in transaction mode in front of the shared server."""
    return start_pooler()
