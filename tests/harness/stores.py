"""Our stores. To put a new store under contract, add it to `STORES`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from lockstead.stores import open_store
from lockstead.stores.memory import MemoryServer, MemoryStore
from lockstead.stores.quorum.store import Quorum
from lockstead.stores.sqlite.store import SqliteStore
from lockstead.testing.contract.rigs import Opener
from lockstead.testing.simulation.members import MemberServer, MemberStore
from tests.harness.conditions import eventually
from tests.servers.binaries import POSTGRES18, VALKEY9, Flavour, PostgresFlavour, postgres_flavours, redis_flavours

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
VARIANTS = {*STORES} - {*ONE_VERSION} | {"sqlite-polling", "postgres-polling", "redis+sentinel", "redis+cluster"}
"""Other ways to what is in the contract already: for these, one runtime is enough."""
EACH_CLOCK = [
    "memory",
    "sqlite",
    "redlock",
    *(name for name in ONE_VERSION if name.endswith(("valkey9", "postgres18"))),
]
"""One store for each clock that leases end by: for what takes a whole ttl."""
FAMILIES = {
    "memory": "threads",
    "sqlite": "threads",
    next(name for name in STORES if name.startswith("redis-")): "asyncio",
    next(name for name in STORES if name.startswith("postgres-")): "asyncio",
}
"""One store of each family, and one runtime: for what takes many clients. The contract compares the others."""
