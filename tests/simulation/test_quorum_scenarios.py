"""Scenarios of a quorum: one sequence of events each, on a virtual clock."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Coroutine
from math import inf
from typing import Any

import pytest

from lockstead.core import inspection
from lockstead.core.engine import Engine
from lockstead.core.lease import PLACE_GONE, Claim, Lease
from lockstead.core.model import Ask, Refusal, Renewal, Standing
from lockstead.core.refusals import Busy
from lockstead.core.retry import RetryPolicy
from lockstead.errors import InvalidInputError, LockAcquisitionError, LockLostError, StoreError
from lockstead.runtimes.simulated import Process, Task, World
from lockstead.stores.quorum import members
from lockstead.stores.quorum.members import ADMISSION_WAIT
from lockstead.stores.quorum.store import TICKET_LEAD, Quorum
from lockstead.testing import Faults, QuorumMonitor, SimulatedMember, SimulatedMemberStore
from tests.simulation.mutation import mutated
from tests.simulation.quorum_mutants import MUTANTS

RETRY = RetryPolicy(max_retries=3, retry_delay=0.05)


class Setup:
    """Members, and as many clients as a scenario needs."""

    def __init__(self, members: int) -> None:
        self.world = World(seed=0)
        self.members = [SimulatedMember(self.world, Faults()) for _ in range(members)]
        self.monitor = QuorumMonitor(self.world, self.members[0])
        self.claims: list[Claim] = []

    def client(self, name: str) -> Client:
        return Client(self, name)

    def run(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run one more task to its end, together with everything else."""
        task = Process(self.world, "scenario").start(work)
        try:
            while not task.finished:
                assert self.world.step(), "the scenario has no next step"
                self.monitor.check()
        finally:
            self.world.end()
        task.outcome()

    def holders(self, name: str = "x") -> list[str]:
        return [
            place.owner for member in self.members for line, places in member.peek() for place in places if line == name
        ]


class Client:
    def __init__(self, setup: Setup, name: str) -> None:
        self.setup = setup
        self.process = Process(setup.world, name)
        self.links = [SimulatedMemberStore(self.process, member) for member in setup.members]
        names = [f"m{number}" for number in range(len(self.links))]
        self.quorum = Quorum(self.links[0].runtime, self.links, names, clock=lambda: -TICKET_LEAD)
        self.engine = Engine(self.quorum, lambda: name)
        self.runtime = self.engine.runtime
        setup.monitor.add(self.process, self.engine)

    async def acquire(self, *, ttl: float = 9.0, timeout: float = inf, **ask: Any) -> Lease:
        claim = Claim()
        self.setup.claims.append(claim)
        request = Ask("x", "", ttl, min(ttl, 3.0), queue=timeout > 0)._replace(**ask)
        outcome = await self.engine.acquire(request, claim, timeout=timeout, retry=RETRY)
        if isinstance(outcome, Busy):
            raise outcome.error(self.engine.holder_id)
        return outcome

    def starts(self, work: Coroutine[Any, Any, Any]) -> Task[Any]:
        return self.process.start(work)

    def is_cut_off_from(self, *numbers: int, until: float = inf) -> None:
        for number, link in enumerate(self.links):
            link.partitioned_until = until if number in numbers else 0.0


@pytest.fixture(params=[3, 5])
def setup(request: pytest.FixtureRequest) -> Setup:
    return Setup(request.param)


async def until(setup: Setup, condition: Callable[[], Any], seconds: float = 200.0) -> float:
    """Wait for a condition, and return when it became true."""
    runtime = SimulatedMemberStore(Process(setup.world, "observer"), setup.members[0]).runtime
    latest = setup.world.now + seconds
    while not condition():
        assert setup.world.now < latest, f"not met within {seconds:g} s"
        await runtime.sleep(0.005)
    return setup.world.now


def test_new_servers_vote_at_the_first_acquire(setup: Setup) -> None:
    alice, bob = setup.client("alice"), setup.client("bob")

    async def scenario() -> None:
        lease = await alice.acquire()
        assert setup.world.now < 0.05
        assert setup.holders() == ["alice/1"] * len(setup.members)
        with pytest.raises(LockAcquisitionError, match="held by alice"):
            await bob.acquire(timeout=0.0)
        waits = bob.starts(bob.acquire())
        await bob.runtime.sleep(0.1)
        await alice.engine.release(lease)
        released = setup.world.now
        assert await until(setup, lambda: waits.finished) - released < RETRY.max_delay + 0.05
        assert waits.outcome().fence > lease.fence

    setup.run(scenario())


def test_the_loser_of_a_race_leaves_nothing(setup: Setup) -> None:
    alice, bob = setup.client("alice"), setup.client("bob")

    async def scenario() -> None:
        first, second = alice.starts(alice.acquire()), bob.starts(bob.acquire())
        await until(setup, lambda: first.finished or second.finished)
        await alice.runtime.sleep(1.0)
        assert len(set(setup.holders())) == 1

    setup.run(scenario())


def test_a_timeout_is_kept(setup: Setup) -> None:
    alice, bob = setup.client("alice"), setup.client("bob")

    async def scenario() -> None:
        await alice.acquire(ttl=30.0)
        began = setup.world.now
        with pytest.raises(LockAcquisitionError) as refusal:
            await bob.acquire(timeout=2.5)
        assert 2.5 <= setup.world.now - began < 2.6
        assert refusal.value.attempts > 3

    setup.run(scenario())


def test_a_dead_minority_costs_one_timeout_once(setup: Setup) -> None:
    alice = setup.client("alice")

    async def scenario() -> None:
        await alice.engine.release(await alice.acquire())
        for member in setup.members[: (len(setup.members) - 1) // 2]:
            member.stall(60.0)
        began = setup.world.now
        await alice.engine.release(await alice.acquire())
        assert setup.world.now - began < 0.3
        for _ in range(20):
            began = setup.world.now
            await alice.engine.release(await alice.acquire())
            assert setup.world.now - began < 0.05
        lease = await alice.acquire(ttl=1.0)
        await alice.runtime.sleep(30.0)
        assert lease.is_held(alice.process.now())
        await until(setup, lambda: setup.world.now > 62.0)
        await alice.engine.release(await alice.acquire(name="y"))
        assert not any(node.suspected for node in alice.quorum._members._states)

    setup.run(scenario())


def test_a_dead_majority_is_named(setup: Setup) -> None:
    alice = setup.client("alice")

    async def scenario() -> None:
        await alice.engine.release(await alice.acquire())
        for member in setup.members[1:]:
            member.stall(60.0)
        with pytest.raises(StoreError, match=f"only 1 of {len(setup.members)} nodes answered: m1: the sim") as failure:
            await alice.acquire(timeout=2.0)
        assert failure.value.transient
        await until(setup, lambda: setup.world.now > 62.0)
        await until(setup, lambda: not setup.holders())
        await alice.acquire(timeout=2.0)

    setup.run(scenario())


def test_a_request_that_all_members_refuse_is_not_repeated(setup: Setup) -> None:
    alice = setup.client("alice")
    asked: list[Ask] = []

    async def join(ask: Ask, timeout: float) -> Any:
        asked.append(ask)
        raise StoreError("wrong password")

    async def scenario() -> None:
        await alice.engine.release(await alice.acquire())
        for link in alice.links:
            link.join = join  # type: ignore[method-assign]
        with pytest.raises(StoreError, match="wrong password") as failure:
            await alice.acquire()
        assert not failure.value.transient
        assert len(asked) == len(setup.members)
        assert not alice.engine.keeper.leases
        assert not alice.quorum._placements

    setup.run(scenario())


def test_a_silent_member_receives_a_release_when_it_is_back(setup: Setup) -> None:
    alice = setup.client("alice")

    async def scenario() -> None:
        lease = await alice.acquire(ttl=60.0)
        alice.is_cut_off_from(0, until=setup.world.now + 5.0)
        await alice.engine.release(lease)
        assert setup.holders() == ["alice/1"]
        assert not alice.engine.keeper.leases
        assert await until(setup, lambda: not setup.holders()) < 7.0

    setup.run(scenario())


def test_a_lease_that_too_few_can_confirm_is_not_lost_before_its_time(setup: Setup) -> None:
    """Held on just a majority, one of which is silent: nothing is proved, either way."""
    alice = setup.client("alice")

    async def scenario() -> None:
        await alice.engine.release(await alice.acquire())
        minority = range((len(setup.members) - 1) // 2)
        alice.is_cut_off_from(*minority)
        lease = await alice.acquire(ttl=9.0)
        assert len(setup.holders()) == alice.quorum._majority
        alice.is_cut_off_from(len(setup.members) - 1, until=setup.world.now + 5.0)
        with pytest.raises(StoreError, match="held as before") as failure:
            await alice.engine.extend(lease, 20.0)
        assert failure.value.transient
        assert lease.is_held(alice.process.now())
        await alice.runtime.sleep(30.0)
        assert lease.is_held(alice.process.now()), "renewed once it was back"
        await alice.engine.release(lease)

    setup.run(scenario())


def test_a_lease_is_lost_once_a_majority_cannot_hold_it(setup: Setup) -> None:
    alice, bob = setup.client("alice"), setup.client("bob")

    async def scenario() -> None:
        lease = await alice.acquire(ttl=9.0)
        assert await inspection.force_release(bob.engine, "x") is not None
        await until(setup, lambda: lease.loss is not None)
        assert lease.loss == PLACE_GONE
        again = await alice.acquire(ttl=9.0)
        await inspection.force_release(bob.engine, "x")
        with pytest.raises(LockLostError, match="no place for it any more when it was released"):
            await alice.engine.release(again)

    setup.run(scenario())


def test_a_member_that_came_back_empty_votes_only_when_it_is_safe(
    setup: Setup, caplog: pytest.LogCaptureFixture
) -> None:
    alice, bob = setup.client("alice"), setup.client("bob")

    async def scenario() -> None:
        await alice.acquire(ttl=20.0)
        emptied_member = setup.members[0]
        emptied_member.lose_data()
        emptied = setup.world.now
        with pytest.raises(LockAcquisitionError, match="held by alice"):
            await bob.acquire(timeout=0.0)
        votes = await until(setup, emptied_member.votes)
        assert 19.9 < votes - emptied < 25.0
        assert (await bob.quorum.health())[0].votes_in == 0
        await until(setup, lambda: "m0 has been admitted" in caplog.text)

    with caplog.at_level(logging.INFO, "lockstead"):
        setup.run(scenario())
    assert "Redlock node m0 is new or has restarted empty" in caplog.text, "bob has never seen it vote"


def test_a_member_that_stops_answering_is_logged_once_and_once_when_it_is_back(
    setup: Setup, caplog: pytest.LogCaptureFixture
) -> None:
    alice = setup.client("alice")
    total = len(setup.members)

    def warnings() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]

    async def scenario() -> None:
        await alice.engine.release(await alice.acquire())
        alice.is_cut_off_from(0)
        for _ in range(5):
            await alice.engine.release(await alice.acquire())
            await alice.runtime.sleep(1.0)
        (beginning,) = warnings()
        assert beginning.startswith("Redlock node m0 fails (the simulated server did not answer")
        assert beginning.endswith(f"): {total - 1} of {total} nodes left; probing it in the background")
        alice.is_cut_off_from()
        await until(setup, lambda: len(warnings()) > 1)
        pattern = rf"Redlock node m0 works again after \d+\.\d s: {total} of {total} nodes work"
        assert re.fullmatch(pattern, warnings()[1])
        await alice.engine.release(await alice.acquire())
        assert len(warnings()) == 2

    setup.run(scenario())


def test_a_member_that_is_back_empty_is_not_logged_as_working(setup: Setup, caplog: pytest.LogCaptureFixture) -> None:
    alice = setup.client("alice")
    total = len(setup.members)

    def logged(text: str) -> list[str]:
        return [record.getMessage() for record in caplog.records if text in record.getMessage()]

    async def scenario() -> None:
        await alice.engine.release(await alice.acquire())
        alice.is_cut_off_from(0)
        await alice.engine.release(await alice.acquire())
        await until(setup, lambda: logged("m0 fails"))
        setup.members[0].lose_data()
        alice.is_cut_off_from()
        await until(setup, lambda: logged("m0 answers now"))
        (line,) = logged("nodes work")
        pattern = (
            r"Redlock node m0 answers now but has restarted empty, and does not vote yet, after \d+\.\d s: "
            rf"{total - 1} of {total} nodes work"
        )
        assert re.fullmatch(pattern, line)
        await until(setup, lambda: len(logged("m0 has been admitted")) == 2)  # the first time, as a new server
        alice.is_cut_off_from(1)
        await alice.engine.release(await alice.acquire())
        await until(setup, lambda: logged("m1 fails"))
        assert f"{total - 1} of {total} nodes left" in logged("m1 fails")[0]

    with caplog.at_level(logging.INFO, "lockstead"):
        setup.run(scenario())


def test_new_members_that_several_clients_meet_at_once_are_not_logged_as_empty(
    setup: Setup, caplog: pytest.LogCaptureFixture
) -> None:
    clients = [setup.client(f"client{number}") for number in range(8)]

    async def scenario() -> None:
        for client in clients:
            client.process.start(client.acquire())
            await clients[0].runtime.sleep(0.0007)
        await until(setup, lambda: len(setup.holders()) == len(setup.members))
        await clients[0].runtime.sleep(8.0)

    with caplog.at_level(logging.INFO, "lockstead"):
        setup.run(scenario())
    assert "m0 has been admitted: it votes" in caplog.text
    assert "empty" not in caplog.text


def test_a_member_that_was_empty_before_a_client_knew_it_may_be_new(
    setup: Setup, caplog: pytest.LogCaptureFixture
) -> None:
    alice, bob = setup.client("alice"), setup.client("bob")

    async def scenario() -> None:
        await alice.engine.release(await alice.acquire(ttl=60.0))
        setup.members[0].lose_data()
        await bob.engine.release(await bob.acquire())
        assert "empty" not in caplog.text
        await bob.runtime.sleep(5.0)

    setup.run(scenario())
    said = [record.getMessage() for record in caplog.records if "empty" in record.getMessage()]
    assert said == ["Redlock node m0 is new or has restarted empty: it does not vote until admitted"]


def test_a_member_that_never_answered_is_no_warning(setup: Setup, caplog: pytest.LogCaptureFixture) -> None:
    alice = setup.client("alice")
    bob = setup.client("bob")

    async def scenario() -> None:
        await bob.engine.release(await bob.acquire())  # so that the members vote
        alice.is_cut_off_from(0)
        await alice.engine.release(await alice.acquire())
        await alice.runtime.sleep(5.0)

    with caplog.at_level(logging.INFO, "lockstead"):
        setup.run(scenario())
    said = [record for record in caplog.records if "m0 fails" in record.getMessage()]
    assert [record.levelno for record in said] == [logging.INFO]


def test_releases_dropped_because_too_many_are_pending_are_logged_once(
    setup: Setup, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "MAX_PENDING_RELEASES", 1)
    alice = setup.client("alice")

    async def scenario() -> None:
        leases = [await alice.acquire(name=name) for name in "xyz"]
        alice.is_cut_off_from(0)
        for lease in leases:
            await alice.engine.release(lease)
        await alice.runtime.sleep(5.0)

    setup.run(scenario())
    said = [record.getMessage() for record in caplog.records if "dropped" in record.getMessage()]
    (line,) = said
    assert line.startswith("Redlock node m0: 1 releases are pending: the release of 'y' and later ones are dropped, ")


def test_an_error_names_members_that_do_not_vote_yet(setup: Setup) -> None:
    alice, bob = setup.client("alice"), setup.client("bob")

    async def scenario() -> None:
        await alice.engine.release(await alice.acquire(ttl=20.0))
        for member in setup.members[: alice.quorum._majority]:
            member.lose_data()
        with pytest.raises(StoreError, match="too few nodes vote: m0: restarted empty, and waits") as failure:
            await alice.acquire(timeout=1.0)
        assert failure.value.transient
        await alice.runtime.sleep(6.0)
        health = await alice.quorum.health()
        assert 0 < health[0].votes_in < 20.0
        with pytest.raises(StoreError, match=r"restarted empty, and votes in \d+ s"):
            await bob.acquire(timeout=1.0)
        await bob.runtime.sleep(20.0)
        await bob.acquire(timeout=1.0)

    setup.run(scenario())


def test_health_names_silent_members(setup: Setup) -> None:
    alice = setup.client("alice")

    async def scenario() -> None:
        await alice.engine.release(await alice.acquire())
        alice.is_cut_off_from(1)
        silent = [health for health in await alice.quorum.health() if not health.reachable]
        assert [(health.name, health.votes_in) for health in silent] == [("m1", inf)]
        assert "did not answer" in silent[0].error

    setup.run(scenario())


def test_a_deployment_that_was_interrupted_is_finished_by_the_next(setup: Setup) -> None:
    alice = setup.client("alice")

    async def scenario() -> None:
        token = setup.members[0].probe().token
        setup.members[0].admit(token, 0, 0.0)
        with pytest.raises(StoreError, match="waits for the other nodes to admit it"):
            await alice.acquire(timeout=0.0)
        await alice.runtime.sleep(9.0 + 2 * ADMISSION_WAIT)  # the first gave it a place, for so long
        await alice.acquire(timeout=0.0)

    setup.run(scenario())


def test_new_servers_wait_until_all_of_them_were_seen(setup: Setup) -> None:
    """The one that is silent may have been there for long."""
    alice = setup.client("alice")

    async def scenario() -> None:
        setup.members[0].stall(10.0)
        with pytest.raises(StoreError):
            await alice.acquire(timeout=3.0)
        assert not any(member.votes() for member in setup.members)
        await until(setup, lambda: setup.world.now > 12.0)
        await alice.acquire(timeout=0.0)

    setup.run(scenario())


def fences_grow_though_only_a_forgetful_member_is_common() -> None:
    setup = Setup(3)
    alice, bob = setup.client("alice"), setup.client("bob")

    async def scenario() -> None:
        await alice.engine.release(await alice.acquire(ttl=1.0, name="warm-up"))
        setup.members[0]._ticket = 1000
        alice.is_cut_off_from(2)
        lease = await alice.acquire(ttl=1.0)
        assert lease.fence > 1000
        await alice.engine.release(lease)
        setup.members[0].lose_data()
        await bob.quorum._members.bootstrap()
        await until(setup, setup.members[0].votes)
        bob.is_cut_off_from(1)
        assert (await bob.acquire()).fence > lease.fence

    setup.run(scenario())


def fences_grow_though_the_next_majority_drew_lower_tickets() -> None:
    setup = Setup(3)
    alice, bob = setup.client("alice"), setup.client("bob")

    async def scenario() -> None:
        await alice.engine.release(await alice.acquire(name="warm-up"))
        setup.members[0]._ticket = 1000
        alice.is_cut_off_from(2)
        lease = await alice.acquire()
        await alice.engine.release(lease)
        bob.is_cut_off_from(0)
        assert (await bob.acquire()).fence > lease.fence

    setup.run(scenario())


def a_forgetful_member_waits_for_what_was_extended() -> None:
    setup = Setup(3)
    alice, bob = setup.client("alice"), setup.client("bob")

    async def scenario() -> None:
        await alice.engine.release(await alice.acquire(ttl=1.0, name="warm-up"))
        alice.is_cut_off_from(2)
        lease = await alice.acquire(ttl=1.0)
        await alice.engine.extend(lease, 60.0)
        setup.members[0].lose_data()
        waits = bob.starts(bob.acquire(ttl=1.0))
        alice.is_cut_off_from(0, 1, 2)
        await bob.runtime.sleep(50.0)
        assert not waits.finished
        await until(setup, lambda: waits.finished)
        assert not lease.is_held(alice.process.now())

    setup.run(scenario())


def the_memories_of_a_minority_do_not_suffice_to_admit() -> None:
    setup = Setup(5)
    alice, bob = setup.client("alice"), setup.client("bob")

    async def scenario() -> None:
        await alice.engine.release(await alice.acquire(ttl=1.0, name="warm-up"))
        alice.is_cut_off_from(3, 4)
        await alice.acquire(ttl=60.0)
        setup.members[0].lose_data()
        for member in setup.members[1:3]:
            member.stall(30.0)
        with pytest.raises(StoreError):
            await bob.acquire(ttl=1.0, timeout=10.0)
        assert not setup.members[0].votes()
        await until(setup, lambda: setup.world.now > 32.0)
        await until(setup, lambda: setup.members[0].probe().votes_in < inf)
        assert setup.members[0].probe().votes_in > 25.0

    setup.run(scenario())


def a_lease_that_too_few_confirm_ends_before_another_begins() -> None:
    setup = Setup(3)
    alice, bob = setup.client("alice"), setup.client("bob")

    async def scenario() -> None:
        await alice.engine.release(await alice.acquire())
        alice.is_cut_off_from(0)
        lease = await alice.acquire(ttl=2.0)
        alice.is_cut_off_from(2)
        await bob.acquire(timeout=10.0)
        assert lease.loss == "it could not be renewed in time"

    setup.run(scenario())


def an_admission_is_for_the_emptiness_it_was_gathered_for() -> None:
    member = Setup(3).members[0]
    stale = member.probe().token
    member.lose_data()
    member.probe()
    assert member.admit(stale, 0, 0.0).votes_in == inf


def a_round_that_took_too_long_does_not_count() -> None:
    """A member may have come back empty during it, and been admitted by others that had not voted in it yet."""
    setup = Setup(3)
    alice = setup.client("alice")
    ask = Ask("x", "alice/7", 30.0, 3.0, queue=False)

    async def scenario() -> None:
        await alice.engine.release(await alice.acquire(name="warm-up"))
        assert isinstance(await alice.quorum.join(ask, 5.0), Standing)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("lockstead.stores.quorum.store.LONGEST_ROUND", 0.0001)
            (renewed,) = await alice.quorum.renew([Renewal("x", "alice/7", 30.0, 3.0)], 5.0)
            assert renewed is not None
            assert not renewed.held
            with pytest.raises(StoreError, match="in time"):
                await alice.quorum.join(ask, 5.0)

    setup.run(scenario())


def a_member_that_came_back_empty_votes_again() -> None:
    setup = Setup(3)
    alice = setup.client("alice")

    async def scenario() -> None:
        await alice.acquire(ttl=1.0)
        setup.members[0].lose_data()
        await alice.acquire(ttl=1.0, name="y")
        await until(setup, setup.members[0].votes, seconds=20.0)

    setup.run(scenario())


RARE = {
    "no_member_is_admitted": a_member_that_came_back_empty_votes_again,
    "an_admitted_member_counts_from_zero": fences_grow_though_only_a_forgetful_member_is_common,
    "the_fence_is_the_maximum_only": fences_grow_though_the_next_majority_drew_lower_tickets,
    "the_fence_is_written_back_to_places_only": fences_grow_though_the_next_majority_drew_lower_tickets,
    "members_know_only_the_ttls_of_joins": a_forgetful_member_waits_for_what_was_extended,
    "one_admitted_member_is_enough_to_admit_others": the_memories_of_a_minority_do_not_suffice_to_admit,
    "silence_counts_as_renewed": a_lease_that_too_few_confirm_ends_before_another_begins,
    "tokens_are_not_compared": an_admission_is_for_the_emptiness_it_was_gathered_for,
    "long_rounds_count": a_round_that_took_too_long_does_not_count,
}
"""Histories that come about by chance too rarely, each with the mutant it catches."""


@pytest.mark.parametrize("name", RARE)
def test_a_rare_sequence_of_events_breaks_no_invariant(name: str) -> None:
    RARE[name]()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # what is left half-done by a failure is never awaited
@pytest.mark.parametrize("name", RARE)
def test_a_rare_sequence_of_events_catches_its_mutant(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with mutated(MUTANTS[name], monkeypatch), pytest.raises((AssertionError, pytest.fail.Exception)):
        RARE[name]()


def test_a_quorum_has_at_least_three_members_and_a_timeout_within_a_round() -> None:
    setup = Setup(3)
    links = setup.client("alice").links
    with pytest.raises(InvalidInputError, match="at least 3"):
        Quorum(links[0].runtime, links[:2], ["a", "b"])
    with pytest.raises(InvalidInputError, match="node_timeout"):
        Quorum(links[0].runtime, links, ["a", "b", "c"], node_timeout=5.0)


def test_another_capacity_on_a_member_is_passed_on() -> None:
    setup = Setup(3)
    alice = setup.client("alice")

    async def scenario() -> None:
        await alice.engine.release(await alice.acquire())
        for member in setup.members[:2]:
            member.join(Ask("x", "other/1", 30.0, 3.0, capacity=5))
        outcome = await alice.quorum.join(Ask("x", "alice/7", 30.0, 3.0, queue=False), 5.0)
        assert isinstance(outcome, Refusal)
        assert outcome.capacity == 5

    setup.run(scenario())
