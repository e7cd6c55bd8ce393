"""What a rate limit keeps on a server, and for how long."""

from __future__ import annotations

import pytest

from lockstead.core.model import RateRequest
from lockstead.stores.redis.store import RedisStore
from tests.harness.clients import Harness
from tests.servers.binaries import FLAVOURS, Flavour, redis_flavours
from tests.servers.redis import RedisServer


@pytest.fixture(params=[flavour.name for flavour in redis_flavours()])
def flavour(request: pytest.FixtureRequest) -> Flavour:
    return FLAVOURS[request.param]


async def test_the_state_of_a_rate_limit_expires_and_a_check_leaves_nothing(
    harness: Harness, server: RedisServer
) -> None:
    store, key = harness.store(server.url), f"{harness.options['key_prefix']}:rate:x"
    assert isinstance(store, RedisStore)
    with server.client() as client:
        assert (await store.consume(RateRequest("x", 0.0, 10.0), 5.0)).allowed
        assert not client.exists(key)
        assert (await store.consume(RateRequest("x", 2.0, 10.0), 5.0)).allowed
        before = client.dump(key)
        assert (await store.consume(RateRequest("x", 0.0, 10.0), 5.0)).allowed
        assert not (await store.consume(RateRequest("x", 9.0, 10.0), 5.0)).allowed
        assert client.dump(key) == before
        assert 1000 < client.pttl(key) <= 2001
        assert (await store.consume(RateRequest("y", 0.01, 10.0), 5.0)).allowed
        await harness.until(lambda: not client.exists(f"{harness.options['key_prefix']}:rate:y"), "it is gone")
