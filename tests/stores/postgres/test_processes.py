"""Processes that are killed, stopped, end or fork while they hold and wait: see harness/programs/scenarios.py."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.harness.clients import Harness, ask
from tests.harness.processes import Program
from tests.servers.postgres import PostgresServer
from tests.stores.postgres.sessions import named, places

SCENARIOS = "harness/programs/scenarios.py"
SLACK = 1.0

Spawn = Callable[..., Program]


@pytest.fixture
def spawn(start_program: Spawn, server: PostgresServer, schema: str) -> Spawn:
    """Start processes that do not outlive the test."""

    def spawn(scenario: str) -> Program:
        return start_program(SCENARIOS, scenario, named(server.url, schema), f"schema={schema}")

    return spawn


async def holds(harness: Harness, locks: Any, name: str = "x") -> Any:
    return await harness.until(lambda: locks.info(name), f"a client holds {name!r}")


@pytest.mark.parametrize("runtime_name", ["threads"])
async def test_a_killed_holder_is_followed_within_its_ttl(
    harness: Harness, server: PostgresServer, spawn: Spawn
) -> None:
    locks = harness.client(server.url)
    doomed = spawn("holds")
    first = await holds(harness, locks)
    waiting = harness.start(lambda: locks.acquire("x", timeout=10))
    await harness.waits(locks, "x")
    doomed.kill()
    killed = time.monotonic()
    assert (await waiting.result()).fence > first.fence
    assert waiting.ended_at - killed < 1.5 + SLACK


@pytest.mark.parametrize("runtime_name", ["threads"])
async def test_a_killed_waiter_delays_the_next_by_a_heartbeat(
    harness: Harness, server: PostgresServer, spawn: Spawn
) -> None:
    locks = harness.client(server.url)
    held = await ask(locks.acquire("x"))
    doomed = spawn("waits")
    await harness.waits(locks, "x", 1)
    waiting = harness.start(lambda: locks.acquire("x", timeout=10))
    await harness.waits(locks, "x", 2)
    doomed.kill()
    killed = time.monotonic()
    await ask(held.release())
    assert (await waiting.result()).fence > held.fence
    assert waiting.ended_at - killed < 1.5 + SLACK


@pytest.mark.parametrize("runtime_name", ["threads"])
@pytest.mark.parametrize("scenario", ["holds_a_block", "holds_a_block_in_asyncio"])
async def test_a_holder_that_was_stopped_for_longer_than_its_ttl_detects_its_loss(
    harness: Harness, server: PostgresServer, spawn: Spawn, scenario: str
) -> None:
    locks = harness.client(server.url)
    stopped = spawn(scenario)
    first = await holds(harness, locks)
    waiting = harness.start(lambda: locks.acquire("x", timeout=10))
    await harness.waits(locks, "x")
    stopped.signal(signal.SIGSTOP)
    second = await waiting.result()
    assert second.fence > first.fence
    stopped.signal(signal.SIGCONT)
    said, errors = stopped.communicate("go on\n", within=10)
    assert errors.count("Traceback") == 0, errors
    assert said.split()[-1] == "lost"
    assert "True" not in said
    assert second.is_held
    assert len(places(harness, server)) == 1


@pytest.mark.parametrize("runtime_name", ["threads"])
async def test_a_holder_whose_loop_was_blocked_for_longer_than_its_ttl_detects_its_loss(
    harness: Harness, server: PostgresServer, spawn: Spawn
) -> None:
    locks = harness.client(server.url)
    blocked = spawn("blocks_its_loop")
    first = await holds(harness, locks)
    second = await ask(locks.acquire("x", timeout=10))
    assert second.fence > first.fence
    said, _ = blocked.communicate(within=10)
    assert said.split() == ["lost"]
    assert second.is_held


@pytest.mark.parametrize("runtime_name", ["threads"])
async def test_ten_processes_with_ten_waiters_each_are_all_served_once_and_in_order(
    harness: Harness, server: PostgresServer, spawn: Spawn, schema: str
) -> None:
    locks = harness.client(server.url, ttl=30)
    held = await ask(locks.acquire("x"))
    crowd = [spawn("waits_ten_times") for _ in range(10)]
    await harness.until(lambda: len(places(harness, server)) == 101, "all wait", within=30)
    in_line = [fence for (fence,) in server.sql(f"SELECT fence FROM {schema}.distributed_locks ORDER BY fence")]
    await ask(held.release())
    served: list[int] = []
    for process in crowd:
        said, errors = process.communicate(within=30)
        assert errors == ""
        fences = [int(line) for line in said.split()]
        assert fences == sorted(fences)
        served += fences
    assert sorted(served) == in_line[1:]
    assert not places(harness, server)
    await harness.until(lambda: not server.connections(schema), "nothing is connected")


@pytest.mark.parametrize("runtime_name", ["threads"])
@pytest.mark.parametrize(
    ("scenario", "status"),
    [
        ("ends_holding", 0),
        ("ends_holding_in_asyncio", 0),
        ("ends_waiting_in_a_daemon_thread", 0),
        ("ends_with_sys_exit_in_asyncio", 3),
        ("forks_while_holding", 0),
        ("forks_while_waiting", 0),
        ("forks_without_sharing_a_socket", 0),
        ("forks_in_asyncio", 0),
        ("forks_after_its_sessions_have_ended", 0),
        ("forks_again_and_again_under_load", 0),
    ],
)
async def test_a_process_that_ends_or_forks_leaves_nothing_behind(
    harness: Harness, server: PostgresServer, spawn: Spawn, scenario: str, status: int
) -> None:
    process = spawn(scenario)
    _, errors = process.communicate(within=20)
    assert errors == ""
    assert process.status == status
    assert not places(harness, server)
