"""Requests to the members of a quorum, as threads send them: to all, before the first reply is received."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, cast

import pytest
import redis

from lockstead import DistributedLock, StoreError
from lockstead.core.model import Ask, Standing
from lockstead.core.runtime import Outcomes, drive
from lockstead.runtimes.threads import ThreadRuntime
from lockstead.stores.quorum.members import DEFAULT_NODE_TIMEOUT
from lockstead.stores.quorum.store import Quorum
from lockstead.stores.redis.address import parse_url
from lockstead.stores.redis.blocking import Connection
from lockstead.stores.redis.member import BlockingMember
from tests.harness.conditions import eventually
from tests.servers.redis import RedisServer

ASK = Ask("x", "me/1", 30.0, 3.0, queue=False)


@pytest.fixture
def nodes() -> Iterator[list[RedisServer]]:
    with ExitStack() as stack:
        yield [stack.enter_context(RedisServer()) for _ in range(3)]


@pytest.fixture
def locks(nodes: list[RedisServer]) -> Iterator[DistributedLock]:
    with DistributedLock("redlock://" + ",".join(f"127.0.0.1:{node.port}" for node in nodes)) as locks:
        locks.acquire("x").release()
        yield locks


def members_of(locks: DistributedLock) -> list[BlockingMember]:
    return cast("list[BlockingMember]", cast("Quorum", locks._engine.store)._members.stores)


def test_connections_are_used_again(locks: DistributedLock, nodes: list[RedisServer]) -> None:
    def accepted() -> list[int]:
        found = []
        for node in nodes:
            with redis.Redis(port=node.port) as client:
                found.append(cast("dict[str, Any]", client.info("stats"))["total_connections_received"])
        return found

    before = accepted()
    for _ in range(20):
        locks.acquire("x").release()
    assert [after - count for count, after in zip(before, accepted(), strict=True)] == [1] * 3, "only the one that asks"


def test_servers_that_have_forgotten_the_scripts_are_sent_them_again(
    locks: DistributedLock, nodes: list[RedisServer]
) -> None:
    for _ in range(2):
        for node in nodes[:2]:
            with redis.Redis(port=node.port) as client:
                client.script_flush()
        handle = locks.acquire("x", timeout=0)
        for node in nodes[1:]:
            with redis.Redis(port=node.port) as client:
                client.script_flush()
        handle.release()
    assert not any(state.suspected for state in cast("Quorum", locks._engine.store)._members._states)


def test_a_silent_member_delays_no_caller_and_its_late_reply_answers_no_other_request(
    locks: DistributedLock, nodes: list[RedisServer]
) -> None:
    quorum = cast("Quorum", locks._engine.store)
    nodes[0].pause()
    began = time.monotonic()
    handle = locks.acquire("x")
    assert time.monotonic() - began < DEFAULT_NODE_TIMEOUT, "two of three have granted it at once"
    eventually(lambda: quorum._members._states[0].suspected, "the silent member has missed its deadline", within=10)
    handle.release()
    nodes[0].resume()
    eventually(lambda: not quorum._members._states[0].suspected, "it answers again", within=10)
    for _ in range(5):
        locks.acquire("x").release()
    member = members_of(locks)[0]
    eventually(lambda: drive(member.inspect("x", exact=True)) == [], "no place is left there", within=10)


def test_a_request_whose_connection_was_reset_has_an_unknown_outcome(nodes: list[RedisServer]) -> None:
    (deployment,), _ = parse_url(nodes[0].url)
    member = BlockingMember(ThreadRuntime(), deployment, is_member=True)
    assert member.send_join(ASK, 1.0) is None, "there is no connection yet"
    drive(member.join(ASK, 1.0))
    nodes[0].pause()
    in_flight = member.send_join(ASK, 1.0)
    assert in_flight is not None
    nodes[0].kill()
    with pytest.raises(StoreError) as caught:
        in_flight.receive()
    assert caught.value.transient
    assert member.send_join(ASK, 1.0) is None, "no other connection of that server is trusted"
    drive(member.close())


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_a_reply_may_arrive_in_parts(nodes: list[RedisServer], cut: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One byte less than the whole is no reply: the connection stays busy, and the caller waits."""
    (deployment,), _ = parse_url(nodes[0].url)
    runtime = ThreadRuntime()
    member = BlockingMember(runtime, deployment, is_member=True)
    drive(member.join(ASK, 1.0))
    near, far = socket.socketpair()
    connection = Connection(runtime, near)
    node = member._route.primary
    assert node is not None
    node._pool.idle[:] = [connection]  # type: ignore[attr-defined]
    in_flight = member.send_join(ASK, 1.0)
    assert in_flight is not None
    reply = b"*2\r\n:1234567890123456\r\n:1234567890123457\r\n"
    far.send(reply[:cut])

    class Rest:
        """Sends the rest once the first part was received."""

        def __call__(self, *arguments: Any) -> Any:
            monkeypatch.undo()
            found = cast("Any", in_flight).receive()
            assert node._pool.idle == []  # type: ignore[union-attr]
            far.send(reply[cut:])
            return found

    monkeypatch.setattr(type(in_flight), "receive", Rest())

    class One(Outcomes[Any]):
        def send(self, number: int) -> Any:
            return in_flight

    (standing,) = drive(One([None]).gather(runtime))  # type: ignore[list-item]
    assert isinstance(standing, Standing)
    assert standing.ticket == 1234567890123457
    assert node._pool.idle == [connection]  # type: ignore[attr-defined]
    far.close()
    drive(member.close())


def test_a_request_ends_at_its_deadline_and_its_connection_with_it() -> None:
    (deployment,), _ = parse_url("redis://127.0.0.1:1")
    runtime = ThreadRuntime()
    member = BlockingMember(runtime, deployment, is_member=True)
    near, far = socket.socketpair()
    node = member._route.primary
    assert node is not None
    node.is_checked = True
    node._pool.idle.append(Connection(runtime, near))  # type: ignore[attr-defined]
    in_flight = member.send_leave("x", "me/1", 0.05)
    assert in_flight is not None

    class One(Outcomes[Any]):
        def send(self, number: int) -> Any:
            return in_flight

    began = time.monotonic()
    (error,) = drive(One([None]).gather(runtime))  # type: ignore[list-item]
    assert "no answer in time" in str(error)
    assert 0.04 < time.monotonic() - began < 0.5
    assert near.fileno() == -1
    far.close()
    drive(member.close())
