"""Scenarios: one sequence of events each, on a virtual clock."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from itertools import pairwise
from math import inf
from typing import Any

import pytest

from lockstead import Capabilities
from lockstead.core import inspection
from lockstead.core.engine import Engine
from lockstead.core.lease import PLACE_GONE, RELEASING, Claim, Lease
from lockstead.core.model import WHOLE, Ask, PlaceState, Standing
from lockstead.core.multi_lock import acquire_all
from lockstead.core.refusals import Busy
from lockstead.core.retry import RetryPolicy
from lockstead.errors import (
    CapacityMismatchError,
    InvalidLockError,
    LockAcquisitionError,
    LockLostError,
    StoreError,
    UnsupportedError,
)
from lockstead.runtimes.simulated import Cancelled, Process, Task, World
from lockstead.testing import Faults, Monitor, SimulatedServer, SimulatedStore

RETRY = RetryPolicy(max_retries=3, retry_delay=0.05)


class Setup:
    """A server and as many clients as a scenario needs."""

    def __init__(self) -> None:
        self.world = World(seed=0)
        self.server = SimulatedServer(self.world, Faults())
        self.monitor = Monitor(self.world, self.server)
        self.checked = True
        self.claims: list[Claim] = []

    def client(self, name: str) -> Client:
        return Client(self, name)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run one more task to its end, together with everything else."""
        process = Process(self.world, "scenario")
        task = process.start(work)
        while not task.finished:
            assert self.world.step(), "the scenario has no next step"
            if self.checked:
                self.monitor.check()
        if task.error is not None:
            raise task.error
        return task.result


class Client:
    def __init__(self, setup: Setup, name: str) -> None:
        self.setup = setup
        self.process = Process(setup.world, name)
        self.store = SimulatedStore(self.process, setup.server)
        self.engine = Engine(self.store, lambda: name)
        setup.monitor.add(self.process, self.engine)

    async def acquire(self, *, ttl: float = 9.0, timeout: float = inf, renew_for: float = inf, **ask: Any) -> Lease:
        claim = Claim()
        self.setup.claims.append(claim)
        request = Ask("x", "", ttl, min(ttl, 3.0), queue=timeout > 0)._replace(**ask)
        outcome = await self.engine.acquire(request, claim, timeout=timeout, renew_for=renew_for, retry=RETRY)
        if isinstance(outcome, Busy):
            raise outcome.error(self.engine.holder_id)
        return outcome

    def starts(self, work: Coroutine[Any, Any, Any]) -> Task[Any]:
        return self.process.start(work)


@pytest.fixture
def setup() -> Iterator[Setup]:
    setup = Setup()
    yield setup
    setup.world.end()


async def until(setup: Setup, condition: Callable[[], bool]) -> float:
    """Wait for a condition, and return when it became true."""
    process = Process(setup.world, "observer")
    while not condition():
        await SimulatedStore(process, setup.server).runtime.sleep(0.001)
    return setup.world.now


async def until_done(setup: Setup, task: Task[Lease]) -> Lease:
    await until(setup, lambda: task.finished)
    return task.outcome()


def waiting(setup: Setup) -> int:
    return sum(place.acquired_at is None for _, places in setup.server.peek() for place in places)


def waits_behind(setup: Setup, number: int) -> bool:
    return waiting(setup) == number


def test_a_release_wakes_the_next_at_once(setup: Setup) -> None:
    alice, bob = setup.client("alice"), setup.client("bob")

    async def scenario() -> None:
        first = await alice.acquire()
        waits = bob.starts(bob.acquire())
        await until(setup, lambda: waiting(setup) == 1)
        released = setup.world.now
        await alice.engine.release(first)
        assert await until(setup, lambda: waits.finished) - released < 0.05

    setup.run(scenario())


def test_only_the_next_is_woken(setup: Setup) -> None:
    alice, bob, carol = (setup.client(name) for name in ("alice", "bob", "carol"))

    async def scenario() -> None:
        first = await alice.acquire()
        waits = []
        for number, client in enumerate((bob, carol)):
            waits.append(client.starts(client.acquire()))
            await until(setup, partial(waits_behind, setup, number + 1))
        received: list[str] = []

        def listen(receive: Callable[[str], None]) -> Callable[[str], None]:
            def intercept(message: str) -> None:
                received.append(message)
                receive(message)

            return intercept

        setup.server.clients = {name: listen(receive) for name, receive in setup.server.clients.items()}
        await alice.engine.release(first)
        await until(setup, lambda: waits[0].finished)
        assert received == [setup.server.secrets[waits[0].outcome().ask.owner]]
        assert not waits[1].finished

    setup.run(scenario())


def test_a_wake_up_that_another_client_made_up_grants_nothing(setup: Setup) -> None:
    alice, bob = setup.client("alice"), setup.client("bob")

    async def scenario() -> None:
        first = await alice.acquire()
        waits = bob.starts(bob.acquire())
        await until(setup, lambda: waiting(setup) == 1)
        for message in ("bob/1", "bob/2", *setup.server.published, ""):
            setup.server.clients["bob"](message)
        await alice.engine.runtime.sleep(4.0)
        assert not waits.finished
        await alice.engine.release(first)
        await until(setup, lambda: waits.finished)

    setup.run(scenario())


def test_a_wake_up_grants_nothing_after_its_place_is_gone(setup: Setup) -> None:
    """A client that subscribes receives the secret of a place when it is granted. By then it is of no use."""
    alice, bob = setup.client("alice"), setup.client("bob")

    async def scenario() -> None:
        first = await alice.acquire()
        waits = bob.starts(bob.acquire())
        await until(setup, lambda: waiting(setup) == 1)
        await alice.engine.release(first)
        second = await until_done(setup, waits)
        (secret,) = setup.server.published
        await bob.engine.release(second)
        third = await alice.acquire()
        waits = bob.starts(bob.acquire())
        await until(setup, lambda: waiting(setup) == 1)
        setup.server.clients["bob"](secret)
        await alice.engine.runtime.sleep(4.0)
        assert not waits.finished
        await alice.engine.release(third)
        await until(setup, lambda: waits.finished)

    setup.run(scenario())


def test_a_holder_whose_store_answers_that_it_waits_has_lost(setup: Setup) -> None:
    """A grant that was forged after all, or undone by a failover, ends with the first answer that refutes it."""
    alice, bob = setup.client("alice"), setup.client("bob")
    setup.checked = False

    async def scenario() -> None:
        await alice.acquire()
        waits = bob.starts(bob.acquire())
        await until(setup, lambda: waiting(setup) == 1)
        forged = setup.world.now
        setup.server.clients["bob"](setup.server.secrets["bob/1"])
        lease = await until_done(setup, waits)
        assert lease.is_held(bob.process.now())
        assert await until(setup, lambda: lease.loss is not None) - forged < 0.32  # a tenth of its heartbeat
        assert "waiting" in str(lease.loss)
        await until(setup, lambda: waiting(setup) == 0)

    setup.run(scenario())


def test_a_reply_from_before_the_grant_refutes_nothing(setup: Setup) -> None:
    alice, bob = setup.client("alice"), setup.client("bob")

    async def scenario() -> None:
        first = await alice.acquire()
        waits = bob.starts(bob.acquire())
        await until(setup, lambda: waiting(setup) == 1)
        sent = bob.process.now()
        await alice.engine.release(first)
        lease = await until_done(setup, waits)
        older = Standing(PlaceState.WAITING, lease.fence, holder="alice/1")
        bob.engine.keeper.apply(lease, older, sent, lease.ask.ttl)
        assert lease.is_held(bob.process.now())

    setup.run(scenario())


def test_a_lost_wake_up_costs_at_most_a_heartbeat(setup: Setup) -> None:
    alice, bob = setup.client("alice"), setup.client("bob")
    setup.server.faults.lost_wake_up = 1.0

    async def scenario() -> None:
        first = await alice.acquire()
        waits = bob.starts(bob.acquire())
        await until(setup, lambda: waiting(setup) == 1)
        released = setup.world.now
        await alice.engine.release(first)
        assert 0.05 < await until(setup, lambda: waits.finished) - released < 3.0

    setup.run(scenario())


def test_a_dead_holder_blocks_for_its_ttl_and_no_longer(setup: Setup) -> None:
    alice, bob = setup.client("alice"), setup.client("bob")

    async def scenario() -> None:
        await alice.acquire(ttl=9.0)
        waits = bob.starts(bob.acquire())
        await until(setup, lambda: waiting(setup) == 1)
        alice.process.crash()
        died = setup.world.now
        assert 8.9 < await until(setup, lambda: waits.finished) - died < 9.1

    setup.run(scenario())


def test_a_dead_waiter_delays_the_line_by_a_heartbeat_not_by_its_ttl(setup: Setup) -> None:
    alice, bob, carol = (setup.client(name) for name in ("alice", "bob", "carol"))

    async def scenario() -> None:
        first = await alice.acquire(ttl=60.0)
        bob.starts(bob.acquire(ttl=60.0))
        await until(setup, lambda: waiting(setup) == 1)
        waits = carol.starts(carol.acquire(ttl=60.0))
        await until(setup, lambda: waiting(setup) == 2)
        bob.process.crash()
        await alice.engine.release(first)
        released = setup.world.now
        assert await until(setup, lambda: waits.finished) - released < 3.0 + 1.2

    setup.run(scenario())


def test_a_dead_heavy_waiter_does_not_block_a_lighter_one_behind_it(setup: Setup) -> None:
    """What has expired is dropped anywhere up to the first that waits, not at the head only."""
    alice, bob, carol = (setup.client(name) for name in ("alice", "bob", "carol"))

    async def scenario() -> None:
        await alice.acquire(capacity=5, weight=3)
        bob.starts(bob.acquire(capacity=5, weight=3))
        await until(setup, lambda: waiting(setup) == 1)
        waits = carol.starts(carol.acquire(capacity=5, weight=1))
        await until(setup, lambda: waiting(setup) == 2)
        bob.process.crash()
        died = setup.world.now
        assert await until(setup, lambda: waits.finished) - died < 3.0 + 1.2

    setup.run(scenario())


def test_a_holder_is_renewed_until_it_releases(setup: Setup) -> None:
    alice = setup.client("alice")

    async def scenario() -> None:
        lease = await alice.acquire(ttl=1.0)
        await alice.engine.runtime.sleep(60.0)
        assert lease.is_held(alice.process.now())
        await alice.engine.release(lease)

    setup.run(scenario())


def scans_of(client: Client, *, failures: int = 0) -> list[float]:
    """Note when the client's keeper scans its leases, and have it fail the first few times."""
    scans: list[float] = []
    scan = client.engine.keeper._scan

    def failing_scan(now: float) -> Any:
        scans.append(now)
        if len(scans) <= failures:
            msg = "a mistake of ours"
            raise RuntimeError(msg)
        return scan(now)

    client.engine.keeper._scan = failing_scan  # type: ignore[method-assign]
    return scans


def test_a_keeper_that_failed_soon_retries(setup: Setup) -> None:
    alice = setup.client("alice")
    scans = scans_of(alice, failures=1)

    async def scenario() -> None:
        lease = await alice.acquire(ttl=9.0)
        await alice.engine.runtime.sleep(20.0)
        alice.engine.check(lease)
        assert scans[1] - scans[0] < 0.2

    setup.run(scenario())


def test_the_keeper_scans_its_leases_only_when_one_of_them_is_due(setup: Setup) -> None:
    alice = setup.client("alice")
    scans = scans_of(alice)

    async def scenario() -> None:
        leases = [await alice.acquire(name=f"x{number}", ttl=9.0) for number in range(20)]
        await alice.engine.runtime.sleep(90.0)
        for lease in leases:
            alice.engine.check(lease)
        assert 20 <= len(scans) <= 40  # all are renewed together, about every third of their ttl

    setup.run(scenario())


def test_max_hold_ends_renewal_and_is_signalled_as_a_loss(setup: Setup) -> None:
    alice = setup.client("alice")
    lost_at: list[float] = []

    async def scenario() -> None:
        lease = await alice.acquire(ttl=1.0, renew_for=5.0)
        alice.engine.keeper.watch(lease, lambda: lost_at.append(setup.world.now))
        await until(setup, lambda: lease.loss is not None)
        assert 4.5 < lost_at[0] < 5.0
        assert str(lease.loss).startswith("its lease expired after renewal had stopped (max_hold")
        with pytest.raises(LockLostError):
            await alice.engine.release(lease)

    setup.run(scenario())


def test_a_loss_is_signalled_once_and_before_another_can_hold(setup: Setup) -> None:
    alice, bob = setup.client("alice"), setup.client("bob")
    lost_at: list[float] = []

    async def scenario() -> None:
        lease = await alice.acquire(ttl=3.0)
        alice.engine.keeper.watch(lease, lambda: lost_at.append(setup.world.now))
        waits = bob.starts(bob.acquire())
        await until(setup, lambda: waiting(setup) == 1)
        alice.store.partitioned_until = inf
        held_at = await until(setup, lambda: waits.finished)
        await alice.engine.runtime.sleep(5.0)
        assert len(lost_at) == 1
        assert lost_at[0] < held_at
        with pytest.raises(LockLostError, match="could not be renewed"):
            alice.engine.check(lease)

    setup.run(scenario())


def test_a_short_silence_of_the_store_is_survived(setup: Setup) -> None:
    alice = setup.client("alice")

    async def scenario() -> None:
        lease = await alice.acquire(ttl=9.0)
        setup.server.stall(5.0)
        await alice.engine.runtime.sleep(30.0)
        alice.engine.check(lease)

    setup.run(scenario())


def test_a_client_that_resumes_after_a_long_pause_first_detects_its_loss(setup: Setup) -> None:
    alice, bob = setup.client("alice"), setup.client("bob")

    async def scenario() -> None:
        lease = await alice.acquire(ttl=3.0)
        waits = bob.starts(bob.acquire())
        await until(setup, lambda: waiting(setup) == 1)
        alice.process.pause(30.0)
        await until(setup, lambda: waits.finished)
        assert not lease.is_held(alice.process.now())
        await until(setup, lambda: not alice.process.is_paused())
        with pytest.raises(LockLostError):
            await alice.engine.release(lease)
        assert waits.outcome().is_held(bob.process.now())

    setup.run(scenario())


def test_a_reply_does_not_reopen_a_trust_window_that_has_ended(setup: Setup) -> None:
    """Found by `tests/model`: a client that resumes may read it before anything checks the trust window."""
    alice = setup.client("alice")

    async def scenario() -> None:
        lease = await alice.acquire(ttl=9.0)
        sent = lease.trusted_until - 1.0
        alice.process.pause(20.0)
        await until(setup, lambda: not lease.is_held(alice.process.now()))
        alice.engine.keeper.apply(lease, Standing(PlaceState.HELD, lease.fence), sent, 9.0)
        assert not lease.is_held(alice.process.now())
        await until(setup, lambda: lease.loss is not None)

    setup.run(scenario())


def test_a_waiter_whose_place_expired_during_a_pause_rejoins(setup: Setup) -> None:
    alice, bob, carol = (setup.client(name) for name in ("alice", "bob", "carol"))

    async def scenario() -> None:
        first = await alice.acquire()
        oversleeps = bob.starts(bob.acquire())
        await until(setup, lambda: waiting(setup) == 1)
        on_time = carol.starts(carol.acquire())
        await until(setup, lambda: waiting(setup) == 2)
        bob.process.pause(20.0)
        await until(setup, lambda: setup.world.now > 15.0)
        await alice.engine.release(first)
        await until(setup, lambda: on_time.finished)
        await carol.engine.release(on_time.outcome())
        await until(setup, lambda: oversleeps.finished)
        assert oversleeps.outcome().fence > on_time.outcome().fence

    setup.run(scenario())


def test_a_lost_reply_does_not_lock_its_client_out(setup: Setup) -> None:
    """The repeated request finds the place the first one got."""
    alice = setup.client("alice")

    async def scenario() -> None:
        setup.server.faults.lost_reply = 1.0
        acquiring = alice.starts(alice.acquire(ttl=30.0, timeout=0.0))
        await until(setup, lambda: bool(setup.server.size()))
        setup.server.faults.lost_reply = 0.0
        await until(setup, lambda: acquiring.finished)
        assert isinstance(acquiring.error, StoreError), "a try gives up after one silent request"

        setup.server.faults.lost_reply = 1.0
        acquiring = alice.starts(alice.acquire(ttl=30.0, timeout=20.0))
        await until(
            setup, lambda: any(place.owner == "alice/2" for _, places in setup.server.peek() for place in places)
        )
        setup.server.faults.lost_reply = 0.0
        await until(setup, lambda: acquiring.finished)
        assert acquiring.outcome().is_held(alice.process.now())

    setup.run(scenario())


def test_a_grant_of_a_place_that_expired_does_not_count_for_the_next_one(setup: Setup) -> None:
    """Found by `tests/model`: a repeated join may make a second place; a message about the first may come after it."""
    alice, bob, carol = (setup.client(name) for name in ("alice", "bob", "carol"))
    messages: list[str] = []

    async def scenario() -> None:
        first = await alice.acquire()
        receive, setup.server.clients["bob"] = setup.server.clients["bob"], messages.append
        setup.server.faults.lost_reply = 1.0
        waits = bob.starts(bob.acquire())
        await until(setup, lambda: waiting(setup) == 1)
        setup.server.faults.lost_reply = 0.0
        await alice.engine.release(first)
        await until(setup, lambda: bool(messages))
        await until(
            setup, lambda: not any(place.owner == messages[0] for _, line in setup.server.peek() for place in line)
        )
        await carol.acquire()
        await until(setup, lambda: waiting(setup) == 1)
        await alice.store.runtime.sleep(0.1)
        receive(messages[0])
        await alice.store.runtime.sleep(1.0)
        assert not waits.finished

    setup.run(scenario())


def test_a_cancelled_acquire_leaves_nothing_behind_before_it_ends(setup: Setup) -> None:
    alice, bob = setup.client("alice"), setup.client("bob")

    async def scenario() -> None:
        await alice.acquire()
        waits = bob.starts(bob.acquire())
        await until(setup, lambda: waiting(setup) == 1)
        waits.cancel()
        await until(setup, lambda: waits.finished)
        assert isinstance(waits.error, Cancelled)
        assert waiting(setup) == 0
        assert not bob.engine.keeper.leases

    setup.run(scenario())


def test_a_cancelled_release_is_finished_all_the_same(setup: Setup) -> None:
    alice = setup.client("alice")

    async def scenario() -> None:
        lease = await alice.acquire()
        releasing = alice.starts(alice.engine.release(lease))
        await alice.engine.runtime.sleep(0.0003)
        releasing.cancel()
        await until(setup, lambda: releasing.finished)
        await until(setup, lambda: not alice.engine.keeper.leases)
        assert setup.server.size() == 0

    setup.run(scenario())


def test_a_release_without_an_answer_goes_on_in_the_background(setup: Setup) -> None:
    alice = setup.client("alice")

    async def scenario() -> None:
        lease = await alice.acquire(ttl=60.0)
        alice.store.partitioned_until = setup.world.now + 10.0
        with pytest.raises(StoreError):
            await alice.engine.release(lease)
        assert not lease.is_held(alice.process.now())
        assert await until(setup, lambda: setup.server.size() == 0) < 20.0

    setup.run(scenario())


def test_a_late_join_is_refused(setup: Setup) -> None:
    """A join that arrives after its client gave up must not leave a place."""
    alice = setup.client("alice")

    async def scenario() -> None:
        setup.server.stall(6.0)
        with pytest.raises(StoreError):
            await alice.acquire(timeout=0.0)
        await until(setup, lambda: not alice.engine.keeper.leases)
        await alice.engine.runtime.sleep(1.0)
        assert not any(places for _, places in setup.server.peek())

    setup.run(scenario())


def test_a_release_is_repeated_for_as_long_as_its_join_may_still_arrive(setup: Setup) -> None:
    """A server that was stopped for longer than a ttl and a timeout goes on with what lies in its buffers."""
    alice = setup.client("alice")

    async def scenario() -> None:
        setup.server.stall(20.0)
        with pytest.raises(StoreError):
            await alice.acquire(timeout=0.0, ttl=0.5)
        await alice.engine.runtime.sleep(12.0)
        assert alice.engine.keeper.leases
        await until(setup, lambda: not alice.engine.keeper.leases)
        assert not any(places for _, places in setup.server.peek())

    setup.run(scenario())


def test_the_retry_policy_bounds_how_often_a_silent_store_is_asked(setup: Setup) -> None:
    alice = setup.client("alice")
    asked: list[float] = []
    original = alice.store.join

    async def join(ask: Ask, timeout: float) -> Any:
        asked.append(setup.world.now)
        raise StoreError("down", transient=True)

    alice.store.join = join  # type: ignore[method-assign]

    async def scenario() -> None:
        with pytest.raises(StoreError):
            await alice.acquire()
        assert len(asked) == 1 + RETRY.max_retries
        pauses = [later - earlier for earlier, later in pairwise(asked)]
        for number, pause in enumerate(pauses):
            assert 0.5 * 0.05 * 2**number <= pause <= 0.05 * 2**number + 0.002
        alice.store.join = original  # type: ignore[method-assign]
        await alice.acquire()

    setup.run(scenario())


def test_an_error_that_is_not_transient_is_not_retried(setup: Setup) -> None:
    alice = setup.client("alice")
    asked: list[Ask] = []

    async def join(ask: Ask, timeout: float) -> Any:
        asked.append(ask)
        raise StoreError("wrong password")

    alice.store.join = join  # type: ignore[method-assign]

    async def scenario() -> None:
        with pytest.raises(StoreError):
            await alice.acquire()

    setup.run(scenario())
    assert len(asked) == 1
    assert not alice.engine.keeper.leases, "nothing was done, so there is nothing to undo"


def test_another_capacity_is_refused_while_the_line_is_in_use(setup: Setup) -> None:
    alice, bob = setup.client("alice"), setup.client("bob")

    async def scenario() -> None:
        lease = await alice.acquire(capacity=3)
        with pytest.raises(CapacityMismatchError) as refusal:
            await bob.acquire(capacity=2)
        assert (refusal.value.stored, refusal.value.asked) == (3, 2)
        await alice.engine.release(lease)
        await bob.acquire(capacity=2)

    setup.run(scenario())


def test_a_store_without_semaphores_refuses_capacities(setup: Setup) -> None:
    alice = setup.client("alice")
    alice.store.capabilities = Capabilities(semaphore=False)
    with pytest.raises(UnsupportedError, match=r"use memory, SQLite, Redis \(not Redlock\) or PostgreSQL \(not adv"):
        setup.run(alice.acquire(capacity=2))


def test_a_store_without_semaphores_may_have_readers_and_writers_all_the_same(setup: Setup) -> None:
    alice = setup.client("alice")
    alice.store.capabilities = Capabilities(semaphore=False)

    async def scenario() -> None:
        for weight in (1, WHOLE):
            await alice.engine.release(await alice.acquire(capacity=WHOLE, weight=weight))
        with pytest.raises(UnsupportedError):
            await alice.acquire(capacity=WHOLE, weight=2)
        alice.store.capabilities = Capabilities(semaphore=False, shared=False)
        with pytest.raises(UnsupportedError, match=r"or PostgreSQL$"):
            await alice.acquire(capacity=WHOLE)

    setup.run(scenario())


def test_an_extension_outlives_the_renewals_that_follow_it(setup: Setup) -> None:
    """Renewals never shorten."""
    alice = setup.client("alice")

    async def scenario() -> None:
        lease = await alice.acquire(ttl=1.0)
        await alice.engine.extend(lease, 60.0)
        await alice.engine.runtime.sleep(5.0)
        ((_, (place,)),) = setup.server.peek()
        assert place.expires_at - setup.server.now() > 54.0
        assert lease.trusted_until - alice.process.now() > 53.0

    setup.run(scenario())


def test_an_extension_after_release_or_loss_is_refused(setup: Setup) -> None:
    alice = setup.client("alice")

    async def scenario() -> None:
        lease = await alice.acquire(ttl=1.0)
        await alice.engine.release(lease)
        with pytest.raises(InvalidLockError):
            await alice.engine.extend(lease, 5.0)
        lost = await alice.acquire(ttl=1.0, renew_for=0.0)
        await alice.engine.runtime.sleep(2.0)
        with pytest.raises(LockLostError):
            await alice.engine.extend(lost, 5.0)

    setup.run(scenario())


def test_a_forward_step_of_the_servers_clock_is_reported(setup: Setup, caplog: pytest.LogCaptureFixture) -> None:
    """It may let a second holder in, and only the fence protects."""
    alice = setup.client("alice")

    async def scenario() -> None:
        await alice.acquire(ttl=9.0)
        await alice.engine.runtime.sleep(10.0)
        assert not caplog.records
        setup.checked = False
        setup.server.clock_offset += 4.0
        await alice.engine.runtime.sleep(10.0)

    with caplog.at_level(logging.WARNING, "lockstead"):
        setup.run(scenario())
    assert "stepped by +4.0 s" in caplog.text


def test_a_force_released_holder_is_notified_at_its_next_renewal(setup: Setup) -> None:
    alice, bob = setup.client("alice"), setup.client("bob")

    async def scenario() -> None:
        lease = await alice.acquire(ttl=9.0)
        setup.checked = False
        await inspection.force_release(bob.engine, "x")
        await until(setup, lambda: lease.loss is not None)
        assert lease.loss == PLACE_GONE

    setup.run(scenario())


def test_a_timeout_is_kept_and_names_the_holder(setup: Setup) -> None:
    alice, bob = setup.client("alice"), setup.client("bob")

    async def scenario() -> None:
        await alice.acquire()
        began = setup.world.now
        with pytest.raises(
            LockAcquisitionError, match="held by alice; raise timeout, or see `lockstead show x`"
        ) as refusal:
            await bob.acquire(timeout=2.5)
        assert 2.5 <= setup.world.now - began < 2.6
        assert refusal.value.holder == "alice"
        assert refusal.value.attempts == 1
        assert 2.5 <= refusal.value.waited < 2.6
        assert waiting(setup) == 0

    setup.run(scenario())


def test_a_grant_that_races_with_the_timeout_is_not_thrown_away(setup: Setup) -> None:
    """Look again before reporting failure."""
    alice, bob = setup.client("alice"), setup.client("bob")
    setup.server.faults.lost_wake_up = 1.0

    async def scenario() -> None:
        lease = await alice.acquire()
        waits = bob.starts(bob.acquire(timeout=1.0))
        await until(setup, lambda: waiting(setup) == 1)
        await until(setup, lambda: setup.world.now > 0.9)
        await alice.engine.release(lease)
        await until(setup, lambda: waits.finished)
        assert waits.error is None

    setup.run(scenario())


def test_all_that_a_client_holds_is_renewed_in_a_few_requests(setup: Setup) -> None:
    alice = setup.client("alice")
    requests: list[int] = []
    original = alice.store.renew

    async def renew(renewals: Any, timeout: float) -> Any:
        requests.append(len(renewals))
        return await original(renewals, timeout)

    alice.store.renew = renew  # type: ignore[method-assign]

    async def scenario() -> None:
        for number in range(200):
            await alice.acquire(ttl=30.0, name=f"name-{number}")
        await alice.engine.runtime.sleep(30.0)

    setup.run(scenario())
    assert sum(requests) >= 400
    assert len(requests) < 60


def test_a_ttl_shorter_than_the_round_trip_is_an_error_not_an_endless_loop(setup: Setup) -> None:
    alice = setup.client("alice")
    setup.server.faults.slow = 1.0
    setup.server.faults.slowest = 4.0
    with pytest.raises(LockAcquisitionError, match="raise the ttl"):
        setup.run(alice.acquire(ttl=0.12))


def test_a_reply_that_came_too_late_releases_all_of_several_names_at_once(setup: Setup) -> None:
    alice = setup.client("alice")
    asks = [Ask(name, "", 0.5, 0.5) for name in "abcdef"]
    claim = Claim()

    async def scenario() -> None:
        waits = alice.starts(acquire_all(alice.engine, asks, claim, timeout=inf, renew_for=inf, retry=RETRY))
        setup.server.faults.slow, setup.server.faults.slowest = 1.0, 4.0
        leases = alice.engine.keeper.leases
        await until(setup, lambda: any(lease.granted_at is not None for lease in leases.values()))
        assert all(lease.state is RELEASING for lease in leases.values()), "none is renewed while another is left"
        setup.server.faults.slow = 0.0
        await until(setup, lambda: waits.finished)
        assert waits.outcome() is None
        assert [lease.ask.name for lease in claim.leases] == list("abcdef")

    setup.run(scenario())


def test_a_client_that_dies_waiting_for_the_last_of_several_names_blocks_the_first_for_a_heartbeat(
    setup: Setup,
) -> None:
    alice, bob, carol = (setup.client(name) for name in ("alice", "bob", "carol"))
    asks = [Ask(name, "", 60.0, 3.0) for name in "ax"]
    claim = Claim()

    async def scenario() -> None:
        await alice.acquire()
        bob.starts(acquire_all(bob.engine, asks, claim, timeout=inf, renew_for=inf, retry=RETRY))
        await until(setup, lambda: waiting(setup) == 1)
        bob.process.crash()
        died = setup.world.now
        await carol.acquire(name="a")
        assert setup.world.now - died < 3.1

    setup.run(scenario())


def test_a_timeout_of_several_names_is_for_the_whole(setup: Setup) -> None:
    """However many there are, and however slow the store is: nor does giving them up take for ever."""
    alice, bob = setup.client("alice"), setup.client("bob")
    asks = [Ask(f"{number:03}", "", 60.0, 3.0) for number in range(100)]
    claim = Claim()

    async def scenario() -> None:
        await alice.acquire(name="099")
        setup.server.faults.slow, setup.server.faults.slowest = 1.0, 0.08
        began = setup.world.now
        with pytest.raises(LockAcquisitionError, match="of 100 names were; raise timeout") as caught:
            await acquire_all(bob.engine, asks, claim, timeout=1.0, renew_for=inf, retry=RETRY)
        assert caught.value.waited >= 1.0
        assert setup.world.now - began < 2.5
        await until(setup, lambda: not bob.engine.keeper.leases)
        assert [len(places) for _, places in setup.server.peek() if places] == [1]

    setup.run(scenario())
