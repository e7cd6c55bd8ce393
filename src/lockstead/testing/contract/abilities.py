"""Tests of optional protocols; a test returns at once on a store that lacks its protocol."""

from __future__ import annotations

import time
from math import inf
from typing import Any

import pytest

from lockstead.core.model import GONE, RESERVED, Ask, Place, RateRequest, RateResult, Refusal, Reservation, Standing
from lockstead.core.store import MultiJoining, RateLimiting, Reserving, Store
from lockstead.testing.contract.rigs import Rig
from lockstead.testing.contract.store import TIMEOUT, begin_to_listen, join, leave, make_ask, make_renewal, renew


def reservation(owner: str, seconds: float = 60.0, **changes: Any) -> Reservation:
    return Reservation("x", f"{owner}/1", seconds)._replace(**changes)


def nearly(seconds: float) -> Any:
    """Expect a duration of which a little has passed."""
    return pytest.approx(seconds - 0.5, abs=0.5)


async def places(store: Store, name: str = "x") -> list[Place]:
    return [place for line in await store.inspect(name, exact=True) for place in line.places]


async def owners(store: Store) -> list[str]:
    return [place.owner for place in await places(store)]


def test_a_name_stays_reserved_and_no_request_of_its_holder_finds_it(rig: Rig) -> None:
    async def test() -> None:
        store = rig.store()
        if not isinstance(store, Reserving):
            return
        held = await join(store, make_ask("alice", metadata='{"job": 1}'))
        assert await store.reserve(reservation("alice"), TIMEOUT)
        assert await renew(store, make_renewal("alice", ttl=600.0)) == GONE
        assert not await leave(store, "alice")
        assert not await store.reserve(reservation("alice", 600.0), TIMEOUT)
        for owner in ("alice", "bob"):
            refusal = await join(rig.store(), make_ask(owner, queue=False))
            assert refusal == Refusal(f"alice/1{RESERVED}", nearly(60.0))
        (place,) = await places(store)
        assert place.reserved
        assert (place.ticket, place.metadata) == (held.ticket, '{"job": 1}')

    rig.run(test())


def test_a_reservation_may_be_shorter_than_the_hold_and_the_first_waiter_then_holds(rig: Rig) -> None:
    async def test() -> None:
        store = rig.store()
        if not isinstance(store, Reserving):
            return
        held = await join(store, make_ask("alice"))
        for owner in ("bob", "carol"):
            await join(store, make_ask(owner))
        began = time.monotonic()
        assert await store.reserve(reservation("alice", 0.1), TIMEOUT)

        async def bob_is_in() -> bool:
            standing = await join(store, make_ask("bob"))
            return isinstance(standing, Standing) and standing.held and standing.ticket > held.ticket

        await rig.until(bob_is_in)
        assert 0.09 < time.monotonic() - began < 5.0
        assert await owners(store) == (["bob/1", "carol/1"] if store.capabilities.fifo else ["bob/1"])

    rig.run(test())


def test_a_reservation_may_show_other_metadata_than_the_hold(rig: Rig) -> None:
    async def test() -> None:
        store = rig.store()
        if not isinstance(store, Reserving):
            return
        await join(store, make_ask("alice", metadata='{"job": 1}'))
        assert await store.reserve(reservation("alice", metadata='{"result": "ü"}'), TIMEOUT)
        assert [place.metadata for place in await places(store)] == ['{"result": "ü"}']

    rig.run(test())


def test_a_place_that_does_not_hold_leaves_instead_of_reserving(rig: Rig) -> None:
    async def test() -> None:
        store = rig.store()
        if not isinstance(store, Reserving):
            return
        assert not await store.reserve(reservation("alice"), TIMEOUT)
        await join(store, make_ask("alice"))
        await join(store, make_ask("bob"))
        assert not await store.reserve(reservation("bob"), TIMEOUT)
        assert await owners(store) == ["alice/1"]

    rig.run(test())


def test_a_place_that_leaves_instead_of_reserving_wakes_the_next_waiter(rig: Rig) -> None:
    async def test() -> None:
        store = rig.store()
        if not isinstance(store, Reserving) or not store.capabilities.push:
            return
        for owner, weight in (("alice", 2), ("bob", 2), ("carol", 1)):
            await join(store, make_ask(owner, capacity=3, weight=weight))
        await begin_to_listen(store, "carol")
        assert not await store.reserve(reservation("bob"), TIMEOUT)
        assert await store.wait("x", "carol/1", TIMEOUT)
        assert (await renew(store, make_renewal("carol"))).held

    rig.run(test())


def test_one_of_several_holders_reserves_and_the_others_are_as_before(rig: Rig) -> None:
    async def test() -> None:
        store = rig.store()
        if not isinstance(store, Reserving) or not store.capabilities.semaphore:
            return
        for owner in ("alice", "bob", "carol", "dave"):
            await join(store, make_ask(owner, capacity=3))
        assert await store.reserve(reservation("bob"), TIMEOUT)
        assert await owners(store) == ["alice/1", f"bob/1{RESERVED}", "carol/1", "dave/1"]
        for owner, held in (("alice", True), ("carol", True), ("dave", False)):
            standing = await renew(store, make_renewal(owner))
            assert standing.held == held
        assert await leave(store, "alice")
        assert (await renew(store, make_renewal("dave"))).held
        assert await leave(store, "carol")
        assert await owners(store) == [f"bob/1{RESERVED}", "dave/1"]

    rig.run(test())


def test_a_late_join_of_a_reserving_owner_is_released_and_blocks_no_client(rig: Rig) -> None:
    async def test() -> None:
        store = rig.store()
        if not isinstance(store, Reserving) or not store.capabilities.semaphore:
            return
        held = await join(store, make_ask("alice", capacity=2))
        assert await store.reserve(reservation("alice"), TIMEOUT)
        assert (await join(store, make_ask("alice", capacity=2))).held
        assert not await store.reserve(reservation("alice"), TIMEOUT)
        assert [(place.owner, place.ticket) for place in await places(store)] == [(f"alice/1{RESERVED}", held.ticket)]
        await store.reserve(reservation("alice", tombstone=30.0), TIMEOUT)
        assert isinstance(await join(store, make_ask("alice", capacity=2)), Refusal)
        assert (await join(store, make_ask("bob", capacity=2))).held

    rig.run(test())


def test_a_late_join_after_a_reservation_in_doubt_is_refused(rig: Rig) -> None:
    async def test() -> None:
        store = rig.store()
        if not isinstance(store, Reserving):
            return
        await join(store, make_ask("alice"))
        another = rig.store()  # that has no record of the owner's joins, like a client after a lost reply
        assert isinstance(another, Reserving)
        assert await another.reserve(reservation("alice", 0.001, tombstone=30.0), TIMEOUT)

        async def is_free() -> bool:
            return not await places(store)

        await rig.until(is_free)
        assert await join(store, make_ask("alice")) == Refusal()
        assert (await join(store, make_ask("bob"))).held

    rig.run(test())


TOGETHER = ("n3", "n11", "n26")
"""Names in whose lines places may be had at once even in our Redis Cluster. Another store may not be able to."""


def all_of(owner: str, **changes: Any) -> list[Ask]:
    return [Ask(name, f"{owner}/{name}", 30.0, 3.0, queue=False)._replace(**changes) for name in TOGETHER]


def test_join_all_holds_every_line_and_may_be_repeated(rig: Rig) -> None:
    async def test() -> None:
        store = rig.store()
        if not isinstance(store, MultiJoining):
            return
        standings = await store.join_all(all_of("alice"), TIMEOUT)
        if standings is None:
            assert await store.inspect() == []
            return
        assert isinstance(standings, list)
        assert all(standing.held for standing in standings)
        tickets = [standing.ticket for standing in standings]
        assert len(set(tickets)) == len(TOGETHER)
        again = await store.join_all(all_of("alice", ttl=60.0), TIMEOUT)
        assert isinstance(again, list)
        assert [(standing.ticket, standing.held) for standing in again] == [(ticket, True) for ticket in tickets]
        for line in await store.inspect():
            (place,) = line.places
            assert place.owner == f"alice/{line.name}"
            assert place.expires_at - line.now == nearly(60.0)
            assert await store.leave(line.name, place.owner, TIMEOUT)
        standings = await store.join_all(all_of("bob"), TIMEOUT)
        assert isinstance(standings, list)
        assert min(standing.ticket for standing in standings) > max(tickets)

    rig.run(test())


def test_one_line_that_refuses_leaves_nothing_in_the_others_and_is_named(rig: Rig) -> None:
    async def test() -> None:
        store = rig.store()
        if not isinstance(store, MultiJoining):
            return
        first, busy, last = TOGETHER
        await join(store, Ask(first, "carol/1", 30.0, 3.0, capacity=2))
        for capacity, shared in ((1, 0), (2, 2)):
            owner = f"alice-{capacity}/1"
            await join(store, Ask(busy, owner, 30.0, 3.0, capacity, capacity))
            refusal = await store.join_all(
                [ask._replace(capacity=2) if ask.name == first else ask for ask in all_of("bob")], TIMEOUT
            )
            if refusal is None:
                return
            assert refusal == Refusal(owner, nearly(30.0), capacity=shared, name=busy)
            assert [place.owner for place in await places(store, first)] == ["carol/1"]
            assert [place.owner for place in await places(store, busy)] == [owner]
            assert await places(store, last) == []
            await store.leave(busy, owner, TIMEOUT)

    rig.run(test())


async def consume(
    store: RateLimiting, cost: float, limit: float = 20.0, max_wait: float = 0.0, name: str = "x"
) -> RateResult:
    return await store.consume(RateRequest(name, cost, limit, max_wait), TIMEOUT)


def test_a_burst_is_allowed_at_once_and_no_more_and_a_refused_request_costs_nothing(rig: Rig) -> None:
    async def test() -> None:
        store, other = rig.store(), rig.store()
        if not isinstance(store, RateLimiting) or not isinstance(other, RateLimiting):
            return
        assert await consume(store, 0.0) == RateResult(True, 0.0)
        assert await consume(store, 10.0) == RateResult(True, 10.0)
        assert await consume(other, 10.0) == RateResult(True, nearly(20.0))
        for _ in range(2):
            assert await consume(store, 10.0) == RateResult(False, nearly(20.0))
            assert await consume(other, 0.0) == RateResult(True, nearly(20.0))
        assert await consume(store, 0.0, limit=15.0) == RateResult(False, nearly(20.0))
        assert await consume(store, 10.0, name="y") == RateResult(True, 10.0)
        assert await store.inspect() == []

    rig.run(test())


def test_a_request_that_may_wait_reserves_its_turn_in_advance(rig: Rig) -> None:
    async def test() -> None:
        store = rig.store()
        if not isinstance(store, RateLimiting):
            return
        await consume(store, 20.0)
        assert await consume(store, 10.0, max_wait=5.0) == RateResult(False, nearly(20.0))
        assert await consume(store, 10.0, max_wait=10.0) == RateResult(True, nearly(30.0))
        assert await consume(store, 10.0, max_wait=15.0) == RateResult(False, nearly(30.0))
        assert await consume(store, 100.0, max_wait=inf) == RateResult(True, nearly(130.0))

    rig.run(test())


def test_a_sum_of_fractions_may_be_off_by_a_little(rig: Rig) -> None:
    async def test() -> None:
        store = rig.store()
        if not isinstance(store, RateLimiting):
            return
        assert not (await consume(store, 1 + 1e-8, limit=1.0)).allowed
        assert (await consume(store, 1 + 1e-10, limit=1.0)).allowed

    rig.run(test())


def test_a_used_burst_is_allowed_again_with_time(rig: Rig) -> None:
    async def test() -> None:
        store = rig.store()
        if not isinstance(store, RateLimiting):
            return
        began = time.monotonic()
        assert (await consume(store, 0.05, limit=0.05)).allowed

        async def may_again() -> bool:
            return (await consume(store, 0.05, limit=0.05)).allowed

        await rig.until(may_again)
        assert 0.04 < time.monotonic() - began < 5.0

    rig.run(test())
