"""The fences that a user's own scripts check."""

from __future__ import annotations

import pytest
from redis.exceptions import ResponseError

from lockstead.fencing import CHECK_FENCE_LUA
from tests.servers.binaries import FLAVOURS, Flavour, redis_flavours
from tests.servers.redis import RedisServer


@pytest.fixture(params=[flavour.name for flavour in redis_flavours()])
def flavour(request: pytest.FixtureRequest) -> Flavour:
    return FLAVOURS[request.param]


WRITE = """
if not check_fence(KEYS[2], ARGV[1]) then
  return redis.error_reply('STALE')
end
return redis.call('SET', KEYS[1], ARGV[2])
"""
FENCE = 1_700_000_000_000_000


def test_a_stale_write_is_refused_in_the_step_that_would_make_it(server: RedisServer, key_prefix: str) -> None:
    data, kept = f"{key_prefix}data", f"{key_prefix}fence"
    with server.client() as client:

        def write(fence: object, value: str) -> None:
            client.eval(CHECK_FENCE_LUA + WRITE, 2, data, kept, str(fence), value)

        for fence in (9, 10, FENCE, FENCE, 2**53 - 1, 2**53):
            write(fence, f"by {fence}")
            assert client.get(data) == f"by {fence}"
            assert client.get(kept) == str(fence)
        for stale in (1, FENCE, 2**53 - 1):
            with pytest.raises(ResponseError, match="STALE"):
                write(stale, "too late")
        for wrong in ("", "nan", "inf", 0, -1, 2**54):
            with pytest.raises(ResponseError, match="not a fence"):
                write(wrong, "nonsense")
        assert (client.get(data), client.get(kept)) == (f"by {2**53}", str(2**53))


@pytest.mark.parametrize("kept", ["", "nan", "inf", "-1", "soon"])
def test_a_value_that_is_not_a_fence_lets_no_write_pass(server: RedisServer, key_prefix: str, kept: str) -> None:
    data, fence = f"{key_prefix}data", f"{key_prefix}fence"
    with server.client() as client:
        client.set(fence, kept)
        with pytest.raises(ResponseError, match="not a fence") as caught:
            client.eval(CHECK_FENCE_LUA + WRITE, 2, data, fence, str(FENCE), "nonsense")
        assert fence in str(caught.value)
        assert (client.get(data), client.get(fence)) == (None, kept)
