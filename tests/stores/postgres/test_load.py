"""Many tasks at once, and a NOTIFY queue that another session has filled."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from math import inf
from typing import Any

import psycopg
import pytest

from lockstead import AsyncDistributedLock, LockAcquisitionError, StoreError
from lockstead.core.model import Ask, Renewal, Standing
from lockstead.stores.postgres.libpq import Lane
from lockstead.stores.transport.pipeline import QueuedError
from tests.harness.clients import Harness, ask
from tests.servers.postgres import PostgresServer
from tests.servers.proxy import FaultProxy

TASKS = 1500


def test_many_tasks_with_short_timeouts_get_a_timeout_and_no_error_of_a_silent_server(
    server: PostgresServer, schema: str
) -> None:
    outcomes: Counter[str] = Counter()
    chance = random.Random(1)

    async def impatient(locks: AsyncDistributedLock, number: int) -> None:
        try:
            handle = await locks.acquire(f"name {number % 5}", timeout=chance.uniform(0.01, 0.3))
            await handle.release()
        except (LockAcquisitionError, StoreError) as error:
            outcomes[f"{type(error).__name__}: {error.__cause__!r}"] += 1

    async def storm() -> None:
        async with AsyncDistributedLock(server.url, schema=schema) as locks:
            await (await locks.acquire("warm")).release()
            tasks = [asyncio.create_task(impatient(locks, number)) for number in range(TASKS)]
            for task in chance.sample(tasks, TASKS // 4):
                await asyncio.sleep(0)
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for number in range(5):  # and nothing is left behind
                await (await locks.acquire(f"name {number}", timeout=10)).release()

    asyncio.run(storm())
    assert [outcome for outcome in outcomes if outcome.startswith("StoreError")] == []
    assert outcomes.total() > TASKS / 4, "it was no storm"


def test_a_request_that_opens_a_connection_for_itself_and_then_runs_out_of_time_gets_a_timeout(
    server: PostgresServer, proxy: FaultProxy, schema: str
) -> None:
    """A locked name moves the request to a connection of its own; the round trips to open it take most of the time."""

    async def scenario() -> None:
        async with AsyncDistributedLock(proxy.url, schema=schema) as locks:
            await (await locks.acquire("warm")).release()
            with psycopg.connect(server.url) as other:
                other.execute(f"SELECT {schema}.acquire_lock('x', 'sql', 30)".encode())  # the row stays locked
                opened = proxy.accepted
                proxy.delay(0.01)
                with pytest.raises(LockAcquisitionError, match="raise the timeout") as caught:
                    await locks.acquire("x", timeout=0.1)
            assert proxy.accepted > opened, "it opened a connection"
            assert isinstance(caught.value.__cause__, StoreError)
            assert isinstance(caught.value.__cause__.__cause__, QueuedError)
            proxy.heal()

    asyncio.run(scenario())


def test_requests_that_run_out_of_time_do_not_end_a_new_connection_for_the_others(
    server: PostgresServer, proxy: FaultProxy, schema: str
) -> None:
    """Opening takes some 0.1 s here: impatient requests run out of time before it, after it and in that moment."""

    async def scenario() -> None:
        async with AsyncDistributedLock(proxy.url, schema=schema) as locks:
            await (await locks.acquire("warm")).release()
            store: Any = locks._engine.store

            async def ask_within(timeout: float) -> object:
                try:
                    return await store._server.ask(store._statements.holds, (b"x", b"y"), timeout, Lane.BLOCKED)
                except StoreError as error:
                    return type(error.__cause__)

            proxy.delay(0.01)
            impatient = [asyncio.create_task(ask_within(0.03 + 0.001 * number)) for number in range(150)]
            patient = [asyncio.create_task(ask_within(5.0)) for _ in range(50)]
            while not all(task.done() for task in patient):
                time.sleep(0.004)  # noqa: ASYNC251 (a busy loop: timers are late, and several requests end at once)
                await asyncio.sleep(0)
            assert [task.result() for task in patient] == [[]] * 50
            assert set(map(str, await asyncio.gather(*impatient))) <= {"[]", str(TimeoutError), str(QueuedError)}
            proxy.heal()

    asyncio.run(scenario())


def test_a_server_that_falls_silent_is_an_error_of_the_store_not_an_overload(
    server: PostgresServer, proxy: FaultProxy, schema: str
) -> None:
    """The connection that is replaced has answered a moment ago, but does no more."""

    async def scenario() -> None:
        async with AsyncDistributedLock(proxy.url, schema=schema) as locks:
            await (await locks.acquire("warm")).release()
            proxy.black_hole()
            for _ in range(4):
                with pytest.raises(StoreError, match="no answer in time"):
                    await locks.acquire("x", timeout=0.2)
            proxy.heal()

    asyncio.run(scenario())


@pytest.fixture
def congested(start: Callable[..., PostgresServer]) -> Iterator[tuple[PostgresServer, psycopg.Connection]]:
    """Give a server whose NOTIFY queue is full, and the session that keeps it so: it listens in an open transaction."""
    server = start(max_notify_queue_pages="64", fsync="off")
    with psycopg.connect(server.url) as culprit, psycopg.connect(server.url, autocommit=True) as flooding:
        culprit.execute("LISTEN anything")
        culprit.commit()
        culprit.execute("SELECT 1")
        with pytest.raises(psycopg.errors.ProgramLimitExceeded):
            for _ in range(1000):
                flooding.execute("SELECT pg_notify('anything', repeat('x', 7000))")
        flooding.close()
        yield server, culprit


async def test_a_full_notify_queue_fails_no_release_and_waiters_poll(
    congested: tuple[PostgresServer, psycopg.Connection], harness: Harness, schema: str
) -> None:
    server, culprit = congested
    locks, other = harness.client(server.url, ttl=30.0), harness.client(server.url, ttl=30.0)
    for _ in range(3):
        await hand_over(harness, locks, other)
    with psycopg.connect(server.url, autocommit=True) as user:
        user.execute(f"SELECT {schema}.acquire_lock('x', 'sql', 30)".encode())
        waiting = harness.start(lambda: other.acquire("x", timeout=20))
        await harness.waits(locks, "x")
        user.execute(f"SELECT {schema}.release_lock('x', 'sql')".encode())
        await ask((await waiting.result()).release())

    store = harness.store(server.url)
    held = await ask(locks.acquire("x"))
    for owner in ("first", "second"):
        standing = await store.join(Ask("x", owner, 30.0, 3.0), 5.0)
        assert isinstance(standing, Standing)
        assert standing.recheck <= 0.1, "no notification would come"
        (renewed,) = await store.renew([Renewal("x", owner, 30.0, 3.0, claim=True)], 5.0)
        assert renewed.recheck <= 0.1
        await store.leave("x", owner, 5.0)
    await ask(held.release())
    assert [finding.level for finding in await ask(locks.examine()) if "NOTIFY queue" in finding.message] == ["warning"]

    server.terminate(culprit.info.backend_pid)
    culprit.close()
    await hand_over(harness, locks, other)
    standing = await store.join(Ask("y", "first", 30.0, 3.0), 5.0)
    assert standing.recheck == inf, "it is notified again"
    assert not [finding for finding in await ask(locks.examine()) if "NOTIFY queue" in finding.message]


async def hand_over(harness: Harness, locks: Any, other: Any) -> None:
    held = await ask(locks.acquire("x"))
    waiting = harness.start(lambda: other.acquire("x", timeout=20))
    await harness.waits(locks, "x")
    await ask(held.release())
    await ask((await waiting.result()).release())


async def test_a_step_refused_by_a_full_notify_queue_is_repeated(
    harness: Harness, server: PostgresServer, schema: str
) -> None:
    """The server refuses the whole transaction, at its end: nothing was done."""
    server.sql(
        f"CREATE SEQUENCE {schema}.refused;"
        f"CREATE FUNCTION {schema}.refuse() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN"
        f" IF nextval('{schema}.refused') % 2 = 1 THEN RAISE program_limit_exceeded; END IF; RETURN NULL; END$$;"
        f"CREATE CONSTRAINT TRIGGER refuse AFTER INSERT OR UPDATE OR DELETE ON {schema}.distributed_locks"
        f" DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION {schema}.refuse()"
    )
    locks = harness.client(server.url, ttl=30.0)
    held = await ask(locks.acquire("x"))
    await ask(held.extend(60))
    await ask(held.release())
    assert not await ask(locks.is_locked("x"))
