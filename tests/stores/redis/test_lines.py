"""Lines as the scripts keep them, where they once broke."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from lockstead import AsyncDistributedLock, DamagedError, DistributedLock, StoreError
from lockstead.core.model import Ask, Renewal, Standing
from lockstead.core.runtime import drive
from lockstead.core.store import Store
from lockstead.errors import LockError
from lockstead.runtimes.aio import AsyncRuntime
from lockstead.runtimes.threads import ThreadRuntime
from lockstead.stores import open_store
from tests.harness.conditions import eventually
from tests.harness.forks import in_child, succeeds
from tests.servers.binaries import redis_flavours
from tests.servers.redis import RedisServer

TIMEOUT = 5.0
READERS = 2**31 - 1


@pytest.fixture(params=redis_flavours(), ids=str)
def each_server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    with RedisServer(request.param) as server:
        yield server


@contextmanager
def store_of(server: RedisServer) -> Iterator[Store]:
    store = open_store(server.url, ThreadRuntime())
    yield store
    drive(store.close())


def join(store: Store, owner: str, name: str = "x", ttl: float = 60.0, heartbeat: float = 3.0, **more: int) -> Standing:
    standing = drive(store.join(Ask(name, owner, ttl, heartbeat, **more), TIMEOUT))  # type: ignore[arg-type]
    assert isinstance(standing, Standing)
    return standing


def owners(store: Store, name: str = "x") -> list[str]:
    lines = drive(store.inspect(name, exact=True))
    return [place.owner for line in lines for place in line.places]


def test_a_waiter_that_expired_and_joins_again_is_in_line_again(each_server: RedisServer) -> None:
    with store_of(each_server) as store:
        join(store, "a")
        join(store, "b", heartbeat=0.05)
        eventually(lambda: owners(store) == ["a"], "b's place has ended")
        join(store, "b")
        assert owners(store) == ["a", "b"]
        join(store, "c")
        assert drive(store.leave("x", "a", TIMEOUT))
        (standing,) = drive(store.renew([Renewal("x", "b", 60.0, 3.0)], TIMEOUT))
        assert standing is not None
        assert standing.held
        assert owners(store) == ["b", "c"]


def test_a_line_that_is_broken_harms_no_other_name(each_server: RedisServer) -> None:
    with store_of(each_server) as store:
        join(store, "a", "broken", heartbeat=0.01)
        join(store, "b", "broken", heartbeat=0.01)
        each_server.client().hdel("lockstead:bucket:0", "broken\0a")
        for number in range(300):
            assert join(store, f"o{number}", f"other-{number}").held
        with pytest.raises(StoreError) as caught:
            join(store, "c", "broken")
        assert isinstance(caught.value, DamagedError)
        assert not caught.value.transient, "it was seen before anything was written, and stays so"


def test_a_grant_to_thousands_of_readers_fits_in_several_commands(each_server: RedisServer) -> None:
    with store_of(each_server) as store:
        join(store, "writer", capacity=READERS, weight=READERS)
        for number in range(4100):
            join(store, f"reader-{number}", heartbeat=60.0, capacity=READERS)
        assert drive(store.leave("x", "writer", TIMEOUT))
        (line,) = drive(store.inspect("x", exact=True))
        assert len(line.places) == 4100
        assert all(place.acquired_at is not None for place in line.places)


def test_with_maxmemory_reached_locks_are_renewed_and_released_but_not_acquired(each_server: RedisServer) -> None:
    with store_of(each_server) as store:
        join(store, "holder")
        join(store, "waiter", heartbeat=60.0)
        join(store, "lone", "y")
        each_server.client().config_set("maxmemory", "100kb")
        with pytest.raises(StoreError, match="OOM") as caught:
            join(store, "newcomer", "z")
        assert not caught.value.transient
        standings = drive(store.renew([Renewal("x", "holder", 90.0, 3.0), Renewal("y", "lone", 90.0, 3.0)], TIMEOUT))
        assert all(standing is not None and standing.held for standing in standings)
        assert drive(store.leave("y", "lone", TIMEOUT))
        assert drive(store.leave("x", "holder", TIMEOUT))
        assert owners(store) == ["waiter"]


def test_a_forked_child_does_not_use_its_parents_connection(server: RedisServer, key_prefix: str) -> None:
    locks = AsyncDistributedLock(server.url, key_prefix=key_prefix)

    async def ask_in_child() -> None:
        with pytest.raises(LockError):
            await locks.is_locked("x")

    def child() -> None:
        asyncio.events._set_running_loop(None)
        asyncio.run(ask_in_child())

    async def parent() -> None:
        async with locks, AsyncDistributedLock(server.url, key_prefix=key_prefix) as other:
            assert await other.try_acquire("theirs") is not None
            assert not await locks.is_locked("x")
            succeeds(in_child(child))
            taken, busy = await asyncio.gather(locks.try_acquire("free"), locks.try_acquire("theirs"))
            assert taken is not None
            assert busy is None

    asyncio.run(parent())


class Oracle:
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
def oracle() -> Iterator[Callable[[int], Oracle]]:
    oracles: list[Oracle] = []

    def make(port: int) -> Oracle:
        oracles.append(Oracle(port))
        return oracles[-1]

    yield make
    for each in oracles:
        each.close()


def test_a_dead_primary_named_by_sentinel_is_looked_up_again(
    server: RedisServer, oracle: Callable[[int], Oracle], key_prefix: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        sentinel = oracle(free.getsockname()[1])
    with DistributedLock(sentinel.url, key_prefix=key_prefix) as locks:
        with pytest.raises(StoreError):
            locks.acquire("x")
        sentinel.port = server.port
        locks.acquire("x").release()


def test_one_callers_timeout_cancels_no_other_caller(oracle: Callable[[int], Oracle]) -> None:
    async def test() -> None:
        with RedisServer() as server:
            store = open_store(oracle(server.port).url, AsyncRuntime())
            await store.join(Ask("x", "o", 60.0, 3.0), TIMEOUT)
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
