"""Both embedded stores against a model so naive that it is easily seen to be right."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lockstead.core.model import GONE, Ask, Refusal, Renewal, Standing
from lockstead.core.runtime import drive
from lockstead.core.store import Store
from lockstead.runtimes.threads import ThreadRuntime
from lockstead.stores.memory import MemoryServer, MemoryStore
from lockstead.stores.sqlite.store import SqliteStore

OWNERS = st.sampled_from([f"{name}/1" for name in "abcdef"])
NAMES = st.sampled_from(["x", "y"])
DURATIONS = st.sampled_from([1.0, 2.0, 5.0, 20.0])


@dataclass
class NaivePlace:
    owner: str
    ticket: int
    capacity: int
    weight: int
    expires_at: float


class NaiveLine:
    """All that is known of a line is a list; the holders are counted afresh every time."""

    def __init__(self) -> None:
        self.places: list[NaivePlace] = []
        self.refused: dict[str, float] = {}

    def purge(self, now: float) -> None:
        self.places = [place for place in self.places if place.expires_at > now]

    def holds(self, owner: str) -> bool:
        position = [place.owner for place in self.places].index(owner)
        upto = self.places[: position + 1]
        return sum(place.weight for place in upto) <= upto[0].capacity

    def find(self, owner: str) -> NaivePlace | None:
        return next((place for place in self.places if place.owner == owner), None)


class LineMachine(RuleBasedStateMachine):
    """Drives a store and the model through the same steps."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.floor = 0
        self.lines: dict[str, NaiveLine] = {}
        self.last_ticket = 0
        self.store = self.open_store()

    def open_store(self) -> Store:
        raise NotImplementedError

    def line(self, name: str) -> NaiveLine:
        line = self.lines.setdefault(name, NaiveLine())
        line.purge(self.now)
        return line

    @rule(
        name=NAMES,
        owner=OWNERS,
        ttl=DURATIONS,
        heartbeat=DURATIONS,
        capacity=st.integers(1, 3),
        data=st.data(),
        queue=st.booleans(),
    )
    def join(  # noqa: PLR0917 - hypothesis passes them by name
        self, name: str, owner: str, ttl: float, heartbeat: float, capacity: int, data: st.DataObject, queue: bool
    ) -> None:
        owner = f"{name}-{owner}"
        weight = data.draw(st.integers(1, capacity))
        ask = Ask(name, owner, ttl, heartbeat, capacity, weight, queue)
        outcome = drive(self.store.join(ask, 5.0))
        line = self.line(name)
        own = line.find(owner)
        if own is not None:
            self.refresh(line, own, ttl, heartbeat, claim=True)
            self.compare(line, own, outcome)
        elif line.places and line.places[0].capacity != capacity:
            assert isinstance(outcome, Refusal)
            assert outcome.capacity == line.places[0].capacity
        else:
            fits = sum(place.weight for place in line.places) + weight <= capacity
            if not fits and not queue:
                assert isinstance(outcome, Refusal)
                assert outcome.holder == line.places[0].owner
                return
            if line.refused.get(owner, 0.0) > self.now:
                assert outcome == Refusal()
                return
            assert isinstance(outcome, Standing)
            assert outcome.ticket > self.last_ticket
            self.last_ticket = outcome.ticket
            place = NaivePlace(owner, outcome.ticket, capacity, weight, self.now + (ttl if fits else heartbeat))
            line.places.append(place)
            self.compare(line, place, outcome)

    @rule(name=NAMES, owner=OWNERS, ttl=DURATIONS, heartbeat=DURATIONS, claim=st.booleans())
    def renew(self, name: str, owner: str, ttl: float, heartbeat: float, claim: bool) -> None:
        owner = f"{name}-{owner}"
        (standing,) = drive(self.store.renew([Renewal(name, owner, ttl, heartbeat, claim)], 5.0))
        line = self.line(name)
        own = line.find(owner)
        if own is None:
            assert standing == GONE
            return
        self.refresh(line, own, ttl, heartbeat, claim=claim)
        self.compare(line, own, standing)

    @rule(name=NAMES, owner=OWNERS, tombstone=st.sampled_from([0.0, 0.0, 3.0]))
    def leave(self, name: str, owner: str, tombstone: float) -> None:
        owner = f"{name}-{owner}"
        was_there = drive(self.store.leave(name, owner, 5.0, tombstone))
        line = self.line(name)
        own = line.find(owner)
        assert was_there is (own is not None)
        if own is not None:
            line.places.remove(own)
        if tombstone:
            line.refused[owner] = self.now + tombstone

    @rule(seconds=st.sampled_from([0.25, 1.0, 2.0, 6.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(floor=st.integers(0, 200))
    def the_wall_clock_is_set(self, floor: int) -> None:
        self.floor = floor

    @precondition(lambda self: self.lines)
    @invariant()
    def the_lines_are_the_same(self) -> None:
        for name in list(self.lines):
            expected = self.line(name)
            lines = drive(self.store.inspect(name, exact=True))
            shown = lines[0].places if lines else ()
            assert [(place.owner, place.ticket, place.weight, place.expires_at) for place in shown] == [
                (place.owner, place.ticket, place.weight, place.expires_at) for place in expected.places
            ]
            for place in shown:
                assert (place.acquired_at is not None) is expected.holds(place.owner)

    def refresh(self, line: NaiveLine, own: NaivePlace, ttl: float, heartbeat: float, *, claim: bool) -> None:
        duration = ttl if claim and line.holds(own.owner) else heartbeat
        own.expires_at = max(own.expires_at, self.now + duration)

    def compare(self, line: NaiveLine, own: NaivePlace, outcome: Any) -> None:
        assert isinstance(outcome, Standing)
        assert outcome.ticket == own.ticket
        assert outcome.held is line.holds(own.owner)

    def teardown(self) -> None:
        drive(self.store.close())


class MemoryMachine(LineMachine):
    def open_store(self) -> Store:
        return MemoryStore(ThreadRuntime(), MemoryServer(clock=lambda: self.now, floor=lambda: self.floor))


class SqliteMachine(LineMachine):
    def open_store(self) -> Store:
        self.folder = Path(tempfile.mkdtemp())
        return SqliteStore(ThreadRuntime(), self.folder / "locks.db", clock=lambda: self.now, floor=lambda: self.floor)

    def teardown(self) -> None:
        super().teardown()
        shutil.rmtree(self.folder)


class BootClockMachine(SqliteMachine):
    """With a clock that never steps back, steps that are one statement are not part of a larger transaction."""

    def open_store(self) -> Store:
        store = super().open_store()
        store._clock_may_step = False  # type: ignore[attr-defined]
        return store


_SETTINGS = settings(stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
TestMemory = MemoryMachine.TestCase
TestMemory.settings = settings(_SETTINGS, max_examples=200)
TestSqlite = SqliteMachine.TestCase
TestSqlite.settings = settings(_SETTINGS, max_examples=60)
TestSqliteOnTheBootClock = BootClockMachine.TestCase
TestSqliteOnTheBootClock.settings = settings(_SETTINGS, max_examples=60)
