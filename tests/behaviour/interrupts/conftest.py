from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator

import pytest

from lockstead import DistributedLock
from lockstead.runtimes.threads import ThreadRuntime
from lockstead.testing.contract.rigs import Opener
from tests.harness.stores import STORES
from tests.servers.binaries import POSTGRES18, VALKEY9

EACH_KIND = ["memory", "sqlite", f"redis-{VALKEY9.name}", "redlock"] + [
    f"{kind}-{POSTGRES18.name}" for kind in ("postgres", "postgres+advisory")
]
"""One store for each way of asking a server."""


@pytest.fixture(autouse=True)
def _liveness(monkeypatch: pytest.MonkeyPatch) -> None:
    """Log nothing: before Python 3.13 an interrupt in `logging` may leave pytest's handlers locked for all threads."""
    monkeypatch.setattr(logging.getLogger("lockstead"), "disabled", True)


@pytest.fixture(params=EACH_KIND)
def opener(request: pytest.FixtureRequest) -> Opener:
    return STORES[request.param](request.getfixturevalue)


@pytest.fixture
def connect(opener: Opener) -> Iterator[Callable[[], DistributedLock]]:
    """Make clients whose leases end after the test would: what it finds free was given up."""
    clients: list[DistributedLock] = []

    def connect() -> DistributedLock:
        clients.append(DistributedLock(opener(ThreadRuntime()), ttl=120))
        return clients[-1]

    yield connect
    for client in clients:
        client._owns_store = True
        client.close()


@pytest.fixture(params=EACH_KIND)
def url(request: pytest.FixtureRequest) -> str:
    """Name a store to other processes."""
    give = request.getfixturevalue
    kind = str(request.param)
    if kind == "memory":
        return "memory://"
    if kind == "sqlite":
        return f"sqlite:///{give('tmp_path')}/locks.db"
    if kind == "redlock":
        hosts = ",".join(f"{host}:{port}" for host, port in (server.address for server in give("redlock_servers")))
        return f"redlock://{hosts}?key_prefix={give('key_prefix')}"
    if kind.startswith("redis"):
        return f"{give('shared_servers')(VALKEY9).url}?key_prefix={give('key_prefix')}"
    server = give("shared_postgres")(POSTGRES18)
    if "advisory" in kind:
        return str(server.url).replace("postgresql://", "postgresql+advisory://")
    return f"{server.url}?schema={give('lease_schemas')(server)}"


@pytest.fixture
def stride() -> int:
    """Return how many points to go on to the next to be tried: LOCKSTEAD_EVERY_POINT=1 tries them all."""
    return 1 if os.environ.get("LOCKSTEAD_EVERY_POINT") else 19
