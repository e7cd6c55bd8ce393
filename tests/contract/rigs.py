"""Every store under every driver. To put a new store under contract, add it to `STORES`."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from leasehold import AsyncDistributedLock, DistributedLock
from leasehold._model import Capabilities
from leasehold._runtime import Runtime, drive
from leasehold._store import Store
from leasehold.runtimes.aio import AsyncRuntime
from leasehold.runtimes.threads import ThreadRuntime
from leasehold.stores import open_store
from leasehold.stores.memory import MemberServer, MemberStore, MemoryServer, MemoryStore
from leasehold.stores.quorum import Quorum
from leasehold.stores.sqlite import SqliteStore
from tests.processes.helpers import eventually
from tests.servers.binaries import POSTGRES18, VALKEY9, Flavour, PostgresFlavour, postgres_flavours, redis_flavours

Opener = Callable[[Runtime], Store]
Fixture = Callable[[str], Any]
"""Gives a test's fixture by its name."""


def memory(fixture: Fixture) -> Opener:
    server = MemoryServer()
    return lambda runtime: MemoryStore(runtime, server)


def sqlite(fixture: Fixture) -> Opener:
    path = fixture("tmp_path") / "locks.db"
    return lambda runtime: SqliteStore(runtime, path)


def sqlite_polling(fixture: Fixture) -> Opener:
    path = fixture("tmp_path") / "locks.db"
    return lambda runtime: SqliteStore(runtime, path, push=False)


def redis(flavour: Flavour) -> Callable[[Fixture], Opener]:
    return lambda fixture: _at(fixture("shared_servers")(flavour).url, fixture)


def sentinel(fixture: Fixture) -> Opener:
    deployment = fixture("sentinel")
    return _at(f"redis+sentinel://{_hosts(deployment.addresses)}/{deployment.service}", fixture)


def cluster(fixture: Fixture) -> Opener:
    return _at(f"redis+cluster://{_hosts(fixture('cluster').addresses)}", fixture)


def redlock(fixture: Fixture) -> Opener:
    return _at(f"redlock://{_hosts(server.address for server in fixture('redlock_servers'))}", fixture)


def postgres(flavour: PostgresFlavour, **options: Any) -> Callable[[Fixture], Opener]:
    def at(fixture: Fixture) -> Opener:
        server = fixture("shared_postgres")(flavour)
        schema = fixture("lease_schemas")(server)
        return lambda runtime: open_store(server.url, runtime, schema=schema, **options)

    return at


def postgres_advisory(flavour: PostgresFlavour) -> Callable[[Fixture], Opener]:
    def at(fixture: Fixture) -> Opener:
        server = fixture("shared_postgres")(flavour)
        url = server.url.replace("postgresql://", "postgresql+advisory://")
        held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
        eventually(lambda: server.sql(held) == [(0,)], "the sessions of the test before have ended")
        return lambda runtime: open_store(url, runtime)

    return at


def quorum(fixture: Fixture) -> Opener:
    servers = [MemberServer() for _ in range(5)]
    names = [f"member-{number}" for number in range(5)]
    return lambda runtime: Quorum(runtime, [MemberStore(runtime, server) for server in servers], names)


def _at(url: str, fixture: Fixture) -> Opener:
    prefix = fixture("key_prefix")
    return lambda runtime: open_store(url, runtime, key_prefix=prefix)


def _hosts(addresses: Iterable[tuple[str, int]]) -> str:
    return ",".join(f"{host}:{port}" for host, port in addresses)


STORES: dict[str, Callable[[Fixture], Opener]] = {
    "memory": memory,
    "sqlite": sqlite,
    "sqlite-polling": sqlite_polling,
    **{f"redis-{flavour.name}": redis(flavour) for flavour in redis_flavours()},
    "redis+sentinel": sentinel,
    "redis+cluster": cluster,
    "redlock": redlock,
    **{f"postgres-{flavour.name}": postgres(flavour) for flavour in postgres_flavours()},
    "postgres-polling": postgres(POSTGRES18, push=False),
    **{f"postgres+advisory-{flavour.name}": postgres_advisory(flavour) for flavour in postgres_flavours()},
    "quorum": quorum,
}
ONE_VERSION = [name for name in STORES if name.partition("-")[2] in {"", "polling", VALKEY9.name, POSTGRES18.name}]
"""One version of each server: for what is ours alone. The stores' own contract runs on all."""
EACH_CLOCK = [
    "memory",
    "sqlite",
    "redlock",
    *(name for name in ONE_VERSION if name.endswith(("valkey9", "postgres18"))),
]
"""One store for each clock that leases end by: for what takes a lease's whole life."""
DRIVERS = ("threads", "asyncio")


class Rig:
    """One server, and clients of one driver.

    Tests are coroutines over `ask`, which awaits what the asyncio façade returns and passes on what the
    blocking one has done already: so one test serves both.
    """

    def __init__(self, driver: str, open_store: Opener) -> None:
        self.driver = driver
        self._open_store = open_store
        self._opened: list[Any] = []
        self._runtime: Runtime = ThreadRuntime()

    def run(self, test: Coroutine[Any, Any, None]) -> None:
        if self.driver == "threads":
            drive(self._tidily(test))
        else:
            self._runtime = AsyncRuntime()
            asyncio.run(self._tidily(test))

    def store(self) -> Store:
        """Open one more connection to the server."""
        store = self._open_store(self._runtime)
        self._opened.append(store)
        return store

    @property
    def can(self) -> Capabilities:
        return self._open_store(ThreadRuntime()).capabilities

    @property
    def has_line(self) -> bool:
        """Whether waiters stand in line, seen by all, rather than ask again and again."""
        return self.can.fifo

    def client(self, **options: Any) -> Any:
        """Make one more client, as another process would be."""
        kind = DistributedLock if self.driver == "threads" else AsyncDistributedLock
        client = kind(self.store(), **options)
        self._opened.append(client)
        return client

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._runtime.spawn(work, "test")

    async def until(self, condition: Callable[[], Any], seconds: float = 10.0) -> float:
        """Wait for a condition, and tell how long it took."""
        began = time.monotonic()
        while not await ask(condition()):
            assert time.monotonic() - began < seconds, "waited in vain"
            await self._runtime.sleep(0.002)
        return time.monotonic() - began

    async def _tidily(self, test: Coroutine[Any, Any, None]) -> None:
        try:
            await test
        finally:
            for opened in reversed(self._opened):
                await ask(opened.close())


async def ask(answer: Any) -> Any:
    return await answer if inspect.isawaitable(answer) else answer
