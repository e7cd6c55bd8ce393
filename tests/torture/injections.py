"""Ways to spoil a good history: each puts in one thing that must not happen, and that the times prove.

An injection takes a history and a source of chance, changes the history, and says whether there was an opportunity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import permutations
from math import inf
from random import Random
from typing import TypeVar

from lockstead.testing.torture.checkers import Occupancy, _deadline, _reservation
from lockstead.testing.torture.history import Acquire, Check, Consume, ForcedRelease, History, Operation, Read, Write
from tests.torture.model import PROMISES

T = TypeVar("T")
Operating = TypeVar("Operating", bound=Operation)

Injection = Callable[[History, Random], bool]
FOREVER = 10**12
TICK = 1e-4


def two_hold(history: History, chance: Random) -> bool:
    for hold in _some(chance, _sure(history)):
        at = chance.uniform(hold.completed, hold.believed_until)
        history.add(_injected_hold(hold, at - TICK, at, at + 1))
        return at > hold.completed
    return False


def a_lost_hold_is_trusted_on(history: History, chance: Random) -> bool:
    for loser, other in _some(chance, _one_after_another(history)):
        at = chance.uniform(other.completed, other.believed_until)
        loser.checks.append(Check(at, at, at + 1))
        loser.release = None
        return at > other.completed
    return False


def trust_is_retracted(history: History, chance: Random) -> bool:
    for hold in _some(chance, _sure(history)):
        hold.release = None
        hold.lost_at = chance.uniform(hold.completed, hold.trusted_until - TICK)
        return True
    return False


def what_is_trusted_is_found_gone(history: History, chance: Random) -> bool:
    for hold in _some(chance, _sure(history)):
        if hold.release is not None and hold.release.completed < hold.trusted_until:
            hold.release.outcome = "lost"
            return True
    return False


def a_fence_is_given_twice(history: History, chance: Random) -> bool:
    grants = [one for one in history.acquires if one.is_granted and one.is_exclusive and one.fence]
    for one, other in _some(chance, _pairs(grants)):
        other.fence = one.fence
        return True
    return False


def a_fence_goes_back(history: History, chance: Random) -> bool:
    grants = [one for one in history.acquires if one.is_granted and one.is_exclusive and one.fence]
    for one, other in _some(chance, _pairs(grants)):
        if one.completed < other.invoked:
            one.fence, other.fence = other.fence, one.fence
            return True
    return False


def a_fence_goes_back_among_concurrent_requests(history: History, chance: Random) -> bool:
    for one, other in _some(chance, _pairs([hold for hold in _sure(history) if hold.is_exclusive])):
        if other.invoked < one.completed < other.completed:
            one.fence, other.fence = other.fence, one.fence
            return True
    return False


def a_loss_is_signalled_late(history: History, chance: Random) -> bool:
    for loser, signalled in _losers(history, chance):
        loser.lost_at = signalled
        return True
    return False


def a_loss_is_never_signalled(history: History, chance: Random) -> bool:
    for loser, signalled in _losers(history, chance):
        loser.lost_at, loser.watched = inf, True
        history._see(loser.client, signalled)
        return True
    return False


def a_check_after_a_loss_shows_no_signal(history: History, chance: Random) -> bool:
    for loser, signalled in _losers(history, chance):
        loser.lost_at, loser.watched = inf, False
        loser.checks.append(Check(signalled, signalled, signalled))
        return True
    return False


def a_stale_write_is_accepted(history: History, chance: Random) -> bool:
    for write in _some(chance, [one for one in history.writes if one.outcome == "accepted"]):
        history.add(
            replace(write, invoked=write.completed + TICK, completed=write.completed + 1, fence=write.fence - 1)
        )
        return True
    return False


def an_overwritten_value_is_read(history: History, chance: Random) -> bool:
    for first, second in _some(chance, _pairs([one for one in history.writes if one.outcome == "accepted"])):
        if first.completed < second.invoked:
            history.add(_read(second, second.completed + TICK, first.value))
            return True
    return False


def a_value_is_read_before_it_is_written(history: History, chance: Random) -> bool:
    for write in _some(chance, history.writes):
        history.add(_read(write, write.invoked - 2 * TICK, write.value))
        return True
    return False


def a_value_is_read_that_no_client_wrote(history: History, chance: Random) -> bool:
    for write in _some(chance, history.writes):
        history.add(_read(write, write.invoked, "made up"))
        return True
    return False


def the_newest_fence_is_refused(history: History, chance: Random) -> bool:
    for write in _some(chance, history.writes):
        history.add(replace(write, completed=write.invoked + 1, fence=FOREVER, outcome="refused"))
        return True
    return False


def a_waiter_in_line_is_overtaken(history: History, chance: Random) -> bool:
    for waiter in _some(chance, history.acquires):
        if waiter.in_line_by + 2 * TICK < waiter.surely_waited_until:
            asked = chance.uniform(waiter.in_line_by, waiter.surely_waited_until - 2 * TICK)
            history.add(_injected_hold(waiter, asked + TICK / 2, asked + TICK, asked + TICK))
            return True
    return False


def a_later_waiter_returns_before_the_first(history: History, chance: Random) -> bool:
    for waiter in _some(chance, _sure(history)):
        if waiter.in_line_by + 2 * TICK < waiter.completed:
            asked = chance.uniform(waiter.in_line_by, waiter.completed - 2 * TICK)
            history.add(_injected_hold(waiter, asked + TICK / 2, asked + TICK, asked + 2 * TICK))
            return True
    return False


def a_wake_up_is_lost(history: History, chance: Random) -> bool:
    """Let all clients but the one that released and the waiter be gone, and the waiter get it too late."""
    for done, waiter in _some(chance, _pairs([one for one in history.acquires if one.is_granted])):
        if done.release is None or done.release.outcome != "done":
            continue
        at = done.free_by
        if waiter.in_line_by > at or waiter.completed < at:
            continue
        late = _deadline(history, at, PROMISES) + TICK
        history.acquires[:] = [
            one
            for one in history.acquires
            if one in (done, waiter) or one.name != done.name or Occupancy.of(history, one, PROMISES).until <= at
        ]
        waiter.completed = chance.uniform(late, late + 1)
        return True
    return False


def none_of_several_waiters_is_woken(history: History, chance: Random) -> bool:
    """Let all waiters go on waiting when a holder releases, and no client come later."""
    for done in _some(chance, [one for one in history.acquires if one.is_exclusive and one.release is not None]):
        assert done.release is not None
        at = done.free_by
        crowd = [one for one in history.acquires if one.name == done.name and one.in_line_by <= at <= one.completed]
        crowd = [one for one in crowd if one.is_granted]
        if done.release.outcome != "done" or len(crowd) < 2:
            continue
        late = _deadline(history, at, PROMISES) + TICK
        history.acquires[:] = [
            one
            for one in history.acquires
            if one in (done, *crowd) or one.name != done.name or Occupancy.of(history, one, PROMISES).until <= at
        ]
        for one in crowd:
            one.completed = chance.uniform(late, late + 1)
        return True
    return False


def a_reserved_name_is_granted(history: History, chance: Random) -> bool:
    return _is_had_early(history, chance, [hold for hold in history.acquires if hold.at_least])


def what_was_done_is_done_again(history: History, chance: Random) -> bool:
    return _is_had_early(history, chance, [hold for hold in history.acquires if hold.period])


def an_outcome_is_reported_that_no_client_produced(history: History, chance: Random) -> bool:
    for one in _some(chance, [one for one in history.acquires if one.outcome == "remembered"]):
        one.value = "made up"
        return True
    return False


def an_outcome_is_reported_before_it_was_produced(history: History, chance: Random) -> bool:
    for done in _some(chance, [one for one in history.acquires if one.value is not None and one.is_granted]):
        at = done.released_at - TICK
        early = replace(done, client="injected", invoked=at - TICK, completed=at, outcome="remembered", release=None)
        history.add(early)
        return True
    return False


def a_holder_released_by_force_is_renewed(history: History, chance: Random) -> bool:
    for hold in _some(chance, [hold for hold in _sure(history) if hold.fence]):
        at = _force_release(history, hold, chance)
        hold.checks.append(Check(at, at, at + hold.ttl + TICK))
        return True
    return False


def a_holder_released_by_force_is_not_notified(history: History, chance: Random) -> bool:
    for hold in _some(chance, [hold for hold in _sure(history) if hold.fence]):
        if history.harm(None, hold.client, hold.completed - 2 * hold.ttl, hold.believed_until + 2 * hold.ttl):
            continue
        late = _force_release(history, hold, chance) + hold.ttl / 2 + PROMISES.slack + TICK
        hold.checks.append(Check(late, late, late + TICK))
        return True
    return False


def a_place_is_left(history: History, chance: Random) -> bool:
    chance.choice(history.inspections).left.append("lock: p0")
    return True


def the_store_is_not_inspected(history: History, chance: Random) -> bool:
    history.inspections.clear()
    return True


def too_much_is_allowed_at_once(history: History, chance: Random) -> bool:
    for consume in _some(chance, history.consumes):
        history.add(*(_consume(consume, consume.invoked + number * TICK, TICK) for number in range(consume.burst + 1)))
        return True
    return False


def too_much_is_allowed_for_long(history: History, chance: Random) -> bool:
    for consume in _some(chance, history.consumes):
        pause = consume.interval * chance.uniform(0.5, 0.9)
        history.add(
            *(_consume(consume, consume.invoked + number * pause, pause / 20) for number in range(12 * consume.burst))
        )
        return True
    return False


def a_leader_is_notified_after_another_was_elected(history: History, chance: Random) -> bool:
    for leader, other in _terms(history, chance):
        leader.deposed_at = other.elected_at + PROMISES.slack + chance.uniform(0.001, 0.1)
        leader.stopped_at = inf
        return True
    return False


def a_leader_stops_after_another_was_elected(history: History, chance: Random) -> bool:
    for leader, other in _terms(history, chance):
        leader.stopped_at = other.elected_at + PROMISES.slack + chance.uniform(0.001, 0.04)
        leader.deposed_at = leader.stopped_at - 0.05
        return True
    return False


def a_leader_is_never_notified(history: History, chance: Random) -> bool:
    for leader, other in _terms(history, chance):
        leader.deposed_at = leader.stopped_at = inf
        history._see(leader.client, other.elected_at + PROMISES.slack + TICK)
        return True
    return False


def a_leader_is_stopped_that_never_began(history: History, chance: Random) -> bool:
    for leader in _some(chance, [one for one in history.acquires if one.deposed_at < inf]):
        leader.elected_at = inf
        return True
    return False


INJECTIONS: dict[Injection, str] = {
    two_hold: "exclusion",
    a_lost_hold_is_trusted_on: "exclusion",
    trust_is_retracted: "retractions",
    what_is_trusted_is_found_gone: "retractions",
    a_fence_is_given_twice: "fences",
    a_fence_goes_back: "fences",
    a_fence_goes_back_among_concurrent_requests: "fences",
    a_loss_is_signalled_late: "losses",
    a_loss_is_never_signalled: "losses",
    a_check_after_a_loss_shows_no_signal: "losses",
    a_stale_write_is_accepted: "stale_writes",
    an_overwritten_value_is_read: "linearizability",
    a_value_is_read_before_it_is_written: "linearizability",
    a_value_is_read_that_no_client_wrote: "linearizability",
    the_newest_fence_is_refused: "linearizability",
    a_waiter_in_line_is_overtaken: "fifo",
    a_later_waiter_returns_before_the_first: "fifo",
    a_wake_up_is_lost: "wake_ups",
    none_of_several_waiters_is_woken: "wake_ups",
    a_reserved_name_is_granted: "reservations",
    what_was_done_is_done_again: "reservations",
    an_outcome_is_reported_that_no_client_produced: "outcomes",
    an_outcome_is_reported_before_it_was_produced: "outcomes",
    a_holder_released_by_force_is_renewed: "forced_releases",
    a_holder_released_by_force_is_not_notified: "forced_releases",
    a_place_is_left: "nothing_left",
    the_store_is_not_inspected: "nothing_left",
    too_much_is_allowed_at_once: "rates",
    too_much_is_allowed_for_long: "rates",
    a_leader_is_notified_after_another_was_elected: "elections",
    a_leader_stops_after_another_was_elected: "elections",
    a_leader_is_never_notified: "elections",
    a_leader_is_stopped_that_never_began: "elections",
}
"""Which checker must find each."""


def _some(chance: Random, things: list[T]) -> Iterator[T]:
    yield from chance.sample(things, len(things))


def _pairs(operations: list[Operating]) -> list[tuple[Operating, Operating]]:
    return [(one, other) for one, other in permutations(operations, 2) if one.name == other.name]


def _sure(history: History) -> list[Acquire]:
    return [one for one in history.acquires if one.is_granted and one.believed_until > one.completed + TICK]


def _one_after_another(history: History) -> list[tuple[Acquire, Acquire]]:
    """Pair holds that do not fit beside each other and that followed one another."""
    return [
        (one, other)
        for one, other in _pairs(_sure(history))
        if one.weight + other.weight > one.capacity and one.believed_until < other.completed
    ]


def _losers(history: History, chance: Random) -> Iterator[tuple[Acquire, float]]:
    """Find a hold that was succeeded, turn its release into a loss, and return when it is too late to signal that."""
    for loser, other in _some(chance, _one_after_another(history)):
        ended, signalled = loser.believed_until, other.completed + PROMISES.slack + chance.uniform(0.001, 1)
        if not history.harm(
            PROMISES.may_stop_clients, loser.client, ended - PROMISES.slack, signalled + PROMISES.slack
        ):
            looks = [look for look in loser.checks if look.is_sure and look.at < ended]
            loser.checks[:] = [look._replace(until=min(look.until, ended)) for look in looks]
            loser.release = None
            yield loser, signalled


def _terms(history: History, chance: Random) -> Iterator[tuple[Acquire, Acquire]]:
    terms = [one for one in history.acquires if one.elected_at < inf]
    for leader, other in _some(chance, _pairs(terms)):
        since, until = other.elected_at - leader.ttl, other.elected_at + 1
        if leader.elected_at < other.elected_at and not history.harm(
            PROMISES.may_stop_clients, leader.client, since, until
        ):
            yield leader, other


def _is_had_early(history: History, chance: Random, holds: list[Acquire]) -> bool:
    for hold in _some(chance, holds):
        taken = _reservation(history, hold, PROMISES)
        if taken is not None and taken.end > taken.start + TICK:
            at = chance.uniform(taken.start + TICK, taken.end - TICK / 2)
            history.add(_injected_hold(hold, at - TICK / 2, at, at + 1))
            return True
    return False


def _force_release(history: History, hold: Acquire, chance: Random) -> float:
    """Let a hold be taken away inside its trust window, and return when."""
    at = chance.uniform(hold.completed, hold.believed_until)
    history.add(
        ForcedRelease(client="operator", line=1, invoked=at - TICK, completed=at, name=hold.name, fences=[hold.fence])
    )
    return at


def _injected_hold(one: Acquire, asked: float, returned: float, until: float) -> Acquire:
    """Make a hold of the whole capacity, in the line of another."""
    checks = [Check(returned, returned, until)]
    return replace(
        one,
        client="injected",
        invoked=asked,
        completed=returned,
        weight=one.capacity,
        outcome="granted",
        fence=FOREVER,
        at_least=0.0,
        period=0.0,
        waits=[],
        checks=checks,
        watched=False,
        release=None,
        lost_at=inf,
        elected_at=inf,
        deposed_at=inf,
        stopped_at=inf,
    )


def _read(write: Write, at: float, value: object) -> Read:
    return Read(client="injected", line=1, invoked=at, completed=at + TICK, name=write.name, value=value)


def _consume(consume: Consume, at: float, seconds: float) -> Consume:
    return replace(consume, client="injected", invoked=at, completed=at + seconds, cost=1, allowed=True)
