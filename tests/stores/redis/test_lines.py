"""Lines as the scripts keep them: joined again, broken, very long, and without memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lockstead import DamagedError, StoreError
from lockstead.core.model import Ask, Renewal, Standing
from lockstead.core.runtime import drive
from lockstead.core.store import Store
from lockstead.runtimes.threads import ThreadRuntime
from lockstead.stores import open_store
from tests.harness.conditions import eventually
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
        assert all(standing.held for standing in standings)
        assert drive(store.leave("y", "lone", TIMEOUT))
        assert drive(store.leave("x", "holder", TIMEOUT))
        assert owners(store) == ["waiter"]
