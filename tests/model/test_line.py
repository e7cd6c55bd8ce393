"""The model of a line keeps every promise in every state, each bug put into it is found, and stores do as it does."""

from __future__ import annotations

import os
from functools import cache

import pytest

from lockstead.core import rule
from lockstead.core.model import Ask, Place, Refusal, Renewal, Standing
from lockstead.stores.memory import _MemoryLine
from tests.model.checker import CounterexampleError, Report, explore
from tests.model.line import LineModel, Outcome, Owner, Request, Scope
from tests.model.line import Place as ModelPlace
from tests.model.line_mutants import MUTANTS

LARGE = bool(os.environ.get("LOCKSTEAD_LARGE_MODELS"))

SCOPES = {
    "two clients and a fault": Scope(faults=1),
    "three clients": Scope(clients=3, ttl=2, faults=0),
    "two permits": Scope(capacity=2, ttl=2, late_request_window=2, faults=1),
    "slow requests": Scope(clients=1, ttl=4, late_request_window=6, faults=2, slow=True),
    "a clock set back": Scope(faults=0, clock_steps=2),
}
LARGE_SCOPES = {
    "three clients and two permits": Scope(clients=3, capacity=2, faults=0),
    "two clients and two faults": Scope(faults=2),
    "two clients and three faults": Scope(ttl=2, late_request_window=2, faults=3),
    "two requests at a time, and slow ones": Scope(ttl=2, late_request_window=2, faults=1, awaited=2, slow=True),
    "three clients and a fault": Scope(clients=3, ttl=2, late_request_window=2, faults=1),
    "a clock set back, and a fault": Scope(faults=1, clock_steps=2),
}


@cache
def explored(scope: Scope) -> tuple[LineModel, Report]:
    model = LineModel(scope)
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


@pytest.mark.parametrize("name", SCOPES)
def test_the_rule_takes_every_step_as_the_model_does(name: str) -> None:
    """The very code of the embedded stores, in every situation that the model's store gets into."""
    scope = SCOPES[name]
    model, _ = explored(scope)
    assert len(model.served) > 100
    for (line, barred, request, last), outcome in model.served.items():
        ledger = _MemoryLine(lambda _, last=last: last + 1)  # type: ignore[misc]
        ledger.catch_up(0.0)
        for place in line:
            held_since = 0.0 if place.holds else None
            owner = f"{place.ticket}" if place.owner.whose > 1 else owner_name(place.owner)
            ledger._places[owner] = Place(place.ticket, owner, scope.capacity, 1, place.expires_in, held_since, "{}")
        for each, left in barred:
            ledger.add_tombstone(owner_name(each), left)
        assert do(ledger, scope, request) == expected(outcome), (line, barred, request)


def owner_name(owner: Owner) -> str:
    return f"{owner.client}/{owner.whose}"


Seen = tuple[list[tuple[int, float, bool]], list[float], int, list[str]]


def do(ledger: _MemoryLine, scope: Scope, request: Request) -> Seen:
    name = owner_name(request.owner)
    standing: Standing | Refusal | None = None
    if request.kind == "join":
        standing, woken = rule.join(ledger, Ask("x", name, scope.ttl, scope.heartbeat, scope.capacity), 0.0)
    elif request.kind == "renew":
        standing, woken = rule.renew(ledger, Renewal("x", name, scope.ttl, scope.heartbeat), 0.0)
    else:
        _, woken = rule.leave(ledger, name, 0.0, float(scope.late_request_window * request.tombstone))
    answer = 0
    if isinstance(standing, Standing):
        answer = standing.ticket if standing.held else -standing.ticket
    places = [(place.ticket, place.expires_at, place.acquired_at is not None) for place in ledger.places()]
    return places, sorted(ledger._tombstones.values()), answer, [place.owner for place in woken]


def expected(outcome: Outcome) -> Seen:
    places = [(place.ticket, float(place.expires_in), place.holds) for place in outcome.line]
    woken = [f"{ticket_of(outcome.line, owner)}" if owner.whose > 1 else owner_name(owner) for owner in outcome.woken]
    return places, sorted(float(left) for _, left in outcome.barred), outcome.answer, woken


def ticket_of(line: tuple[ModelPlace, ...], owner: Owner) -> int:
    return next(place.ticket for place in line if place.owner == owner)
