"""The model of Redlock keeps every promise in every state, each bug put into it is found, and members do as its do."""

from __future__ import annotations

import os
from functools import cache
from math import inf

import pytest

from lockstead.core.model import Ask, Place, Renewal
from lockstead.stores.memory import _MemoryLine
from lockstead.testing.simulation.members import MemberServer, _Marker
from tests.model.checker import CounterexampleError, Report, explore
from tests.model.redlock import ADMITTED, EMPTY, FREE, JOINING, RAISING, VOTES, Client, Member, RedlockModel, Scope
from tests.model.redlock_mutants import MUTANTS

LARGE = bool(os.environ.get("LOCKSTEAD_LARGE_MODELS"))

SCOPES = {
    "fences": Scope(renewals=True),
    "lost answers": Scope(losses=1),
    "a member that loses its data": Scope(data_losses=1, acquisitions=1),
}
LARGE_SCOPES = {
    "a member that loses two ttls": Scope(data_losses=1, acquisitions=1, ttls=(1, 2)),
    "counters far apart": Scope(renewals=True, spread=3),
    "repeated joins and lost answers": Scope(losses=2, repeats=True),
    "a member that loses its data, for ever": Scope(data_losses=1, renewals=True),
    "a member that loses its data twice": Scope(data_losses=2, acquisitions=1, late_admissions=True),
    "a member that loses its data, and lost answers": Scope(data_losses=1, losses=1, acquisitions=1, renewals=True),
}


@cache
def explored(scope: Scope) -> tuple[RedlockModel, Report]:
    model = RedlockModel(scope)
    return model, explore(model)


@pytest.mark.timeout(0 if LARGE else 120)
@pytest.mark.parametrize("name", [*SCOPES, *(LARGE_SCOPES if LARGE else ())])
def test_no_state_breaks_a_promise_and_rest_can_be_reached_from_each(name: str) -> None:
    print(f"\n{name}: {explored((SCOPES | LARGE_SCOPES)[name])[1]}")


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_refuted(name: str) -> None:
    with pytest.raises(CounterexampleError) as refuted:
        explore(MUTANTS[name])
    print(f"\n{name}, after {refuted.value.states:,} states: {refuted.value}")


@pytest.mark.parametrize("name", ["fences", "a member that loses its data"])
def test_a_member_takes_every_step_as_the_model_does(name: str) -> None:
    """The embedded member's own code, in every situation that the model's members get into."""
    model, _ = explored(SCOPES[name])
    assert len(model.served) > 30
    for (member, number, client), after in model.served.items():
        server = MemberServer(clock=lambda: 0.0, floor=lambda: 0)
        server._ticket = member.counter
        if member.status != EMPTY:
            votes_at = {VOTES: -1.0, ADMITTED: 5.0}.get(member.status, inf)
            server._marker = _Marker("token", -10.0, member.longest, votes_at)
        if member.owner != FREE:
            line = server._lines["x"] = _MemoryLine(server._next_ticket)
            owner = str(member.owner)
            line._places[owner] = Place(member.ticket, owner, 1, 1, 1.0, 0.0, "{}")
        do(server, str(number), client)
        assert seen(server) == expected(after), (member, number, client)


def do(server: MemberServer, owner: str, client: Client) -> None:
    if client.phase == JOINING:
        server.join(Ask("x", owner, client.ttl, 1.0, queue=False))
    else:
        floor = client.fence if client.phase == RAISING else 0
        server.renew([Renewal("x", owner, client.ttl, 1.0, floor=floor)])


def seen(server: MemberServer) -> tuple[int, float, list[tuple[str, int]]]:
    places = [(place.owner, place.ticket) for line in server._lines.values() for place in line.places()]
    return server._ticket, server._marker.longest if server._marker else 0, places


def expected(member: Member) -> tuple[int, float, list[tuple[str, int]]]:
    places = [(str(member.owner), member.ticket)] if member.owner != FREE else []
    return member.counter, member.longest, places
