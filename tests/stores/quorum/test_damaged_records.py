"""Redlock on servers of which some keep what makes no sense."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from lockstead import DistributedLock, StoreError
from tests.harness.conditions import eventually
from tests.servers.redis import RedisServer


class Members:
    """Three servers, and what one quorum keeps on them."""

    def __init__(self, servers: list[RedisServer], key_prefix: str) -> None:
        addresses = ",".join(f"127.0.0.1:{server.port}" for server in servers)
        self.url = f"redlock://{addresses}?key_prefix={key_prefix}"
        self.key = f"{key_prefix}:member:0"
        self.clients = [server.client(decode_responses=False) for server in servers]

    def damage(self, numbers: range, field: bytes) -> None:
        for number in numbers:
            self.clients[number].hset(self.key, field, b"nonsense")

    def close(self) -> None:
        for client in self.clients:
            client.delete(self.key)
            client.close()


@pytest.fixture
def nodes(redlock_servers: list[RedisServer], key_prefix: str) -> Iterator[Members]:
    nodes = Members(redlock_servers, key_prefix)
    yield nodes
    nodes.close()


def test_a_name_that_a_minority_cannot_read_is_held_and_the_damage_logged(nodes: Members) -> None:
    with DistributedLock(nodes.url, ttl=5.0) as locks:
        handle = locks.acquire("x")
        nodes.damage(range(1), b"x")
        handle.extend(5)
        (info,) = locks.inspect()
        assert info.fence == handle.fence
        assert "release x --force" in (info.damage or "")
        handle.release()
        began = time.monotonic()
        for _ in range(5):
            locks.acquire("x", timeout=5).release()
            locks.acquire("other", timeout=5).release()
        assert time.monotonic() - began < 2.0, "a member that cannot read one name is not taken for one that is down"
        (left,) = locks.inspect()
        assert left.holders == ()
        locks.force_release("x")
        assert locks.inspect() == []


def test_a_name_that_a_majority_cannot_read_is_refused_and_can_be_cleared(nodes: Members) -> None:
    with DistributedLock(nodes.url) as locks:
        locks.acquire("x").release()
        nodes.damage(range(2), b"x")
        with pytest.raises(StoreError, match="release x --force"):
            locks.acquire("x", timeout=1)
        (damaged,) = locks.inspect("x")
        assert "release x --force" in (damaged.damage or "")
        cleared = locks.force_release("x")
        assert cleared is not None
        assert cleared.damage is not None
        with locks.lock("x", timeout=5) as held:
            assert 0 < held.fence < 2**53


def test_a_member_whose_counter_cannot_be_read_comes_back_empty_once_it_is_cleared(nodes: Members) -> None:
    with DistributedLock(nodes.url, ttl=0.5) as locks:
        first = locks.acquire("x")
        fence = first.fence
        first.release()
        nodes.damage(range(1), b"\0")
        with locks.lock("x", timeout=5) as held:
            assert held.fence > fence, "the others are enough"
            fence = held.fence
        assert [info.name for info in locks.inspect() if info.damage] == [""]
        locks.force_release("x")
        eventually(
            lambda: all(found.level != "warning" or "empty" not in found.message for found in locks.examine()),
            "it votes again",
        )
        assert not [info for info in locks.inspect() if info.damage]
        with locks.lock("x", timeout=5) as held:
            assert held.fence > fence
