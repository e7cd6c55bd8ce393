"""Single stories of elections, told on a virtual clock."""

from __future__ import annotations

from typing import Any

import pytest

from lockstead.core.model import UNKNOWN
from lockstead.core.retry import RetryPolicy
from lockstead.core.timing import margin
from lockstead.primitives.election import Contest, Leading
from lockstead.primitives.plans import Defaults
from tests.simulation.test_scenarios import Client, Stage

TTL = 10.0
JITTER = 0.01
"""What a simulated step may be late."""


class Candidate:
    """A client that stands, and when it was told what."""

    def __init__(self, stage: Stage, name: str, *, grace: float | None = None, takes: float = 0.0) -> None:
        self.stage = stage
        self.client = Client(stage, name)
        self.told: list[tuple[str, float]] = []
        self._takes = takes
        self.contest: Contest[Leading] = Contest(
            self.client.engine,
            Leading,
            "chief",
            Defaults(TTL, RetryPolicy()),
            grace=grace,
            on_elected=self._on_elected,
            on_lost=self._on_lost,
        )

    def _on_elected(self, leadership: Leading) -> None:
        self.told.append(("elected", self.stage.world.now))

    async def _on_lost(self, leadership: Leading) -> None:
        self.told.append(("lost", self.stage.world.now))
        await self.client.engine.runtime.sleep(self._takes)
        self.told.append(("ended", self.stage.world.now))

    @property
    def story(self) -> list[str]:
        return [what for what, _ in self.told]

    def when(self, what: str) -> float:
        return next(moment for told, moment in reversed(self.told) if told == what)


def tell(stage: Stage, story: Any) -> None:
    stage.run(story)
    stage.world.end()


async def passes(candidate: Candidate, seconds: float) -> None:
    await candidate.client.engine.runtime.sleep(seconds)


def expiry(stage: Stage) -> float:
    """Return when, on the world's clock, the leader's lease ends."""
    ((_, (head, *_)),) = stage.server.peek()
    return head.expires_at - stage.server.clock_offset


@pytest.mark.parametrize(("grace", "seconds"), [(None, 2.0), (0.0, 0.0), (5.0, 5.0)])
def test_a_leader_that_is_cut_off_is_notified_its_grace_before_its_lease_ends(
    grace: float | None, seconds: float
) -> None:
    stage = Stage()
    alice = Candidate(stage, "alice", grace=grace)

    async def story() -> None:
        alice.contest._start()
        await passes(alice, 25.0)
        assert alice.story == ["elected"], "renewals keep it"
        alice.client.store.partitioned_until = stage.world.now + 100
        ends = expiry(stage)
        await passes(alice, 30.0)
        early = ends - alice.when("lost")
        assert seconds < early < seconds + margin(TTL) + JITTER + 0.1

    tell(stage, story())


def test_a_leader_that_was_not_renewed_lets_the_next_in_once_it_has_stopped_and_not_before() -> None:
    stage = Stage()
    alice, bob = Candidate(stage, "alice", grace=4.0, takes=2.0), Candidate(stage, "bob")

    async def story() -> None:
        alice.contest._start()
        await passes(alice, 1.0)
        bob.contest._start()
        await passes(alice, 1.0)
        ends = expiry(stage)
        alice.client.engine.keeper.store = _Mute(alice.client.engine.keeper.store)
        await passes(alice, 20.0)
        assert alice.story == ["elected", "lost", "ended"]
        assert bob.when("elected") > alice.when("ended")
        assert bob.when("elected") < ends - 1.5, "what is left of the grace is the next one's"

    tell(stage, story())


class _Mute:
    """A keeper's store that renews nothing, but leaves when it is told to."""

    def __init__(self, store: Any) -> None:
        self._store = store

    async def renew(self, renewals: Any, timeout: float) -> Any:
        return [UNKNOWN for _ in renewals]

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self._store, attribute)


def test_an_on_lost_that_takes_for_ever_keeps_the_lock_for_a_ttl_at_the_most() -> None:
    stage = Stage()
    alice, bob = Candidate(stage, "alice", takes=1000.0), Candidate(stage, "bob")

    async def story() -> None:
        alice.contest._start()
        await passes(alice, 1.0)
        bob.contest._start()
        await passes(alice, 7.0)
        asked = stage.world.now
        await alice.contest._stop()
        assert stage.world.now - asked < TTL + JITTER
        await passes(alice, 1.0)
        assert alice.story == ["elected", "lost"]
        assert TTL * 0.8 < bob.when("elected") - asked < TTL + JITTER

    tell(stage, story())


def test_a_stop_while_on_lost_runs_waits_for_it() -> None:
    stage = Stage()
    alice = Candidate(stage, "alice", takes=3.0)

    async def story() -> None:
        alice.contest._start()
        await passes(alice, 1.0)
        await alice.contest._stop()
        assert alice.story == ["elected", "lost", "ended"]
        assert stage.server.peek() in ([], [("chief", [])])

    tell(stage, story())


def test_a_leader_stands_again_after_an_outage_and_the_line_goes_on_without_the_dead() -> None:
    stage = Stage()
    alice, bob = Candidate(stage, "alice"), Candidate(stage, "bob")

    async def story() -> None:
        for candidate in (alice, bob):
            candidate.contest._start()
            await passes(alice, 1.0)
        alice.client.store.partitioned_until = stage.world.now + 60
        await passes(alice, 70.0)
        assert alice.story == ["elected", "lost", "ended"]
        assert bob.story == ["elected"]
        bob.client.process.crash()
        crashed = stage.world.now
        await passes(alice, 20.0)
        assert alice.story == ["elected", "lost", "ended", "elected"]
        assert alice.when("elected") - crashed < TTL + JITTER

    tell(stage, story())


def test_a_candidate_that_stops_while_waiting_does_not_stand_again() -> None:
    stage = Stage()
    alice, bob = Candidate(stage, "alice"), Candidate(stage, "bob")

    async def story() -> None:
        for candidate in (alice, bob):
            candidate.contest._start()
            await passes(alice, 1.0)
        await bob.contest._stop()
        for _ in range(20):
            await passes(alice, 0.25)
            ((_, places),) = stage.server.peek()
            assert [place.owner for place in places] == ["alice/1"]

    tell(stage, story())
