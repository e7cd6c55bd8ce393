"""Scenarios of elections: one sequence of events each, on a virtual clock."""

from __future__ import annotations

from typing import Any

import pytest

from lockstead.core.model import UNKNOWN
from lockstead.core.retry import RetryPolicy
from lockstead.core.timing import margin
from lockstead.primitives.candidate import CandidateElection, Running, Term
from lockstead.primitives.plans import Defaults
from tests.simulation.test_scenarios import Client, Setup

TTL = 10.0
JITTER = 0.01
"""What a simulated step may be late."""


class Candidate:
    """A client that is a candidate, and when which of its callbacks was called."""

    def __init__(self, setup: Setup, name: str, *, grace: float | None = None, takes: float = 0.0) -> None:
        self.setup = setup
        self.client = Client(setup, name)
        self._timed_calls: list[tuple[str, float]] = []
        self._takes = takes
        self.running: Running = set()
        self.election: CandidateElection[Term] = CandidateElection(
            self.client.engine,
            Term,
            self.running,
            "chief",
            Defaults(TTL, RetryPolicy()),
            grace=grace,
            on_elected=self._on_elected,
            on_lost=self._on_lost,
        )

    def _on_elected(self, leadership: Term) -> None:
        self._timed_calls.append(("elected", self.setup.world.now))

    async def _on_lost(self, leadership: Term) -> None:
        self._timed_calls.append(("lost", self.setup.world.now))
        await self.client.engine.runtime.sleep(self._takes)
        self._timed_calls.append(("ended", self.setup.world.now))

    @property
    def calls(self) -> list[str]:
        return [what for what, _ in self._timed_calls]

    def when(self, what: str) -> float:
        return next(moment for call, moment in reversed(self._timed_calls) if call == what)


def run_scenario(setup: Setup, scenario: Any) -> None:
    setup.run(scenario)
    setup.world.end()


async def sleep(candidate: Candidate, seconds: float) -> None:
    await candidate.client.engine.runtime.sleep(seconds)


def expiry(setup: Setup) -> float:
    """Return when, on the world's clock, the leader's lease ends."""
    ((_, (head, *_)),) = setup.server.peek()
    return head.expires_at - setup.server.clock_offset


@pytest.mark.parametrize(("grace", "seconds"), [(None, 2.0), (0.0, 0.0), (5.0, 5.0)])
def test_a_leader_that_is_cut_off_is_notified_its_grace_before_its_lease_ends(
    grace: float | None, seconds: float
) -> None:
    setup = Setup()
    alice = Candidate(setup, "alice", grace=grace)

    async def scenario() -> None:
        alice.election._start()
        await sleep(alice, 25.0)
        assert alice.calls == ["elected"], "renewals keep it"
        alice.client.store.partitioned_until = setup.world.now + 100
        ends = expiry(setup)
        await sleep(alice, 30.0)
        early = ends - alice.when("lost")
        assert seconds < early < seconds + margin(TTL) + JITTER + 0.1

    run_scenario(setup, scenario())


def test_a_leader_that_was_not_renewed_lets_the_next_in_once_it_has_stopped_and_not_before() -> None:
    setup = Setup()
    alice, bob = Candidate(setup, "alice", grace=4.0, takes=2.0), Candidate(setup, "bob")

    async def scenario() -> None:
        alice.election._start()
        await sleep(alice, 1.0)
        bob.election._start()
        await sleep(alice, 1.0)
        ends = expiry(setup)
        alice.client.engine.keeper.store = _Mute(alice.client.engine.keeper.store)
        await sleep(alice, 20.0)
        assert alice.calls == ["elected", "lost", "ended"]
        assert bob.when("elected") > alice.when("ended")
        assert bob.when("elected") < ends - 1.5, "what is left of the grace is the next one's"

    run_scenario(setup, scenario())


class _Mute:
    """A keeper's store that renews nothing, but releases."""

    def __init__(self, store: Any) -> None:
        self._store = store

    async def renew(self, renewals: Any, timeout: float) -> Any:
        return [UNKNOWN for _ in renewals]

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self._store, attribute)


def test_an_on_lost_that_takes_for_ever_keeps_the_lock_for_a_ttl_at_the_most() -> None:
    setup = Setup()
    alice, bob = Candidate(setup, "alice", takes=1000.0), Candidate(setup, "bob")

    async def scenario() -> None:
        alice.election._start()
        await sleep(alice, 1.0)
        bob.election._start()
        await sleep(alice, 7.0)
        asked = setup.world.now
        await alice.election._stop()
        assert setup.world.now - asked < TTL + JITTER
        await sleep(alice, 1.0)
        assert alice.calls == ["elected", "lost"]
        assert TTL * 0.8 < bob.when("elected") - asked < TTL + JITTER

    run_scenario(setup, scenario())


def test_a_stop_while_on_lost_runs_waits_for_it() -> None:
    setup = Setup()
    alice = Candidate(setup, "alice", takes=3.0)

    async def scenario() -> None:
        alice.election._start()
        await sleep(alice, 1.0)
        await alice.election._stop()
        assert alice.calls == ["elected", "lost", "ended"]
        assert setup.server.peek() in ([], [("chief", [])])

    run_scenario(setup, scenario())


def test_a_leader_campaigns_again_after_an_outage_and_dead_candidates_are_passed_over() -> None:
    setup = Setup()
    alice, bob = Candidate(setup, "alice"), Candidate(setup, "bob")

    async def scenario() -> None:
        for candidate in (alice, bob):
            candidate.election._start()
            await sleep(alice, 1.0)
        alice.client.store.partitioned_until = setup.world.now + 60
        await sleep(alice, 70.0)
        assert alice.calls == ["elected", "lost", "ended"]
        assert bob.calls == ["elected"]
        bob.client.process.crash()
        crashed = setup.world.now
        await sleep(alice, 20.0)
        assert alice.calls == ["elected", "lost", "ended", "elected"]
        assert alice.when("elected") - crashed < TTL + JITTER

    run_scenario(setup, scenario())


def test_closing_a_client_stops_its_candidate_at_once_even_during_an_outage() -> None:
    setup = Setup()
    alice = Candidate(setup, "alice")

    async def scenario() -> None:
        alice.client.store.partitioned_until = setup.world.now + 100
        alice.election._start()
        await sleep(alice, 5.0)
        await alice.client.engine.close(alice.running)
        assert alice.election._candidate is None
        assert not alice.running
        assert alice.calls == []

    run_scenario(setup, scenario())


def test_a_candidate_that_stops_while_waiting_does_not_campaign_again() -> None:
    setup = Setup()
    alice, bob = Candidate(setup, "alice"), Candidate(setup, "bob")

    async def scenario() -> None:
        for candidate in (alice, bob):
            candidate.election._start()
            await sleep(alice, 1.0)
        await bob.election._stop()
        for _ in range(20):
            await sleep(alice, 0.25)
            ((_, places),) = setup.server.peek()
            assert [place.owner for place in places] == ["alice/1"]

    run_scenario(setup, scenario())
