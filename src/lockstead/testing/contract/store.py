"""What every store promises the engine."""

from __future__ import annotations

import json
from functools import partial
from math import inf
from typing import Any

import pytest

from lockstead.core.model import GONE, WHOLE, Ask, PlaceState, Refusal, Renewal, Standing
from lockstead.core.store import Store
from lockstead.errors import StoreError, UnsupportedError
from lockstead.testing.contract.rigs import Rig

TIMEOUT = 5.0


def make_ask(owner: str, name: str = "x", **changes: Any) -> Ask:
    return Ask(name, f"{owner}/1", ttl=30.0, heartbeat=3.0)._replace(**changes)


def make_renewal(
    owner: str, name: str = "x", ttl: float = 30.0, heartbeat: float = 3.0, *, claim: bool = True
) -> Renewal:
    return Renewal(name, f"{owner}/1", ttl, heartbeat, claim)


async def join(store: Store, ask: Ask) -> Any:
    """Ask as the engine would, which does not ask for a line where there is none."""
    return await store.join(ask._replace(queue=ask.queue and store.capabilities.fifo), TIMEOUT)


async def with_retries(store: Store, ask: Ask) -> Any:
    """Join, and again while the outcome is unknown, as the engine would."""
    for attempt in range(7):
        try:
            return await join(store, ask)
        except StoreError as error:
            if not error.transient:
                raise
        await store.runtime.sleep(0.01 * 2**attempt)
    return await join(store, ask)


async def cannot_wait(store: Store) -> bool:
    """Return whether a store has no line to wait in. If so, its refusal is checked."""
    if not store.capabilities.fifo:
        with pytest.raises(UnsupportedError):
            await store.join(make_ask("no-client", "nothing", queue=True), TIMEOUT)
        assert await store.inspect("nothing", exact=True) == []
    return not store.capabilities.fifo


async def cannot_share(store: Store) -> bool:
    """Return whether a store carries exclusive locks only. If so, its refusal is checked."""
    if not store.capabilities.semaphore:
        with pytest.raises(UnsupportedError):
            await store.join(make_ask("no-client", "nothing", queue=False, capacity=2), TIMEOUT)
        assert await store.inspect("nothing", exact=True) == []
    return not store.capabilities.semaphore


async def cannot_read(store: Store) -> bool:
    """Return whether a store has no shared (read) locks. If so, its refusal is checked."""
    if not store.capabilities.shared:
        with pytest.raises(UnsupportedError):
            await store.join(make_ask("no-client", "nothing", queue=False, capacity=WHOLE), TIMEOUT)
        assert await store.inspect("nothing", exact=True) == []
    return not store.capabilities.shared


async def renew(store: Store, renewal: Renewal) -> Standing:
    (standing,) = await store.renew([renewal], TIMEOUT)
    return standing


async def leave(store: Store, owner: str, name: str = "x", tombstone: float = 0.0) -> bool:
    return await store.leave(name, f"{owner}/1", TIMEOUT, tombstone)


async def begin_to_listen(store: Store, owner: str) -> None:
    """Wait a first time, which may end at once: whatever was said before the store listened must be asked for."""
    await store.wait("x", f"{owner}/1", 0.02)


async def expires_in(store: Store, owner: str, least: float, most: float = 1e9) -> bool:
    """Return whether the place of an owner expires in `least` to `most` seconds; never on a store without expiry."""
    (line,) = await store.inspect("x", exact=True)
    (place,) = (place for place in line.places if place.owner == f"{owner}/1")
    if not store.capabilities.expiry:
        return place.expires_at == inf
    return least < place.expires_at - line.now <= most


def until_expiry(store: Store, seconds: float) -> Any:
    """Expect a time to look again when a holder expires, which is never where nothing expires."""
    return pytest.approx(seconds - 0.5, abs=0.5) if store.capabilities.expiry else inf


async def join_without_renewal(rig: Rig, ask: Ask) -> Any:
    """Join and never renew; on a store without expiry, close the session instead."""
    store = rig.store()
    standing = await join(store, ask)
    if not store.capabilities.expiry:
        await store.close()
    return standing


def test_a_store_has_an_address_for_log_lines(rig: Rig) -> None:
    address = rig.store().address
    assert address
    assert address.isprintable()


def test_the_first_to_join_holds(rig: Rig) -> None:
    async def test() -> None:
        standing = await join(rig.store(), make_ask("alice"))
        assert standing.held
        assert standing.ticket > 0

    rig.run(test())


def test_the_second_to_join_waits_and_gets_the_holder(rig: Rig) -> None:
    async def test() -> None:
        store = rig.store()
        if await cannot_wait(store):
            return
        first = await join(store, make_ask("alice"))
        second = await join(rig.store(), make_ask("bob"))
        assert not second.held
        assert second.holder == "alice/1"
        assert second.recheck == until_expiry(store, 30.0)
        assert second.ticket > first.ticket

    rig.run(test())


def test_only_the_first_waiter_gets_a_time_to_recheck(rig: Rig) -> None:
    async def test() -> None:
        store = rig.store()
        if await cannot_wait(store):
            return
        for owner in ("alice", "bob", "carol"):
            standing = await join(store, make_ask(owner))
        assert standing.recheck == float("inf")

    rig.run(test())


def test_a_join_that_will_not_wait_is_refused_and_leaves_no_trace(rig: Rig) -> None:
    async def test() -> None:
        store = rig.store()
        await join(store, make_ask("alice"))
        refusal = await join(store, make_ask("bob", queue=False))
        assert isinstance(refusal, Refusal)
        assert refusal.holder == "alice/1"
        assert refusal.recheck == until_expiry(store, 30.0)
        (line,) = await store.inspect()
        assert len(line.places) == 1

    rig.run(test())


def test_a_repeated_join_finds_its_own_place_and_refreshes_it(rig: Rig) -> None:
    async def test() -> None:
        store = rig.store()
        first = await join(store, make_ask("alice", ttl=5.0))
        again = await join(store, make_ask("alice", ttl=50.0))
        assert again.held
        assert again.ticket == first.ticket
        assert await expires_in(store, "alice", 45.0)
        if await cannot_wait(store):
            return
        waiting = await join(store, make_ask("bob"))
        assert (await join(store, make_ask("bob"))).ticket == waiting.ticket
        assert not (await join(store, make_ask("bob", queue=False))).held

    rig.run(test())


def test_a_renewal_lengthens_and_never_shortens(rig: Rig) -> None:
    async def test() -> None:
        store = rig.store()
        await join(store, make_ask("alice", ttl=10.0))
        standing = await renew(store, make_renewal("alice", ttl=60.0))
        assert standing.held
        assert await expires_in(store, "alice", 55.0)
        await renew(store, make_renewal("alice", ttl=1.0))
        assert await expires_in(store, "alice", 55.0)

    rig.run(test())


def test_a_renewal_never_resurrects(rig: Rig) -> None:
    async def test() -> None:
        store = rig.store()
        assert await renew(store, make_renewal("no-client")) == GONE
        await join(store, make_ask("alice"))
        await leave(store, "alice")
        assert await renew(store, make_renewal("alice")) == GONE
        await join_without_renewal(rig, make_ask("bob", ttl=0.05))
        await rig.until(lambda: gone(store))
        assert await renew(store, make_renewal("bob")) == GONE
        assert await store.inspect() == []

    async def gone(store: Store) -> bool:
        return not await store.inspect()

    rig.run(test())


def test_a_renewal_by_another_owner_does_nothing(rig: Rig) -> None:
    async def test() -> None:
        store = rig.store()
        await join(store, make_ask("alice", ttl=10.0))
        assert await renew(store, make_renewal("mallory", ttl=600.0)) == GONE
        assert await expires_in(store, "alice", 0.0, 10.0)

    rig.run(test())


def test_one_batch_renews_what_is_there_and_reports_what_is_not(rig: Rig) -> None:
    async def test() -> None:
        store = rig.store()
        await join(store, make_ask("alice", "x"))
        await join(store, make_ask("bob", "x"))
        await join(store, make_ask("carol", "y"))
        standings = await store.renew(
            [make_renewal("carol", "y"), make_renewal("bob"), make_renewal("no-client"), make_renewal("alice")], TIMEOUT
        )
        bob = PlaceState.WAITING if store.capabilities.fifo else PlaceState.GONE
        assert [standing.state for standing in standings] == [PlaceState.HELD, bob, PlaceState.GONE, PlaceState.HELD]
        assert await store.renew([], TIMEOUT) == []

    rig.run(test())


def test_only_the_owner_leaves_and_only_once(rig: Rig) -> None:
    async def test() -> None:
        store = rig.store()
        await join(store, make_ask("alice"))
        assert not await leave(store, "mallory")
        assert not await leave(store, "alice", name="another")
        assert await store.inspect("x", exact=True)
        assert await leave(store, "alice")
        assert not await leave(store, "alice")
        assert await store.inspect() == []

    rig.run(test())


def test_the_line_is_served_in_the_order_of_joining(rig: Rig) -> None:
    async def test() -> None:
        store = rig.store()
        if await cannot_wait(store):
            return
        owners = ["alice", "bob", "carol", "dave"]
        tickets = [(await join(store, make_ask(owner))).ticket for owner in owners]
        assert tickets == sorted(set(tickets))
        for position, owner in enumerate(owners):
            standings = await store.renew([make_renewal(each) for each in owners[position:]], TIMEOUT)
            assert [standing.held for standing in standings] == [
                True,
                *[False] * (len(owners) - position - 1),
            ]
            await leave(store, owner)

    rig.run(test())


def test_of_many_joins_at_once_one_holds_and_all_have_tickets_of_their_own(rig: Rig) -> None:
    async def test() -> None:
        stores = [rig.store() for _ in range(3)]
        names = ("x", "y", "z")
        outcomes: list[tuple[str, Any]] = []
        left: list[bool] = []

        async def come(number: int) -> None:
            for name in names:
                outcome = await with_retries(stores[number % 3], make_ask(f"{name}-{number}", name))
                outcomes.append((name, outcome))

        async def go(number: int) -> None:
            left.extend([await leave(stores[number % 3], f"{name}-{number}", name) for name in names])

        for number in range(6):
            rig.start(partial(come, number))
        await rig.until(lambda: len(outcomes) == 18)
        for name in names:
            given = [each for line, each in outcomes if line == name and isinstance(each, Standing)]
            assert len({standing.ticket for standing in given}) == len(given)
            held = sum(standing.held for standing in given)
            assert (len(given), held) == (6, 1) if stores[0].capabilities.fifo else held <= 1
        for number in range(6):
            rig.start(partial(go, number))
        await rig.until(lambda: len(left) == 18)
        assert await stores[0].inspect() == []

    rig.run(test())


def test_a_newcomer_does_not_overtake_a_waiter(rig: Rig) -> None:
    async def test() -> None:
        store = rig.store()
        if await cannot_wait(store) or await cannot_share(store):
            return
        await join(store, make_ask("alice", capacity=3, weight=2))
        await join(store, make_ask("bob", capacity=3, weight=3))
        assert isinstance(await join(store, make_ask("carol", capacity=3, weight=1, queue=False)), Refusal)

    rig.run(test())


def test_leaving_wakes_the_next_waiter_and_no_other(rig: Rig) -> None:
    async def test() -> None:
        alice, bob, carol = rig.store(), rig.store(), rig.store()
        if not alice.capabilities.push:
            return
        await join(alice, make_ask("alice"))
        await join(bob, make_ask("bob"))
        await join(carol, make_ask("carol"))
        await begin_to_listen(bob, "bob")
        await begin_to_listen(carol, "carol")
        await leave(alice, "alice")
        assert await bob.wait("x", "bob/1", TIMEOUT)
        assert not await carol.wait("x", "carol/1", 0.05)
        assert (await renew(bob, make_renewal("bob"))).held

    rig.run(test())


def test_a_waiter_that_gave_up_is_passed_over(rig: Rig) -> None:
    async def test() -> None:
        store = rig.store()
        if await cannot_wait(store):
            return
        for owner in ("alice", "bob", "carol"):
            await join(store, make_ask(owner))
        await leave(store, "bob")
        await leave(store, "alice")
        standing = await renew(store, make_renewal("carol"))
        assert standing.held

    rig.run(test())


def test_a_dead_holder_blocks_for_its_ttl(rig: Rig) -> None:
    async def test() -> None:
        store = rig.store()
        dead = await join_without_renewal(rig, make_ask("alice", ttl=0.1))
        got: list[Standing] = []

        async def bob_holds() -> bool:
            outcome = await join(store, make_ask("bob"))
            got.append(outcome)
            return isinstance(outcome, Standing) and outcome.held

        assert await rig.until(bob_holds) < 5.0
        assert got[-1].ticket > dead.ticket
        assert not await leave(store, "alice")

    rig.run(test())


def test_a_waiting_place_lasts_for_a_heartbeat_not_for_its_ttl(rig: Rig) -> None:
    async def test() -> None:
        store = rig.store()
        if await cannot_wait(store):
            return
        await join(store, make_ask("alice"))
        await join(store, make_ask("bob", heartbeat=3.0))
        assert await expires_in(store, "bob", 0.0, 3.0)
        await join_without_renewal(rig, make_ask("carol", heartbeat=0.05))

        async def carol_is_gone() -> bool:
            (line,) = await store.inspect()
            return all(place.owner != "carol/1" for place in line.places)

        await rig.until(carol_is_gone)
        assert await renew(store, make_renewal("carol")) == GONE

    rig.run(test())


def test_a_granted_waiter_gets_its_ttl_by_a_renewal_that_claims_it(rig: Rig) -> None:
    async def test() -> None:
        store = rig.store()
        if await cannot_wait(store):
            return
        await join(store, make_ask("alice"))
        await join(store, make_ask("bob"))
        await leave(store, "alice")
        assert await expires_in(store, "bob", 0.0, 3.0)
        assert (await renew(store, make_renewal("bob", claim=False))).held
        assert await expires_in(store, "bob", 0.0, 3.0)
        assert (await renew(store, make_renewal("bob"))).held
        assert await expires_in(store, "bob", 25.0)

    rig.run(test())


def test_readers_hold_together_and_a_writer_alone(rig: Rig) -> None:
    async def test() -> None:
        store, another = rig.store(), rig.store()
        if await cannot_read(store) or await cannot_wait(store):
            return
        assert (await join(store, reader("alice"))).held
        assert (await join(store, reader("bob"))).held
        assert (await join(another, reader("carol"))).held
        assert isinstance(await join(another, writer("dave", queue=False)), Refusal)
        assert not (await join(another, writer("dave"))).held
        assert not (await join(store, reader("erin"))).held, "a writer is not overtaken"
        assert isinstance(await join(store, reader("frank", queue=False)), Refusal)
        for owner, home in (("alice", store), ("bob", store), ("carol", another)):
            assert (await renew(store, make_renewal("erin"))).held is False
            await leave(home, owner)
        assert await rig.until(lambda: holds(another, "dave")) < 5.0
        assert not await holds(store, "erin")
        await leave(another, "dave")
        assert await rig.until(lambda: holds(store, "erin")) < 5.0

    async def holds(store: Store, owner: str) -> bool:
        standing = await renew(store, make_renewal(owner))
        return standing.held

    def reader(owner: str, **changes: Any) -> Ask:
        return make_ask(owner, capacity=WHOLE, weight=1, **changes)

    def writer(owner: str, **changes: Any) -> Ask:
        return make_ask(owner, capacity=WHOLE, weight=WHOLE, **changes)

    rig.run(test())


def test_capacity_is_shared_by_weight(rig: Rig) -> None:
    async def test() -> None:
        store = rig.store()
        if await cannot_share(store):
            return
        for owner, weight, held in (("alice", 2, True), ("bob", 2, True), ("carol", 2, False), ("dave", 1, False)):
            assert (await join(store, make_ask(owner, capacity=5, weight=weight))).held is held
        await leave(store, "alice")
        standings = await store.renew([make_renewal("carol"), make_renewal("dave")], TIMEOUT)
        assert [standing.held for standing in standings] == [True, True]

    rig.run(test())


def test_another_capacity_is_refused_until_the_line_is_empty(rig: Rig) -> None:
    async def test() -> None:
        store = rig.store()
        if await cannot_share(store):
            return
        await join(store, make_ask("alice", capacity=5))
        refusal = await join(store, make_ask("bob", capacity=4))
        assert isinstance(refusal, Refusal)
        assert refusal.capacity == 5
        await leave(store, "alice")
        assert (await join(store, make_ask("bob", capacity=4))).held

    rig.run(test())


def test_a_join_that_arrives_after_its_owner_left_is_refused(rig: Rig) -> None:
    async def test() -> None:
        store = rig.store()
        assert not await leave(store, "alice", tombstone=30.0)
        assert isinstance(await join(store, make_ask("alice")), Refusal)
        assert await store.inspect() == []
        assert (await join(store, make_ask("bob"))).held

    rig.run(test())


def test_tickets_grow_over_names_and_over_empty_lines(rig: Rig) -> None:
    async def test() -> None:
        tickets = []
        for round_ in range(3):
            store = rig.store()
            for name in ("x", "y", "z"):
                tickets.append((await join(store, make_ask(f"owner-{round_}-{name}", name))).ticket)
                await leave(store, f"owner-{round_}-{name}", name)
        assert tickets == sorted(set(tickets))
        assert tickets[-1] < 2**53

    rig.run(test())


def test_an_inspection_shows_the_line_as_it_is(rig: Rig) -> None:
    async def test() -> None:
        store = rig.store()
        await join(store, make_ask("alice", "jobs:b", metadata='{"job":1}'))
        await join(store, make_ask("bob", "jobs:b"))
        await join(store, make_ask("carol", "jobs:a"))
        await join(store, make_ask("dave", "other"))
        lines = await store.inspect("jobs:")
        assert [line.name for line in lines] == ["jobs:a", "jobs:b"]
        holder, *waiters = lines[1].places
        assert (holder.owner, json.loads(holder.metadata)) == ("alice/1", {"job": 1})
        assert holder.acquired_at is not None
        assert 0 <= lines[1].now - holder.acquired_at < 5.0
        assert [waiter.acquired_at for waiter in waiters] == ([None] if store.capabilities.fifo else [])
        assert await store.inspect("jobs:", exact=True) == []
        assert len(await store.inspect()) == 3

    rig.run(test())


def test_names_are_taken_literally(rig: Rig) -> None:
    names = ["%", "_", "a'b", 'a"b', "*", "a[b]", "ü", "日本", "a:b", "a b", "\\", "a\U0001f512"]

    async def test() -> None:
        store = rig.store()
        for number, name in enumerate(names):
            assert (await join(store, make_ask(f"owner-{number}", name))).held
        for name in names:
            assert [line.name for line in await store.inspect(name, exact=True)] == [name]
        assert sorted(line.name for line in await store.inspect("a")) == sorted(n for n in names if n.startswith("a"))
        assert [line.name for line in await store.inspect("_")] == ["_"]

    rig.run(test())


def test_a_wait_ends_at_its_timeout(rig: Rig) -> None:
    async def test() -> None:
        store = rig.store()
        await join(store, make_ask("alice"))
        await join(store, make_ask("bob"))
        await begin_to_listen(store, "bob")
        assert not await store.wait("x", "bob/1", 0.02)

    rig.run(test())
