"""Poolers between the clients and the server: of the lease table, and of advisory locks."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator

import pytest

from lockstead import LockAcquisitionError, StoreError
from lockstead.stores import open_store
from lockstead.testing.contract.rigs import RUNTIME_NAMES, Rig
from tests.harness.clients import Harness, ask
from tests.harness.conditions import eventually
from tests.servers.pooler import OwnPooler, Pooler
from tests.servers.postgres import PostgresServer
from tests.servers.proxy import FaultProxy
from tests.stores.postgres.sessions import places
from tests.stores.postgres.test_advisory import advisory, held, is_clean

SLACK = 1.0
PROMPTLY = 0.5
"""Less than any pause after which a waiter looks by itself; it polls more often than that where it cannot listen."""


@pytest.fixture
def watched(pooler: Pooler) -> Iterator[FaultProxy]:
    """Count the connections to the pooler."""
    with FaultProxy(pooler) as proxy:
        yield proxy


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


async def test_locks_work_through_a_transaction_pooler(
    harness: Harness, pooler: Pooler, server: PostgresServer
) -> None:
    """Two sessions for three clients: whatever is prepared in one is missing in the other."""
    clients = [harness.client(pooler.url, ttl=1.0) for _ in range(3)]

    async def use(number: int) -> None:
        for turn in range(15):
            handle = await ask(clients[number].acquire(f"x-{turn % 2}", timeout=20))
            await ask(handle.extend(5))
            await ask(handle.release())

    held = await ask(clients[0].acquire("held"))
    for work in [harness.start(use(number)) for number in range(3)]:
        await work.result()
    await harness.sleep(1.2)
    assert held.is_held
    await ask(held.release())
    assert not places(harness, server)
    assert server.sql("SELECT name FROM pg_prepared_statements") == []


async def test_a_waiter_behind_a_transaction_pooler_is_warned_once_that_it_cannot_listen(
    harness: Harness, watched: FaultProxy, server: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    locks, other = harness.client(watched.url, ttl=30), harness.client(server.url, ttl=30)
    first = await ask(other.acquire("x"))
    waiting = [harness.start(lambda: locks.acquire("x", timeout=20)) for _ in range(3)]
    await harness.waits(other, "x", 3)
    await harness.until(lambda: warnings_of(caplog), "it warns")
    released = time.monotonic()
    await ask(first.release())
    for _ in range(3):
        (work,) = await harness.until(lambda: [work for work in waiting if work.is_done][:1], "the next is served")
        waiting.remove(work)
        await ask((await work.result()).release())
    assert time.monotonic() - released < 2 * SLACK
    (warning,) = warnings_of(caplog)
    assert "listen=" in warning
    assert "pooler=session" in warning
    assert str(watched.port) in warning
    await harness.until(
        lambda: watched.open <= (2 if harness.runtime_name != "threads" else 3),
        "a client that cannot listen disconnects",
    )


async def test_with_another_address_to_listen_at_wake_ups_are_prompt(
    harness: Harness, pooler: Pooler, server: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    locks, other = harness.client(pooler.url, ttl=30, listen=server.url), harness.client(pooler.url, ttl=30)
    first = await ask(other.acquire("x"))
    waiting = harness.start(lambda: locks.acquire("x", timeout=20))
    await harness.waits(other, "x")
    await harness.until(lambda: is_listening(server), "it listens")
    released = time.monotonic()
    await ask(first.release())
    assert (await waiting.result()).is_held
    assert waiting.ended_at - released < PROMPTLY
    assert not warnings_of(caplog)


async def test_with_pooler_session_waiters_listen_through_the_pooler(
    harness: Harness, server: PostgresServer, start_pooler: Callable[..., Pooler], caplog: pytest.LogCaptureFixture
) -> None:
    pooler = start_pooler(pool_mode="session", pool_size=10)
    locks, other = (harness.client(f"{pooler.url}?pooler=session", ttl=30) for _ in range(2))
    first = await ask(other.acquire("x"))
    waiting = harness.start(lambda: locks.acquire("x", timeout=20))
    await harness.waits(other, "x")
    await harness.until(lambda: is_listening(server), "it listens")
    released = time.monotonic()
    await ask(first.release())
    assert (await waiting.result()).is_held
    assert waiting.ended_at - released < PROMPTLY
    assert not warnings_of(caplog)


async def test_a_transaction_pooler_declared_as_session_is_detected(harness: Harness, pooler: Pooler) -> None:
    """It pools transactions after all: what one client prepares, the other finds prepared."""
    clients = [harness.client(f"{pooler.url}?pooler=session", ttl=30) for _ in range(2)]
    with pytest.raises(StoreError, match="remove pooler=session"):
        for locks in clients * 10:
            await ask((await ask(locks.acquire("x", timeout=5))).release())


async def test_a_direct_connection_is_not_taken_for_a_pooler(harness: Harness, server: PostgresServer) -> None:
    locks = harness.client(server.url)
    held = await ask(locks.acquire("x"))
    waiting = harness.start(lambda: locks.acquire("x", timeout=20))
    await harness.until(lambda: is_listening(server), "it listens")
    assert locks._engine.store.capabilities.push
    await ask(held.release())
    await waiting.result()


@pytest.mark.parametrize("runtime_name", RUNTIME_NAMES)
def test_for_advisory_locks_a_transaction_pooler_is_refused_and_a_session_pooler_accepted_if_declared(
    server: PostgresServer, runtime_name: str
) -> None:
    eventually(lambda: is_clean(server), "the sessions of the test before have ended")
    with OwnPooler(server) as pooler, OwnPooler(server, pool_mode="session", pool_size=4) as declared:
        rig = Rig(runtime_name, lambda runtime: open_store(advisory(pooler.url), runtime))

        async def refused() -> None:
            with pytest.raises(StoreError, match=r"pooler=session .* lease table"):
                await ask(rig.client().acquire("x"))

        rig.run(refused())
        assert is_clean(server)
        rig = Rig(runtime_name, lambda runtime: open_store(f"{advisory(declared.url)}?pooler=session", runtime))

        async def accepted() -> None:
            alice, bob = rig.client(), rig.client()
            handle = await ask(alice.acquire("x"))
            with pytest.raises(LockAcquisitionError):
                await ask(bob.acquire("x", timeout=0.05))
            assert handle.is_held
            assert not held(server, granted=False)

        rig.run(accepted())


def is_listening(server: PostgresServer) -> bool:
    return bool(server.sql("SELECT pid FROM pg_stat_activity WHERE query LIKE 'LISTEN lockstead%%' AND state = 'idle'"))
