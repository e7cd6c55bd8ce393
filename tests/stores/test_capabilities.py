"""What our stores can do beyond a line, and that they do it as every store must."""

from __future__ import annotations

import pytest

from lockstead.core.store import MultiJoining, RateLimiting, Reserving
from lockstead.stores.quorum.store import Quorum
from lockstead.testing.contract.abilities import all_of, reservation
from lockstead.testing.contract.rigs import Rig
from lockstead.testing.contract.store import TIMEOUT, join, make_ask

pytestmark = pytest.mark.every_store

ABILITIES: dict[str, set[type]] = {
    "memory": {Reserving, MultiJoining, RateLimiting},
    "sqlite": {Reserving, MultiJoining, RateLimiting},
    "redis": {Reserving, MultiJoining, RateLimiting},
    "redis+sentinel": {Reserving, MultiJoining, RateLimiting},
    "redis+cluster": {Reserving, MultiJoining, RateLimiting},
    "redlock": {Reserving},
    "postgres": {Reserving, MultiJoining, RateLimiting},
    "postgres+advisory": set(),
    "quorum": {Reserving},
}


def test_a_store_has_exactly_the_optional_protocols_listed_for_it(rig: Rig, request: pytest.FixtureRequest) -> None:
    async def test() -> None:
        store = rig.store()
        kind = request.node.callspec.params["rig"].partition("-")[0]
        assert {each for each in (Reserving, MultiJoining, RateLimiting) if isinstance(store, each)} == ABILITIES[kind]
        if isinstance(store, MultiJoining):
            assert await store.join_all(all_of("alice"), TIMEOUT), "these are to be had in one step, even in a cluster"

    rig.run(test())


def test_members_of_a_quorum_that_come_back_empty_wait_for_leases_but_not_for_reservations(rig: Rig) -> None:
    async def test() -> None:
        store = rig.store()
        if not isinstance(store, Quorum):
            return
        for name, seconds in (("x", 30 * 86400.0), ("y", 1.0)):
            ask = make_ask("alice", name=name)
            await join(store, ask)
            assert await store.reserve(reservation("alice", seconds, name=name), TIMEOUT)
            longest = sorted([(await member.probe(TIMEOUT)).longest for member in store._stores])
            assert longest[len(longest) // 2] == ask.ttl

    rig.run(test())
