"""Servers that restart while two hundred tasks of eight clients wait: no waiter gets an error, and each gets its turn.

`make mutants` tries restarts of 5 and 20 seconds, too (LOCKSTEAD_TORTURE=1).
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from lockstead import AsyncDistributedLock
from lockstead.core.timing import HEARTBEAT
from lockstead.stores.postgres.table.schema import script
from tests.servers.binaries import POSTGRES18, VALKEY9, Flavour, PostgresFlavour
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer

OUTAGES = (1.0, 5.0, 20.0) if os.environ.get("LOCKSTEAD_TORTURE") else (1.0,)
NAMES = [f"name-{number}" for number in range(10)]
CLIENTS, TASKS = 8, 25
PATIENCE = 120.0


class Contest:
    """Every task waits for one name, once; the fences of a name grow in the order of its holders."""

    def __init__(self) -> None:
        self.fences: dict[str, list[int]] = {name: [] for name in NAMES}
        self.holders: dict[str, int] = dict.fromkeys(NAMES, 0)

    async def take_turn(self, locks: AsyncDistributedLock, name: str) -> None:
        async with locks.lock(name, timeout=PATIENCE) as handle:
            self.holders[name] += 1
            assert self.holders[name] == 1, f"two hold {name}"
            self.fences[name].append(handle.fence)
            await asyncio.sleep(0.01)
            handle.check()
            self.holders[name] -= 1


@pytest.fixture
def flavour() -> Flavour:
    return VALKEY9


@pytest.fixture
def postgres_flavour() -> PostgresFlavour:
    return POSTGRES18


@pytest.fixture(params=["redis", "postgres"])
def server(
    request: pytest.FixtureRequest, start_server: Callable[..., Any], start_postgres: Callable[..., Any]
) -> RedisServer | PostgresServer:
    if request.param == "redis":
        return start_server(append_only=True)  # type: ignore[no-any-return]
    postgres = start_postgres()
    postgres.sql(script("lockstead"))
    return postgres  # type: ignore[no-any-return]


@pytest.mark.timeout(PATIENCE + 60)
@pytest.mark.parametrize("outage", OUTAGES, ids="{:g}s".format)
def test_hundreds_of_waiters_outlast_a_restart(server: RedisServer | PostgresServer, outage: float) -> None:
    asyncio.run(_restart(server, outage))


async def _restart(server: RedisServer | PostgresServer, outage: float) -> None:
    contest = Contest()
    async with AsyncExitStack() as stack:
        holder, *clients = [
            await stack.enter_async_context(AsyncDistributedLock(server.url, ttl=60)) for _ in range(CLIENTS + 1)
        ]
        held = [await holder.acquire(name) for name in NAMES]
        waits = [
            asyncio.create_task(contest.take_turn(clients[number % CLIENTS], NAMES[number % len(NAMES)]))
            for number in range(CLIENTS * TASKS)
        ]
        await _until_all_wait(holder, len(waits))
        lines = await holder._engine.store.inspect()
        tickets = sorted(place.ticket for line in lines for place in line.places[1:])
        killed = time.monotonic()
        await asyncio.to_thread(server.kill)
        await asyncio.sleep(outage)
        await asyncio.to_thread(server.restart)
        restarted = time.monotonic()
        await _until_all_wait(holder, len(waits))
        for handle in held:
            await handle.release()
        await asyncio.gather(*waits)
        print(f"{outage:g} s: all {len(waits)} waiters were served {time.monotonic() - restarted:.1f} s after it")
    assert all(fences == sorted(fences) for fences in contest.fences.values())
    if restarted - killed < HEARTBEAT / 2:  # else the places may have expired: every waiter has joined again
        assert sorted(fence for fences in contest.fences.values() for fence in fences) == tickets, "each kept its place"


async def _until_all_wait(locks: AsyncDistributedLock, number: int) -> None:
    deadline = time.monotonic() + 30
    while True:
        lines = await locks._engine.store.inspect()
        if sum(len(line.places) - 1 for line in lines) == number:
            return
        assert time.monotonic() < deadline, "not all of them wait"
        await asyncio.sleep(0.05)
