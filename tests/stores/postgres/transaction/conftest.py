from __future__ import annotations

import inspect
import secrets
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.servers.binaries import POSTGRES18, PostgresFlavour
from tests.servers.postgres import PostgresServer
from tests.stores.postgres.transaction.users import KINDS, Peer, User


@pytest.fixture
def shared_url(shared_postgres: Callable[[PostgresFlavour], PostgresServer]) -> str:
    """Give the URL of a PostgreSQL 18 that all tests share: keep to names that begin with the `prefix`."""
    return shared_postgres(POSTGRES18).url


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def user(request: pytest.FixtureRequest, shared_url: str) -> User:
    """Give a user with a connection, once for each kind there is; the test finds it in a transaction."""
    return request.param(shared_url)  # type: ignore[no-any-return]


@pytest.fixture
def peer(shared_url: str) -> Iterator[Peer]:
    with Peer(shared_url) as peer:
        yield peer


@pytest.fixture
def prefix() -> str:
    """Begin the names of this test only."""
    return secrets.token_hex(4) + ":"


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine as its user would: under asyncio, or without any event loop."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = inspect.signature(pyfuncitem.obj).parameters
    user: Any = pyfuncitem.funcargs["user"]
    user.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in wanted}))
    return True
