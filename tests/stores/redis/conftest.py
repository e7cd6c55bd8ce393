from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.harness.clients import Harness, pytest_pyfunc_call  # noqa: F401
from tests.servers.binaries import VALKEY9, Flavour
from tests.servers.proxy import FaultProxy
from tests.servers.redis import RedisServer


@pytest.fixture(params=["threads", "asyncio"])
def runtime_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def harness(runtime_name: str, key_prefix: str) -> Harness:
    return Harness(runtime_name, key_prefix=key_prefix)


@pytest.fixture
def flavour() -> Flavour:
    """Valkey 9 only: tests for which servers may differ ask for `any_server`, or for `each_flavour`."""
    return VALKEY9


@pytest.fixture
def server(redis_server: RedisServer) -> RedisServer:
    """Give the server that all tests share: do it no harm."""
    return redis_server


@pytest.fixture
def start(start_server: Callable[..., RedisServer]) -> Callable[..., RedisServer]:
    return start_server


@pytest.fixture
def tls_proxy(server: RedisServer, authority: object) -> Iterator[FaultProxy]:
    with FaultProxy(server, tls=authority) as proxy:  # type: ignore[arg-type]
        yield proxy
