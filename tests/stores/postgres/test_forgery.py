"""NOTIFY needs no right at all: whatever is sent makes no client believe that it holds, and keeps none from holding."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator

import psycopg
import pytest

from lockstead.core.model import Ask, Wake
from tests.harness.clients import Harness, ask
from tests.servers.postgres import PostgresServer
from tests.stores.postgres.sessions import listening, named

GARBAGE = ("", "x", "é" * 1000, "\t\n\x01", "0/" * 2000)


class Forger:
    """A role that may read every table and all of pg_stat_activity, and write nothing of ours."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._name = f"eve_{secrets.token_hex(4)}"
        server.sql(f"CREATE ROLE {self._name} LOGIN IN ROLE pg_monitor, pg_read_all_data")
        self._session = psycopg.connect(server.url, user=self._name, autocommit=True)

    def channels(self) -> set[str]:
        rows = self._session.execute("SELECT query FROM pg_stat_activity WHERE query LIKE 'LISTEN %'")
        return {query.removeprefix("LISTEN ").strip('"') for (query,) in rows}

    def read_all(self, schema: str) -> list[str]:
        rows = self._session.execute(f"SELECT l::text, l.holder, l.channel FROM {schema}.distributed_locks l")
        return [text for row in rows for text in row]

    def publish(self, *messages: str) -> None:
        for channel in self.channels():
            for message in messages:
                self._session.execute("SELECT pg_notify(%s, %s)", (channel, message))

    def close(self) -> None:
        self._session.close()
        self._server.sql(f"DROP ROLE {self._name}")


@pytest.fixture
def forger(server: PostgresServer) -> Iterator[Forger]:
    forger = Forger(server)
    yield forger
    forger.close()


async def test_a_role_that_may_read_everything_makes_no_client_hold(
    harness: Harness, server: PostgresServer, schema: str, forger: Forger
) -> None:
    alice, bob = harness.client(server.url, ttl=60), harness.client(named(server.url, schema), ttl=60)
    first = await ask(alice.acquire("x"))
    waiting = harness.start(lambda: bob.acquire("x", timeout=30))
    await harness.waits(alice, "x", 1)
    await harness.until(lambda: listening(server, schema), "the waiter listens")
    owners = [f"{bob.holder_id}/{number}" for number in range(1, 9)]
    for _ in range(3):
        forger.publish(*owners, *(text[:7999] for text in forger.read_all(schema)), *GARBAGE)
        await harness.sleep(0.1)
        assert not waiting.is_done
        assert first.is_held
    released = time.monotonic()
    await ask(first.release())
    second = await waiting.result()
    assert second.is_held
    assert second.fence > first.fence
    assert waiting.ended_at - released < 1.0, "the waiter still listens, and was woken"


async def test_a_message_is_a_grant_only_if_the_place_holds(
    harness: Harness, server: PostgresServer, forger: Forger
) -> None:
    store = harness.store(server.url)
    for owner in ("a/1", "b/1"):
        await store.join(Ask("x", owner, 60.0, 60.0), 5.0)
    while await store.wait("x", "b/1", 0.1):  # what may have been missed before it listened
        pass
    waiting = harness.start(store.wait("x", "b/1", 30.0))
    await harness.until(forger.channels, "it listens")
    forger.publish("b/1")
    assert await waiting.result() is Wake.HINT
    waiting = harness.start(store.wait("x", "b/1", 30.0))
    await store.leave("x", "a/1", 5.0)
    assert await waiting.result() is Wake.GRANT
