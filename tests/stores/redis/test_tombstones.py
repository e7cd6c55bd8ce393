"""Tombstones of owners that gave up while a request was under way: no more of them than still count."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from lockstead import AsyncDistributedLock
from lockstead.core.model import Ask, Reservation
from lockstead.core.runtime import drive
from lockstead.core.timing import LATE_REQUEST_WINDOW
from lockstead.runtimes.threads import ThreadRuntime
from lockstead.stores.redis.address import parse_url
from lockstead.stores.redis.store import RedisStore
from tests.servers.binaries import FLAVOURS, Flavour, redis_flavours
from tests.servers.redis import RedisServer

STORM = 1500
WAVES = 3
TIMEOUT = 5.0
SPARE = 64
KEY = "lockstead:bucket:0"


@pytest.fixture(params=[flavour.name for flavour in redis_flavours()])
def flavour(request: pytest.FixtureRequest) -> Flavour:
    return FLAVOURS[request.param]


@pytest.fixture
def server(start_server: Callable[..., RedisServer]) -> RedisServer:
    return start_server(clock=True)


def tombstones(server: RedisServer) -> int:
    with server.client(decode_responses=False) as client:
        return sum(field.startswith(b"\0") and len(field) > 1 for field in client.hkeys(KEY))


async def storm(server: RedisServer) -> None:
    """Cancel many acquisitions whose requests are under way."""
    async with AsyncDistributedLock(server.url) as locks:
        assert not await locks.is_locked("x")
        tasks = [asyncio.create_task(locks.acquire(f"job:{number}")) for number in range(STORM)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)


def test_many_cancelled_acquisitions_leave_only_tombstones_that_still_count(server: RedisServer) -> None:
    (deployment,), _ = parse_url(server.url)
    store = RedisStore(ThreadRuntime(), deployment)
    for _ in range(WAVES):
        asyncio.run(storm(server))
        peak = tombstones(server)
        assert peak >= STORM / 2, "there was no storm"
        assert peak <= STORM * 4 / 3 + SPARE
        server.step_clock(LATE_REQUEST_WINDOW + 1)
    for number in range(4):  # owners that give up, as always
        drive(store.leave("x", f"late/{number}", TIMEOUT, LATE_REQUEST_WINDOW))
    assert tombstones(server) <= SPARE
    drive(store.close())


@pytest.mark.parametrize("by", ["join", "reserve"])
def test_expired_tombstones_are_removed_by_the_next_few_uses_of_any_name(server: RedisServer, by: str) -> None:
    """A use that is granted sweeps one time in sixteen, so hundreds of them do for sure."""
    (deployment,), _ = parse_url(server.url)
    store = RedisStore(ThreadRuntime(), deployment)
    for number in range(STORM):
        drive(store.leave("x", f"gone/{number}", TIMEOUT, LATE_REQUEST_WINDOW))
    assert tombstones(server) == STORM
    drive(store.join(Ask("held", "me/1", 3600.0, 3.0), TIMEOUT))
    server.step_clock(LATE_REQUEST_WINDOW + 1)
    for number in range(300 if by == "join" else 2):
        name, owner = f"name-{number}", f"me/{number}"
        drive(store.join(Ask(name, owner, 3600.0, 3.0), TIMEOUT))
        if by == "reserve":
            drive(store.reserve(Reservation(name, owner, 60.0, tombstone=LATE_REQUEST_WINDOW), TIMEOUT))
        else:
            drive(store.leave(name, owner, TIMEOUT))
        if tombstones(server) <= SPARE:
            break
    assert tombstones(server) <= SPARE
    assert drive(store.leave("held", "me/1", TIMEOUT)), "live places were left alone"
    drive(store.close())


def test_a_tombstone_lasts_for_as_long_as_was_requested(server: RedisServer) -> None:
    """However much is swept meanwhile."""
    (deployment,), _ = parse_url(server.url)
    store = RedisStore(ThreadRuntime(), deployment)
    drive(store.leave("x", "gone/1", TIMEOUT, 2 * LATE_REQUEST_WINDOW))
    for number in range(200):
        drive(store.leave("x", f"other/{number}", TIMEOUT, LATE_REQUEST_WINDOW / 2))
    server.step_clock(LATE_REQUEST_WINDOW)
    for number in range(50):
        drive(store.leave("x", f"late/{number}", TIMEOUT, LATE_REQUEST_WINDOW))
    late = drive(store.join(Ask("x", "gone/1", 30.0, 3.0), TIMEOUT))
    assert not hasattr(late, "ticket"), "it was refused"
    assert tombstones(server) <= SPARE + 50
    drive(store.close())
