"""What another role may do on our channels: it makes no client believe that it holds, and keeps none from holding."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from typing import Any

import pytest

from lockstead.core.model import Wake
from lockstead.stores.redis.commands import RENEW
from tests.harness.clients import Harness, ask
from tests.servers.binaries import FLAVOURS, Flavour, redis_flavours
from tests.servers.proxy import FaultProxy
from tests.servers.redis import RedisServer
from tests.stores.redis.test_lost_messages import is_script, know_scripts

GARBAGE = (b"", b"\xff", b"\0" * 16, b"\xff\xfe\xfd" * 50, b"x" * 1_000_000, "é".encode("latin-1"))


@pytest.fixture(params=[flavour.name for flavour in redis_flavours()])
def flavour(request: pytest.FixtureRequest) -> Flavour:
    """Redis 6.2 and Valkey 9, whose rights on channels differ."""
    return FLAVOURS[request.param]


class Forger:
    """A client that may listen and publish on our channels, and neither read nor write any key."""

    def __init__(self, server: RedisServer, key_prefix: str) -> None:
        self._admin = server.client()
        self._user = f"forger-{secrets.token_hex(4)}"
        rights = ["on", ">forger", "resetkeys", "resetchannels", f"&{key_prefix}:*", "-@all", "+publish", "+pubsub"]
        self._admin.execute_command("ACL", "SETUSER", self._user, *rights, "+psubscribe", "+ping")
        self._prefix = key_prefix
        self._client = server.client(username=self._user, password="forger", decode_responses=False)
        self._subscriber = self._client.pubsub()
        self._subscriber.psubscribe(f"{key_prefix}:*")
        self._subscriber.get_message(timeout=5)

    def received(self) -> list[bytes]:
        messages = []
        while message := self._subscriber.get_message(timeout=0.05):
            messages.append(message["data"])
        return messages

    def publish(self, *messages: bytes | str) -> None:
        for channel in self._client.pubsub_channels(f"{self._prefix}:*"):
            for message in messages:
                self._client.publish(channel, message)

    def close(self) -> None:
        self._subscriber.close()
        self._admin.execute_command("ACL", "DELUSER", self._user)


@pytest.fixture
def forger(server: RedisServer, key_prefix: str) -> Iterator[Forger]:
    forger = Forger(server, key_prefix)
    yield forger
    forger.close()


def guesses(holder_id: str) -> list[str]:
    return [f"{holder_id}/{number}" for number in range(1, 9)]


async def test_a_role_that_may_only_publish_makes_no_client_hold(
    harness: Harness, server: RedisServer, forger: Forger
) -> None:
    alice, bob = harness.client(server.url, ttl=60), harness.client(server.url, ttl=60)
    first = await ask(alice.acquire("y"))
    waiting = harness.start(lambda: bob.acquire("y", timeout=30))
    await harness.waits(alice, "y", 1)
    await ask(first.release())
    await ask((await waiting.result()).release())
    first = await ask(alice.acquire("x"))
    waiting = harness.start(lambda: bob.acquire("x", timeout=30))
    await harness.waits(alice, "x", 1)
    forger.publish(*guesses(bob.holder_id), *forger.received(), *GARBAGE)
    for _ in range(3):
        forger.publish(*guesses(bob.holder_id))
        await harness.sleep(0.1)
        assert not waiting.is_done
        assert first.is_held
    await ask(first.release())
    second = await waiting.result()
    assert second.is_held
    assert second.fence > first.fence


async def test_an_intercepted_message_grants_nothing_to_the_next_place(
    harness: Harness, server: RedisServer, forger: Forger
) -> None:
    alice, bob = harness.client(server.url, ttl=60), harness.client(server.url, ttl=60)
    for _ in range(3):
        first = await ask(alice.acquire("x"))
        waiting = harness.start(lambda: bob.acquire("x", timeout=30))
        await harness.waits(alice, "x", 1)
        await ask(first.release())
        await ask((await waiting.result()).release())
    received = forger.received()
    assert len(set(received)) == 3, "each place has a secret of its own"
    assert all(bob.holder_id.encode() not in message for message in received)
    first = await ask(alice.acquire("x"))
    waiting = harness.start(lambda: bob.acquire("x", timeout=30))
    await harness.waits(alice, "x", 1)
    forger.publish(*received)
    await harness.sleep(0.2)
    assert not waiting.is_done
    await ask(first.release())
    assert (await waiting.result()).is_held


async def test_messages_that_are_not_ours_are_ignored_and_counted(
    harness: Harness, server: RedisServer, forger: Forger
) -> None:
    alice, bob = harness.client(server.url, ttl=60), harness.client(server.url, ttl=60)
    first = await ask(alice.acquire("x"))
    waiting = harness.start(lambda: bob.acquire("x", timeout=30))
    await harness.waits(alice, "x", 1)
    subscriber = bob._engine.store._subscriber
    await harness.until(lambda: forger._client.pubsub_channels(f"{forger._prefix}:*"), "the waiter listens")
    forger.publish(*GARBAGE)
    await harness.until(lambda: subscriber.ignored >= len(GARBAGE), "all of it has arrived")
    released = time.monotonic()
    await ask(first.release())
    second = await waiting.result()
    assert second.is_held
    assert waiting.ended_at - released < 1.0, "the waiter still listens, and was woken"


async def test_a_pushed_grant_costs_no_request(harness: Harness, server: RedisServer, proxy: FaultProxy) -> None:
    alice, bob = harness.client(server.url, ttl=60), harness.client(proxy.url, ttl=60)
    await know_scripts(bob)
    for name in ("listens from now on", "x"):
        first = await ask(alice.acquire(name))
        waiting = harness.start(lambda name=name: bob.acquire(name, timeout=30))
        await harness.waits(alice, name, 1)
        if name == "x":
            proxy.lose_request(count=99, when=is_script(RENEW))
        await ask(first.release())
        second = await waiting.result(1.5)
    assert second.is_held
    assert proxy.lost == 0


async def test_with_confirm_grants_a_message_is_only_a_hint(
    harness: Harness, server: RedisServer, key_prefix: str
) -> None:
    """For a server where a role may read our keys, and so the secrets, but not write them."""
    stores: list[Any] = [
        harness.store(server.url, confirm_grants=True),
        harness.store(f"{server.url}?confirm_grants=yes"),
    ]
    assert all(store._subscriber._wake is Wake.HINT for store in stores)
    alice = harness.client(server.url, ttl=60)
    bob = harness.client(server.url, ttl=60, confirm_grants=True)
    first = await ask(alice.acquire("x"))
    waiting = harness.start(lambda: bob.acquire("x", timeout=30))
    await harness.waits(alice, "x", 1)
    reader = server.client(decode_responses=False)
    record = reader.hgetall(f"{key_prefix}:bucket:0")
    secret = bob._engine.store._subscriber.expect(f"{bob.holder_id}/1")
    assert any(secret in value for value in record.values()), "a client that reads the key has the secret"
    for channel in reader.pubsub_channels(f"{key_prefix}:*"):
        reader.publish(channel, secret)
    await harness.sleep(0.3)
    assert not waiting.is_done
    await ask(first.release())
    assert (await waiting.result()).is_held


async def test_inspection_shows_no_secret(harness: Harness, server: RedisServer) -> None:
    alice, bob = harness.client(server.url, ttl=60), harness.client(server.url, ttl=60)
    await ask(alice.acquire("x"))
    harness.start(lambda: bob.acquire("x", timeout=5))
    await harness.waits(alice, "x", 1)
    secret = bob._engine.store._subscriber.expect(f"{bob.holder_id}/1")
    (line,) = await harness.store(server.url).inspect("x", exact=True)
    shown = repr(line) + repr(await ask(alice.info("x")))
    assert repr(secret)[2:-1] not in shown
    assert secret.hex() not in shown
