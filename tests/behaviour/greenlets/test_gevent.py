"""gevent on every store: greenlets in place of threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from lockstead import DistributedLock
from tests.behaviour.greenlets.running import LONGEST, run
from tests.harness.sqlite import transaction_of_another_program, url_of
from tests.servers.binaries import POSTGRES18, VALKEY9
from tests.servers.proxy import FaultProxy
from tests.servers.tls import Authority

Fixture = Callable[[str], Any]
BUSY = 0.7
"""How long the other process keeps the file: longer than the hub may be away."""


def memory(fixture: Fixture) -> str:
    return "memory://"


def sqlite(fixture: Fixture) -> str:
    return f"sqlite:///{fixture('tmp_path')}/locks.db"


def redis(fixture: Fixture) -> str:
    return _with_prefix(fixture("shared_servers")(VALKEY9).url, fixture)


def redis_tls(fixture: Fixture) -> str:
    proxy = fixture("networks")(fixture("shared_servers")(VALKEY9), tls=fixture("authority"))
    return _with_prefix(proxy.url, fixture)


def sentinel(fixture: Fixture) -> str:
    deployment = fixture("sentinel")
    return _with_prefix(f"redis+sentinel://{_hosts(deployment.addresses)}/{deployment.service}", fixture)


def redlock(fixture: Fixture) -> str:
    servers = fixture("redlock_servers")
    return _with_prefix(f"redlock://{_hosts(server.address for server in servers)}", fixture)


def postgres(fixture: Fixture) -> str:
    server = fixture("shared_postgres")(POSTGRES18)
    return f"{server.url}?schema={fixture('lease_schemas')(server)}"


def advisory(fixture: Fixture) -> str:
    return _advisory(fixture("shared_postgres")(POSTGRES18).url)


def _advisory(url: str) -> str:
    return url.replace("postgresql://", "postgresql+advisory://")


def _with_prefix(url: str, fixture: Fixture) -> str:
    return f"{url}{'&' if '?' in url else '?'}key_prefix={fixture('key_prefix')}"


def _hosts(addresses: Any) -> str:
    return ",".join(f"{host}:{port}" for host, port in addresses)


@pytest.fixture
def networks() -> Iterator[Callable[..., FaultProxy]]:
    """Put networks that can be broken in front of servers."""
    with ExitStack() as stack:

        def start(server: Any, tls: Authority | None = None) -> FaultProxy:
            return stack.enter_context(FaultProxy(server, tls=tls))

        yield start


STORES = {
    "memory": memory,
    "sqlite": sqlite,
    "redis": redis,
    "redis-tls": redis_tls,
    "redis+sentinel": sentinel,
    "redlock": redlock,
    "postgres": postgres,
    "postgres+advisory": advisory,
}
BOTH_WAYS = ("postgres+advisory",)
IMPORTED_FIRST = ("sqlite", "redis-tls", "redlock", *BOTH_WAYS)
CASES = [
    *((store, "patched-first") for store in STORES if store in BOTH_WAYS or store not in IMPORTED_FIRST),
    *((store, "imported-first") for store in IMPORTED_FIRST),
]


@pytest.mark.parametrize(("store", "order"), CASES)
def test_greenlets_use_every_store_as_threads_do(store: str, order: str, request: pytest.FixtureRequest) -> None:
    url = STORES[store](request.getfixturevalue)
    run(order, "contention", url)
    if store != "memory":
        with DistributedLock(url) as locks:
            locks.acquire("left-at-exit", timeout=5)


@pytest.mark.parametrize("store", ["redis", "redis-tls", "postgres", "postgres+advisory"])
def test_greenlets_keep_their_timeouts_while_the_server_is_silent(
    store: str, request: pytest.FixtureRequest, networks: Callable[..., FaultProxy], authority: Authority
) -> None:
    fixture: Fixture = request.getfixturevalue
    is_redis = store.startswith("redis")
    server = fixture("shared_servers")(VALKEY9) if is_redis else fixture("shared_postgres")(POSTGRES18)
    network = networks(server, tls=authority if store == "redis-tls" else None)
    if is_redis:
        url = _with_prefix(network.url, fixture)
    elif store == "postgres":
        url = f"{network.url}?schema={fixture('lease_schemas')(server)}"
    else:
        url = _advisory(network.url)
    run("patched-first", "silence", url, when_ready=network.black_hole)


@pytest.mark.parametrize("store", ["redis", "postgres+advisory"])
def test_a_client_works_in_a_forked_child_where_greenlets_go_on(store: str, request: pytest.FixtureRequest) -> None:
    run("patched-first", "fork", STORES[store](request.getfixturevalue))


@pytest.mark.parametrize("store", ["memory", "redis", "postgres+advisory"])
def test_a_client_made_before_patching_says_what_to_do(store: str, request: pytest.FixtureRequest) -> None:
    run("unpatched", "patched_late", STORES[store](request.getfixturevalue))


def test_greenlets_run_while_another_process_locks_the_file(tmp_path: Path) -> None:
    path = tmp_path / "locks.db"
    busy = threading.Event()

    def keep_busy() -> None:
        with transaction_of_another_program(path):
            busy.set()
            time.sleep(BUSY)

    def lock_the_file() -> None:
        other_thread.start()
        assert busy.wait(LONGEST)

    other_thread = threading.Thread(target=keep_busy)
    run("patched-first", "busy", url_of(path), when_ready=lock_the_file)
    other_thread.join()


def test_a_process_that_does_not_receive_holds_up_no_greenlet() -> None:
    run("patched-first", "full_socket")
