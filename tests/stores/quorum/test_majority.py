"""Redlock on five real servers of which too many are gone. What a minority may suffer is in `tests/torture`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from lockstead import DistributedLock, StoreError
from tests.servers.redis import RedisServer

NAME = "x"


@pytest.fixture
def nodes() -> Iterator[list[RedisServer]]:
    """Give five servers; what two of them have written is there again after a restart."""
    with ExitStack() as stack:
        yield [stack.enter_context(RedisServer(append_only=number < 2)) for number in range(5)]


def url_of(nodes: list[RedisServer]) -> str:
    return "redlock://" + ",".join(f"127.0.0.1:{node.port}" for node in nodes)


@pytest.mark.parametrize("harm", ["kill", "pause"])
def test_with_three_of_five_gone_the_error_is_clear_and_quick(nodes: list[RedisServer], harm: str) -> None:
    with DistributedLock(url_of(nodes)) as locks:
        locks.acquire(NAME).release()
        for node in nodes[:3]:
            getattr(node, harm)()
        began = time.monotonic()
        with pytest.raises(StoreError, match="2 of 5 nodes answered") as caught:
            locks.try_acquire(NAME)
        took = time.monotonic() - began
        for node in nodes[:3]:
            assert str(node.port) in str(caught.value)
        assert took < 5
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(locks.acquire, NAME, timeout=60)
            for node in nodes[:3]:
                node.resume() if harm == "pause" else node.restart()
            waiting.result().release()
