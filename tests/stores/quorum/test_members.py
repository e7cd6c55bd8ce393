"""A quorum under the real runtimes: what the simulation cannot show."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import weakref
from collections.abc import Iterator
from time import sleep
from typing import Any

import pytest

from lockstead import AsyncDistributedLock, DistributedLock, StoreError
from lockstead.core.model import RESERVED, Ask, Membership, Reservation, Standing
from lockstead.core.runtime import Runtime, drive
from lockstead.runtimes.aio import AsyncRuntime
from lockstead.runtimes.threads import ThreadRuntime
from lockstead.stores.quorum.placement import Placement
from lockstead.stores.quorum.round import ReserveRound
from lockstead.stores.quorum.store import Quorum
from lockstead.testing.simulation.members import MemberServer, MemberStore
from tests.harness.conditions import eventually
from tests.harness.forks import in_child, succeeds


class Dead(MemberStore):
    """A member whose connection is refused."""

    probes = 0

    async def _refuse(self, *_: Any, **__: Any) -> Any:
        raise StoreError("connection refused", transient=True)

    join = renew = leave = reserve = inspect = admit = _refuse

    async def probe(self, timeout: float) -> Membership:
        self.probes += 1
        return await self._refuse()  # type: ignore[no-any-return]


class Hesitant(MemberStore):
    """A member that fails its first `reserve`, and every one while `refuse` is set."""

    refuse = False
    reserve_calls = 0

    async def reserve(self, reservation: Reservation, timeout: float) -> bool:
        self.reserve_calls += 1
        if self.refuse or self.reserve_calls == 1:
            raise StoreError("no answer", transient=True)
        return await super().reserve(reservation, timeout)


@pytest.fixture(autouse=True)
def _all_is_quiet() -> Iterator[None]:
    """Let every quorum of a test go before the next counts threads."""
    yield
    gc.collect()
    # Not isinstance, which asks the object itself: some, such as settings of Django, answer by raising.
    for quorum in [each for each in gc.get_objects() if issubclass(type(each), Quorum)]:
        quorum._members.stop()
    eventually(lambda: not quorum_threads(), "no thread of a quorum is left", within=10)


def open_quorum(runtime: Runtime, servers: list[MemberServer], dead: int = 0) -> Quorum:
    members = [(Dead if n < dead else MemberStore)(runtime, server) for n, server in enumerate(servers)]
    return Quorum(runtime, members, [f"m{number}" for number in range(len(servers))])


@pytest.fixture
def servers() -> list[MemberServer]:
    servers = [MemberServer() for _ in range(5)]
    for server in servers:
        server.admit(server.probe().token, 0, 0.0)
    return servers


def quorum_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "lockstead-quorum"]


def test_threads_that_share_a_quorum_exclude_each_other(servers: list[MemberServer]) -> None:
    clients = [DistributedLock(open_quorum(ThreadRuntime(), servers, dead=2)) for _ in range(3)]
    inside: list[int] = []
    fences: list[int] = []

    def work(client: DistributedLock) -> None:
        for _ in range(5):
            with client.lock("x", timeout=60) as handle:
                inside.append(1)
                fences.append(handle.fence)
                assert len(inside) == 1
                sleep(0.001)
                inside.pop()

    threads = [threading.Thread(target=work, args=(client,)) for client in clients for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(fences) == 30
    assert fences == sorted(set(fences))
    for client in clients:
        client.close()


def test_a_closed_quorum_probes_no_member(servers: list[MemberServer]) -> None:
    quorum = open_quorum(ThreadRuntime(), servers, dead=2)
    client = DistributedLock(quorum)
    client.acquire("x").release()
    assert len(quorum_threads()) == 2
    client.close()
    drive(quorum.close())
    eventually(lambda: not quorum_threads(), "no thread of a quorum is left", within=10)


def test_a_dropped_quorum_probes_no_member(servers: list[MemberServer]) -> None:
    quorum = open_quorum(ThreadRuntime(), servers, dead=1)
    client = DistributedLock(quorum)
    client.acquire("x", ttl=1).release()
    assert quorum_threads()
    gone = weakref.ref(quorum)
    del client, quorum
    eventually(lambda: gc.collect() is None or gone() is None, "the quorum is collected", within=20)
    eventually(lambda: not quorum_threads(), "no thread of a quorum is left", within=10)


def test_a_dead_member_is_probed_by_one_thread_and_ever_more_rarely(servers: list[MemberServer]) -> None:
    runtime = ThreadRuntime()
    quorum = open_quorum(runtime, servers, dead=1)
    (dead,) = (node.member for node in quorum._members._states if isinstance(node.member, Dead))
    with DistributedLock(quorum) as client:
        for _ in range(50):
            client.acquire("x").release()
        sleep(1.0)
        assert 2 <= dead.probes <= 8


def test_a_member_that_is_found_empty_is_recovered_even_without_a_request_for_a_lock(
    servers: list[MemberServer],
) -> None:
    quorum = open_quorum(ThreadRuntime(), servers)
    assert drive(quorum.examine()) == []
    servers[0].lose_data()
    assert [found.subject for found in drive(quorum.examine())] == ["m0"]
    eventually(lambda: drive(quorum.examine()) == [], "the member is admitted", within=10)


def test_a_member_may_be_admitted_by_another_thread_meanwhile(
    servers: list[MemberServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    with DistributedLock(open_quorum(ThreadRuntime(), servers)) as locks:
        nodes = locks._engine.store._members  # type: ignore[attr-defined]
        assert locks.try_acquire("x")
        servers[0].lose_data()

        def meanwhile(_: str, name: str, why: str) -> None:
            assert name == nodes._states[0].name
            nodes._note_admitted(nodes._states[0], Membership("", 0, 0.0, 0.0))

        monkeypatch.setattr("lockstead.stores.quorum.members.log.warning", meanwhile)
        memberships = drive(nodes._probe_and_admit())
        assert [membership.votes_in for membership in memberships[1:]] == [0.0] * 4


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_probes_its_members_itself(servers: list[MemberServer]) -> None:
    quorum = open_quorum(ThreadRuntime(), servers, dead=1)
    client = DistributedLock(quorum)
    client.acquire("x").release()
    eventually(lambda: quorum._members._states[0].suspected, "the first member is suspected", within=10)

    def child() -> None:
        assert not quorum._members._states[0].suspected
        assert not quorum._placements

    succeeds(in_child(child))
    client.close()


def test_tasks_are_not_left_behind_in_a_loop(servers: list[MemberServer]) -> None:
    async def main() -> None:
        async with AsyncDistributedLock(open_quorum(AsyncRuntime(), servers, dead=2)) as client:
            async with client.lock("x"):
                assert await client.is_locked("x")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05), client.lock("x"), client.lock("x"):
                    pass
            assert not await client.is_locked("x")

    asyncio.run(main())


def test_dead_members_of_a_lost_majority_are_named(servers: list[MemberServer]) -> None:
    with DistributedLock(open_quorum(ThreadRuntime(), servers, dead=3)) as client:
        with pytest.raises(StoreError, match="only 2 of 5 nodes answered: m0: connection refused; m1: c"):
            client.acquire("x", timeout=1)
        eventually(
            lambda: all(not server.inspect("x", exact=True) for server in servers), "no place is left", within=10
        )


def holders(server: MemberServer) -> list[str]:
    return [place.owner for line in server.inspect("x", exact=True) for place in line.places]


def test_a_vote_that_came_late_is_not_taken_for_the_fence(servers: list[MemberServer]) -> None:
    runtime = ThreadRuntime()
    ask = Ask("x", "me/1", 30.0, 3.0, queue=False)
    standing = drive(open_quorum(runtime, servers, dead=1).join(ask, 5.0))
    assert isinstance(standing, Standing)
    drive(MemberStore(runtime, servers[0]).join(ask._replace(floor=standing.ticket + 35_000), 5.0))
    ((place,),) = [line.places for line in drive(open_quorum(runtime, servers).inspect())]
    assert place.ticket == standing.ticket


def test_a_name_is_reserved_on_a_majority_and_a_member_that_missed_it_drops_its_place(
    servers: list[MemberServer],
) -> None:
    runtime = ThreadRuntime()
    members = [Hesitant(runtime, servers[0]), *(MemberStore(runtime, server) for server in servers[1:])]
    quorum = Quorum(runtime, members, [f"m{number}" for number in range(5)])
    drive(quorum.join(Ask("x", "me/1", 30.0, 3.0, queue=False), 5.0))
    assert drive(quorum.reserve(Reservation("x", "me/1", 30.0), 5.0))
    assert [holders(server) for server in servers[1:]] == [[f"me/1{RESERVED}"]] * 4
    eventually(lambda: holders(servers[0]) == [], "the first member forgets it", within=10)


def test_a_reservation_that_too_few_members_received_may_be_repeated(servers: list[MemberServer]) -> None:
    runtime = ThreadRuntime()
    members = [MemberStore(runtime, servers[0]), *(Hesitant(runtime, server) for server in servers[1:3])]
    members[2].refuse = True  # type: ignore[attr-defined]
    quorum = Quorum(runtime, members, ["m0", "m1", "m2"])
    drive(quorum.join(Ask("x", "me/1", 30.0, 3.0, queue=False), 5.0))
    with pytest.raises(StoreError, match="only 1 of 3 nodes answered"):
        drive(quorum.reserve(Reservation("x", "me/1", 30.0), 5.0))
    eventually(lambda: not any(node.suspected for node in quorum._members._states), "no member is suspected", within=10)
    assert drive(quorum.reserve(Reservation("x", "me/1", 30.0), 5.0))
    assert [holders(server) for server in servers[:2]] == [[f"me/1{RESERVED}"]] * 2


def test_a_reservation_in_doubt_on_too_many_members_is_not_a_loss(servers: list[MemberServer]) -> None:
    """Two of five refused the join: their answers do not count. Two more that are silent may have the place."""
    runtime = ThreadRuntime()
    for server in servers[3:]:
        drive(MemberStore(runtime, server).join(Ask("x", "other/1", 30.0, 3.0, queue=False), 5.0))
    kinds = [MemberStore, Hesitant, Hesitant, MemberStore, MemberStore]
    members = [kind(runtime, server) for kind, server in zip(kinds, servers, strict=True)]
    quorum = Quorum(runtime, members, [f"m{number}" for number in range(5)])
    drive(quorum.join(Ask("x", "me/1", 30.0, 3.0, queue=False), 5.0))
    with pytest.raises(StoreError, match=r"^too few nodes vote: m1: no answer; m2: no answer$") as error:
        drive(quorum.reserve(Reservation("x", "me/1", 30.0), 5.0))
    assert error.value.transient
    eventually(lambda: not any(node.suspected for node in quorum._members._states), "no member is suspected", within=10)
    assert drive(quorum.reserve(Reservation("x", "me/1", 30.0), 5.0))
    assert [holders(server) for server in servers[:3]] == [[f"me/1{RESERVED}"]] * 3


def test_a_reservation_that_fails_on_a_member_after_the_decision_is_released_there(servers: list[MemberServer]) -> None:
    runtime = ThreadRuntime()
    quorum = open_quorum(runtime, servers)
    quorum._members.stop()  # so that nothing is sent to them in the background
    placement = Placement(granted=set(range(5)), until=runtime.now() + 30.0)
    departure = placement.departure("x", "me/1", runtime.now())
    reserve = ReserveRound(quorum._members, departure, placement, Reservation("x", "me/1", 30.0), 5.0)

    def fail(number: int) -> None:
        reserve.take(number, StoreError("no answer", transient=True))

    def pending() -> list[int]:
        return [number for number, node in enumerate(quorum._members._states) if node.pending_releases]

    placement.reserved.update(range(3))
    fail(3)
    assert pending() == [], "it may be repeated there"
    reserve.settle()
    assert pending() == [3]
    fail(4)
    assert pending() == [3, 4]
