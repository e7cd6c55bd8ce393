"""Processes that are killed, stopped, end or fork while they hold and wait: see harness/programs/scenarios.py."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from lockstead import AsyncDistributedLock
from tests.harness.clients import Harness, ask
from tests.harness.forks import in_child, succeeds
from tests.harness.processes import Program
from tests.servers.redis import RedisServer

SCENARIOS = "harness/programs/scenarios.py"
SLACK = 1.0

Spawn = Callable[..., Program]


@pytest.fixture
def spawn(start_program: Spawn, server: RedisServer, key_prefix: str) -> Spawn:
    """Start processes that do not outlive the test."""

    def spawn(scenario: str, url: str = server.url) -> Program:
        return start_program(SCENARIOS, scenario, url, f"key_prefix={key_prefix}")

    return spawn


@pytest.fixture
def url(request: pytest.FixtureRequest, server: RedisServer, redlock_servers: list[RedisServer]) -> str:
    """Lead to the shared server, or to a Redlock."""
    nodes = ",".join(f"{host}:{port}" for host, port in (node.address for node in redlock_servers))
    return f"redlock://{nodes}" if request.param == "redlock" else server.url


async def holds(harness: Harness, locks: Any, name: str = "x") -> Any:
    return await harness.until(lambda: locks.info(name), f"a client holds {name!r}")


async def test_a_killed_holder_is_followed_within_its_ttl(harness: Harness, server: RedisServer, spawn: Spawn) -> None:
    locks = harness.client(server.url)
    doomed = spawn("holds")
    first = await holds(harness, locks)
    waiting = harness.start(lambda: locks.acquire("x", timeout=10))
    await harness.waits(locks, "x")
    doomed.kill()
    killed = time.monotonic()
    assert (await waiting.result()).fence > first.fence
    assert waiting.ended_at - killed < 1.5 + SLACK


async def test_a_killed_waiter_delays_the_next_by_a_heartbeat(
    harness: Harness, server: RedisServer, spawn: Spawn
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
@pytest.mark.parametrize(
    ("url", "scenario"), [("redis", "holds_a_block_in_asyncio"), ("redlock", "holds_a_block")], indirect=["url"]
)
async def test_a_holder_that_was_stopped_for_longer_than_its_ttl_detects_its_loss(
    harness: Harness, url: str, spawn: Spawn, scenario: str
) -> None:
    locks = harness.client(url)
    stopped = spawn(scenario, url)
    assert stopped.read_line() == "holds\n"
    first = await holds(harness, locks)
    stopped.signal(signal.SIGSTOP)
    second = await ask(locks.acquire("x", timeout=10))
    assert second.fence > first.fence
    stopped.signal(signal.SIGCONT)
    said, errors = stopped.communicate("go on\n", within=10)
    assert errors.count("Traceback") == 0, errors
    assert said.split()[-1] == "lost"
    assert "True" not in said
    assert second.is_held
    assert (await ask(locks.info("x"))).fence == second.fence


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
        ("forks_again_and_again_under_load", 0),
    ],
)
async def test_a_process_that_ends_or_forks_leaves_nothing_behind(
    harness: Harness, server: RedisServer, spawn: Spawn, scenario: str, status: int
) -> None:
    process = spawn(scenario)
    _, errors = process.communicate(within=20)
    assert errors == ""
    assert process.status == status
    assert harness.client(server.url).inspect() == []


def test_a_forked_child_does_not_use_its_parents_connection(server: RedisServer, key_prefix: str) -> None:
    locks = AsyncDistributedLock(server.url, key_prefix=key_prefix)

    async def ask_in_child() -> None:
        assert await locks.is_locked("theirs")  # on a connection of its own, in its own loop
        await locks.close()

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
