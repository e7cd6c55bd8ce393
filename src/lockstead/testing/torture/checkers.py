"""The checkers: rules that every history must keep, whatever faults were injected while it was recorded.

Every checker takes a history and what the store promised, and returns the violations. None reports a false one: each
uses only what the times prove, as the store acted somewhere between an invocation and its completion. What a checker
cannot detect for that reason, its docstring says. Everything it may excuse is a field of `Promises`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import Any, NamedTuple, TypeVar

from lockstead.core.timing import margin
from lockstead.testing.torture.history import (
    KILL,
    Acquire,
    Consume,
    Fault,
    ForcedRelease,
    History,
    Operation,
    Read,
    Write,
)

T = TypeVar("T", Acquire, Write | Read)

SHOWN = 6
"""How many operations of a violation are listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Promises:
    """What a store promises, and which faults suspend it."""

    may_lose_grants: Collection[str] = ()
    """Faults after which the store may have granted a held name again: a restart without persistence, a step of its
    clock, the end of a session that holds. A request made before such a fault ended is not relied on from the fault's
    beginning; nor, on any store, is a name that was released by force."""
    may_lose_reservations: Collection[str] = ()
    """Faults after which a reserved name may be free."""
    may_lose_rate_limits: Collection[str] = ()
    """Faults after which the store may have lost the state of rate limits, though no held name is granted again."""
    may_lose_holds_early: Collection[str] = ()
    """Faults after which a hold may be lost early, though no other client was granted the name meanwhile."""
    may_stop_clients: Collection[str] = (KILL, "pause")
    """Faults during which a client cannot be notified of anything."""
    slack: float = 0.25
    """Seconds that a busy machine may keep a running thread or task from being scheduled."""
    fifo: bool = True
    """Whether waiters are granted in the order of their requests."""
    may_lose_waiting_places: Collection[str] | None = None
    """Faults during which a waiter may lose its place; None: any. Not needed where tickets are known."""
    wakes_within: float = inf
    """Seconds in which the next waiter holds what was surely released, if there is no fault."""
    recovers_within: float = inf
    """The same, counted from the end of the last fault in between."""
    longest_ttl: float = inf
    """Seconds after which nothing is left of a client that is gone, nor of its reservations."""
    frees_dead_within: float = inf
    """Seconds after which nothing but its reservations is left of a client that was killed. Unless infinite, its holds
    may be granted again from the kill on."""
    drift: float = 0.01
    """By what part the clock by which rate limits drain may run faster than ours."""
    grace: float = 0.0
    """Seconds: a leader whose on_lost takes less has ended it before another client is elected."""


class Violation(NamedTuple):
    rule: str
    """The checker's name."""
    message: str
    operations: tuple[Operation, ...]

    def __str__(self) -> str:
        shown = [f"\n  {operation.title}" for operation in self.operations[:SHOWN]]
        more = len(self.operations) - len(shown)
        return f"{self.rule}: {self.message}{''.join(shown)}" + (f"\n  and {more} more" if more else "")


def check(history: History, promises: Promises) -> list[Violation]:
    """Run every checker."""
    return [violation for checker in CHECKERS for violation in checker(history, promises)]


def exclusion(history: History, promises: Promises) -> list[Violation]:
    """The holds of a name that are surely valid at the same time fit in its capacity.

    A hold counts from when its acquisition returned until its trust window ended, it was known to be lost, or its
    release began; on a store that frees what dead processes held, at the longest until its client was killed. Not
    detected: two grants of which one client never trusted its own, or one a little too early.
    """
    return [
        Violation(
            "exclusion",
            f"at {at:.6f}: holders of {name!r} have a total weight of {sum(one.hold.weight for one in held)}, "
            f"and its capacity is {min(one.hold.capacity for one in held)}",
            tuple(one.hold for one in held),
        )
        for name, holds in _by_name(history.acquires)
        for at, held in _excesses(_beliefs(history, holds, promises))
    ]


def retractions(history: History, promises: Promises) -> list[Violation]:
    """No loss is signalled to a holder inside its trust window.

    Not detected: a hold that was lost early, but released or expired before its client noticed.
    """
    return [
        Violation(
            "retractions",
            f"{hold.name!r} was lost by {hold.retracted_at:.6f}, but its trust window lasts until "
            f"{hold.trusted_until:.6f}",
            (hold,),
        )
        for hold in history.acquires
        if hold.retracted_at < inf
        and not history.harm(promises.may_lose_holds_early, hold.client, hold.invoked, hold.retracted_at)
        and not _lost_grants(history, hold, hold.retracted_at, promises)
    ]


def fences(history: History, promises: Promises) -> list[Violation]:
    """The fences of a name's exclusive grants are all different, and grow in the order of the grants.

    One was granted before another if it returned before the other was requested; or, since no two hold at a time, if
    its trust window began first. `may_lose_grants` suspends the second. Fences of shared grants order nothing.
    """
    found = []
    for name, acquires in _by_name(history.acquires):
        grants = [one for one in acquires if one.is_granted and one.is_exclusive and one.fence]
        seen: dict[int, Acquire] = {}
        found += [
            Violation("fences", f"two grants of {name!r} have fence {grant.fence}", (other, grant))
            for grant in grants
            if (other := seen.setdefault(grant.fence, grant)) is not grant
        ]
        sure = [one for one in grants if _is_sure(one) and not _lost_grants(history, one, one.completed, promises)]
        pairs = {(id(a), id(b)): (a, b) for a, b in [*_went_back(grants, _asked), *_went_back(sure, _returned)]}
        found += [
            Violation("fences", f"the fence of {name!r} went back from {a.fence} to {b.fence}", (a, b))
            for a, b in pairs.values()
        ]
    return found


def reservations(history: History, promises: Promises) -> list[Violation]:
    """No client surely holds a reserved name before its reservation ends.

    The reservation is known if the release was confirmed; or if there was no fault meanwhile and the lock was still
    held at the release. The store's clock may be faster than ours by a margin. Not detected: a reservation whose
    release was not answered, and an early grant that its client did not trust.
    """
    found = []
    for name, holds in _by_name(history.acquires):
        reserved = [interval for hold in holds if (interval := _reservation(history, hold, promises))]
        for at, excess in _excesses([*_beliefs(history, holds, promises), *reserved] if reserved else []):
            reserving = [one.hold for one in excess if one in reserved]
            others = [one.hold for one in excess if one not in reserved]
            if reserving and others:
                until = reserving[0].reserved_until
                message = f"at {at:.6f}: {name!r} is reserved until {until:.6f}, and another client surely holds it"
                found.append(Violation("reservations", message, (*reserving, *others)))
    return found


def outcomes(history: History, promises: Promises) -> list[Violation]:
    """Every remembered outcome of `once` was returned by a client that ran it, before or meanwhile."""
    found = []
    for name, acquires in _by_name(history.acquires):
        given = {one.value: one for one in acquires if one.is_granted and one.value is not None}
        for one in acquires:
            if one.outcome == "remembered":
                source = given.get(one.value)
                if source is None or source.released_at > one.completed:
                    message = f"no run of {name!r} had returned {one.value!r} by {one.completed:.6f}"
                    found.append(Violation("outcomes", message, (one, *([source] if source else []))))
    return found


def forced_releases(history: History, promises: Promises) -> list[Violation]:
    """A holder whose name was released by force learns it at its next renewal, and is never renewed again.

    It renews twice within a ttl, unless there is a fault or it does not renew at all; an answer from before the forced
    release counts for a ttl. Not detected: a holder that did not check its handle again.
    """
    found = []
    for name, holds in _by_name(history.acquires):
        by_fence = {hold.fence: hold for hold in holds if hold.is_granted and hold.fence}
        for forced in history.forced_releases:
            for hold in (by_fence[fence] for fence in forced.fences if forced.name == name and fence in by_fence):
                latest = forced.completed + hold.ttl
                notified = forced.completed + hold.ttl / 2 + promises.slack
                if not hold.renew or history.harm(None, hold.client, forced.invoked - hold.ttl, notified):
                    notified = inf
                late = [one for one in hold.checks if one.is_sure and (one.until > latest or one.at > notified)]
                if late:
                    message = f"{name!r} was force-released by {forced.completed:.6f}, but held at {late[0].at:.6f}"
                    found.append(Violation("forced_releases", message, (forced, hold)))
    return found


def losses(history: History, promises: Promises) -> list[Violation]:
    """The loss of a hold is signalled to its running client before new grants no longer fit beside it.

    Evidence of a missing signal is a check of the handle, the time of the signal, or that there was none; `slack` is
    allowed before each for a busy machine. A client that was stopped meanwhile is excused, and so is a hold that
    `may_lose_grants` applies to. Not detected: a late signal while no other client was granted the name.
    """
    found = []
    for name, holds in _by_name(history.acquires):
        intervals = _beliefs(history, holds, promises)
        intervals += [
            Interval(hold.trusted_until, *late) for hold in holds if (late := _unsignalled(history, hold, promises))
        ]
        for at, excess in _excesses(intervals):
            unsignalled = [one.hold for one in excess if one.unsignalled]
            if unsignalled:
                found.append(
                    Violation(
                        "losses",
                        f"at {at:.6f} {name!r} was granted again, and no loss was signalled to {unsignalled[0].client}",
                        (*unsignalled, *(one.hold for one in excess if not one.unsignalled)),
                    )
                )
    return found


def stale_writes(history: History, promises: Promises) -> list[Violation]:
    """No register accepts a fence below one that it had surely seen before."""
    found = []
    for name, operations in _registers(history):
        shown = [one for one in operations if _is_answered(one) and one.fence and _outcome(one) != "refused"]
        found += [
            Violation("stale_writes", f"{name!r} accepted fence {b.fence} after {a.fence}", (a, b))
            for a, b in _went_back(shown, _asked)
            if isinstance(b, Write)
        ]
    return found


def linearizability(history: History, promises: Promises) -> list[Violation]:
    """Every register behaves as if each operation took place at one moment between its invocation and its completion.

    Such a register begins with None; a write is refused if, and only if, a newer fence was accepted before; a write of
    unknown outcome takes place at any time after it was invoked, or never. This is the search of Wing and Gong, in the
    order of completions and with memoized states, as by Lowe: a set of the possible values of the register, each with
    the operations that have taken effect, is carried from event to event. Operations that change nothing take effect
    as soon as they can, and fences order the writes, so the set stays small. Values must be hashable.
    """
    return [violation for _, operations in _registers(history) if (violation := _explain(operations)) is not None]


def fifo(history: History, promises: Promises) -> list[Violation]:
    """No request made after a waiter was surely in line is granted before that waiter.

    Evidence of overtaking is that the waiter still waits when the other request returns; or that it returns later, if
    the two do not fit beside each other and both surely held. Not detected: the order of two that fit, or of two
    of which neither was known to be in line before the other's request. `may_lose_grants` suspends it: there may be two
    lines for a while.
    """
    if not promises.fifo:
        return []
    found = []
    for name, acquires in _by_name(history.acquires):
        grants = sorted((one for one in acquires if one.is_granted), key=_asked)
        invoked = [one.invoked for one in grants]
        for waiter in acquires:
            since, until = waiter.in_line_by, waiter.surely_waited_until
            returned = waiter.completed if _is_sure(waiter) else until
            if since == inf or not _keeps_place(history, waiter, max(until, returned), promises):
                continue
            if _lost_grants(history, waiter, max(until, returned), promises, since=since):
                continue
            for other in grants[bisect_right(invoked, since) : bisect_left(invoked, max(until, returned))]:
                too_many = waiter.weight + other.weight > waiter.capacity
                if other.completed < until or (other.completed < returned and too_many and _is_sure(other)):
                    message = f"{other.client} overtook {waiter.client}, which was in line for {name!r} by {since:.6f}"
                    found.append(Violation("fifo", message, (waiter, other)))
    return found


def wake_ups(history: History, promises: Promises) -> list[Violation]:
    """Once a client has surely released a name and capacity is free, a waiter in its line holds it in time.

    It is surely released if the release was confirmed, if the request was abandoned without a fault, if the client was
    killed, or lost it, `longest_ttl` ago, or was killed `frees_dead_within` ago. If other requests may have taken it
    meanwhile, whether they were granted or their outcome is unknown, nothing is reported. So little is detected of busy
    semaphores, and nothing of a name whose client vanished without a recorded kill.
    """
    if promises.wakes_within == inf:
        return []
    found = []
    for name, acquires in _by_name(history.acquires):
        occupancies = sorted(
            (Occupancy.of(history, one, promises) for one in acquires), key=lambda occupancy: occupancy.acquire.invoked
        )
        invoked = [occupancy.acquire.invoked for occupancy in occupancies]
        around: list[Occupancy] = []
        seen = 0
        for gone, _, at in sorted(occupancies, key=lambda occupancy: occupancy.until):
            if at == inf:
                break
            arrived = bisect_right(invoked, at)
            around = [occupancy for occupancy in [*around, *occupancies[seen:arrived]] if occupancy.until > at]
            seen = arrived
            deadline = _deadline(history, at, promises)
            concerned = [*around, *occupancies[arrived : bisect_right(invoked, deadline)]]
            waiting = _left_waiting(concerned, deadline, gone.capacity)
            surely = [one for one in waiting if one.in_line_by <= at and _keeps_place(history, one, deadline, promises)]
            if surely:
                message = f"{name!r} was free at {at:.6f}, but no waiter held it by {deadline:.6f}"
                found.append(Violation("wake_ups", message, (gone, *surely)))
    return found


def nothing_left(history: History, promises: Promises) -> list[Violation]:
    """After all clients are gone and `longest_ttl` has passed, an inspection finds nothing; and there was one."""
    if promises.longest_ttl == inf:
        return []
    ends = [_gone(history, one) for one in history.acquires]
    ends += [one.completed for one in history.faults if one.is_known]
    quiet = max(ends, default=-inf) + promises.longest_ttl
    late = [one for one in history.inspections if one.is_known and one.invoked >= quiet]
    if ends and not late:
        return [Violation("nothing_left", f"the store was not inspected after {quiet:.6f}", ())]
    return [
        Violation("nothing_left", f"{'; '.join(one.left[:SHOWN])}: left, though all had ended by {quiet:.6f}", (one,))
        for one in late
        if one.left
    ]


def rates(history: History, promises: Promises) -> list[Violation]:
    """No period allows more than the burst and what drains in that period.

    Only requests invoked and completed within the period count, so less is detected the longer an answer takes compared
    with the interval. Periods in which the store may have lost the state of rate limits are left out.
    """
    found = []
    groups: dict[tuple[str, float, int], list[Consume]] = defaultdict(list)
    for consume in history.consumes:
        if consume.allowed and consume.cost:
            groups[consume.name, consume.interval, consume.burst].append(consume)
    losses = history.harm({*promises.may_lose_grants, *promises.may_lose_rate_limits}, "", -inf, inf)
    gaps = [(-inf, -inf), *((one.invoked, one.completed) for one in losses)]
    calm = [(end, start) for (_, end), (start, _) in pairwise([*_merged(gaps), (inf, inf)])]
    for (name, interval, burst), consumes in groups.items():
        for start, end in calm:
            within = [one for one in consumes if one.invoked >= start and one.completed <= end]
            if excess := _excess(within, (1 + promises.drift) / interval, burst):
                seconds = max(one.completed for one in excess) - min(one.invoked for one in excess)
                found.append(
                    Violation(
                        "rates",
                        f"{sum(one.cost for one in excess)} of {name!r} were allowed within {seconds:.6f} s, at most "
                        f"{burst} at once and one in {interval:g} s",
                        tuple(excess),
                    )
                )
    return found


def elections(history: History, promises: Promises) -> list[Violation]:
    """on_lost of a leader that was not stopped is called before the next election; and never before its on_elected.

    If on_lost takes less than the grace, its end counts; so it does if the leader surely held until then, as on
    resigning. Two leaders inside their trust windows are reported by `exclusion`. Not detected: an on_lost after a
    loss that is late by less than the slack.
    """
    found = []
    for name, acquires in _by_name(history.acquires):
        for one in acquires:
            if one.deposed_at < one.elected_at:
                message = f"on_lost of {name!r} was called in {one.client} before on_elected"
                found.append(Violation("elections", message, (one,)))
        terms = sorted((one for one in acquires if one.elected_at < inf), key=lambda one: one.elected_at)
        began = [one.elected_at for one in terms]
        for leader in terms:
            end = _leads_until(history, leader, promises)
            for other in terms[bisect_right(began, leader.elected_at) : bisect_left(began, end)]:
                at = other.elected_at
                if not (
                    history.harm(promises.may_stop_clients, leader.client, at - leader.ttl, at + promises.slack)
                    or _lost_grants(history, leader, at, promises)
                ):
                    message = f"{other.client} was elected for {name!r} at {at:.6f}, while {leader.client} still led"
                    found.append(Violation("elections", message, (leader, other)))
    return found


CHECKERS: tuple[Callable[[History, Promises], list[Violation]], ...] = (
    exclusion,
    retractions,
    fences,
    reservations,
    outcomes,
    forced_releases,
    losses,
    stale_writes,
    linearizability,
    fifo,
    wake_ups,
    nothing_left,
    rates,
    elections,
)


class Interval(NamedTuple):
    """A time in which a hold counts."""

    start: float
    end: float
    hold: Acquire
    unsignalled: bool = False
    """Whether it counts because the loss was not signalled to its holder, not because it was surely held."""


class Occupancy(NamedTuple):
    """How long an acquisition may have a place in the line of its name."""

    acquire: Acquire
    waits_until: float
    """Until when it surely waited for this name, in a running process."""
    until: float
    """Until when it may have a place: unless it was surely released, for as long as anything may be left of it."""

    @classmethod
    def of(cls, history: History, one: Acquire, promises: Promises) -> Occupancy:
        waits = one.completed if one.is_known else history.last_seen[one.client]
        if one.several:
            waits = -inf
        if one.free_by < inf:
            return cls(one, waits, one.free_by)
        if one.outcome in {"refused", "cancelled"}:
            left = one.completed + promises.wakes_within
            if not history.harm(None, one.client, one.invoked, left):
                return cls(one, waits, left)
        killed = history.killed_at(one.client)
        ends = [killed, one.lost_at, inf if one.is_granted else one.completed]
        if one.release is not None:
            ends.append(one.release.completed)
        until = min(ends) + promises.longest_ttl
        if one.reserved_until == -inf:
            until = min(until, killed + promises.frees_dead_within)
        return cls(one, waits, until)


def _by_name(operations: Iterable[T]) -> Iterator[tuple[str, list[T]]]:
    names: dict[str, list[T]] = defaultdict(list)
    for operation in operations:
        names[operation.name].append(operation)
    yield from names.items()


def _registers(history: History) -> Iterator[tuple[str, list[Write | Read]]]:
    operations: list[Write | Read] = [*history.writes, *history.reads]
    return _by_name(operations)


def _asked(operation: Operation) -> float:
    return operation.invoked


def _returned(operation: Operation) -> float:
    return operation.completed


def _outcome(operation: Write | Read) -> str:
    return operation.outcome if isinstance(operation, Write) else "accepted"


def _is_sure(grant: Acquire) -> bool:
    """Return whether it surely held when it returned."""
    return grant.is_granted and grant.believed_until > grant.completed


def _beliefs(history: History, holds: Iterable[Acquire], promises: Promises) -> list[Interval]:
    """Return the times in which these surely held, as far as the store's promises apply."""
    intervals = []
    for hold in holds:
        if hold.is_granted:
            end = hold.believed_until
            if promises.frees_dead_within < inf:
                end = min(end, history.alive_until(hold.client))
            losses = _lost_grants(history, hold, end, promises)
            intervals.append(Interval(hold.completed, min([end, *(one.invoked for one in losses)]), hold))
    return intervals


def _lost_grants(
    history: History, hold: Acquire, end: float, promises: Promises, *, since: float = -inf
) -> list[Fault | ForcedRelease]:
    """Find the faults that excuse the store from keeping it until then; by default since its request.

    A client that loses one of several names releases the others.
    """
    start = max(hold.invoked, since)
    faults = history.harm(promises.may_lose_grants, hold.client, start, end)
    return [*faults, *history.forced_releases_of(None if hold.several else hold.name, start, end)]


def _reservation(history: History, hold: Acquire, promises: Promises) -> Interval | None:
    """Return how long a name was surely reserved after its release, as far as the store's promises apply."""
    release, until = hold.release, hold.reserved_until
    if until == -inf or release is None or not hold.is_granted or release.completed >= hold.trusted_until:
        return None
    if release.outcome != "done" and history.harm(None, hold.client, hold.invoked, release.completed):
        return None
    until -= margin(until - hold.invoked)
    losses = [
        *_lost_grants(history, hold, until, promises),
        *history.harm(promises.may_lose_reservations, None, hold.invoked, until),
    ]
    return Interval(release.invoked, min([until, *(one.invoked for one in losses)]), hold)


def _unsignalled(history: History, hold: Acquire, promises: Promises) -> tuple[float, Acquire, bool] | None:
    """Return until when the end of a trust window was surely not signalled to a running client."""
    if not hold.is_granted or hold.trusted_until == -inf or hold.retracted_at < inf:
        return None
    evidence = [check.at for check in hold.checks if not check.signalled]
    if hold.lost_at < inf:
        evidence.append(hold.lost_at)
    elif hold.watched and not any(check.signalled for check in hold.checks):
        evidence.append(history.last_seen[hold.client])
    end, ended = max(evidence, default=-inf), hold.trusted_until
    halts = history.harm(promises.may_stop_clients, hold.client, ended - promises.slack, end)
    losses = _lost_grants(history, hold, end, promises)
    end = min([end, *(fault.invoked for fault in [*halts, *losses])]) - promises.slack
    end = min(end, hold.released_at)
    if end <= ended:
        return None
    return end, hold, True


def _excesses(intervals: Iterable[Interval]) -> Iterator[tuple[float, list[Interval]]]:
    """Find, at the beginning of each interval, the open intervals that exceed the capacity."""
    now: list[Interval] = []
    for interval in sorted(intervals, key=lambda one: one.start):
        if interval.end <= interval.start:
            continue
        now = [one for one in now if one.end > interval.start]
        now.append(interval)
        if sum(one.hold.weight for one in now) > min(one.hold.capacity for one in now):
            yield interval.start, list(now)


def _went_back(shown: Sequence[T], began: Callable[[T], float]) -> Iterator[tuple[T, T]]:
    """Pair each with the one of the greatest fence that completed before it began, if that fence is greater."""
    completed = sorted(shown, key=_returned)
    newest: T | None = None
    number = 0
    for one in sorted(shown, key=began):
        while number < len(completed) and completed[number].completed < began(one):
            if newest is None or _fence(completed[number]) > _fence(newest):
                newest = completed[number]
            number += 1
        if newest is not None and _fence(newest) > _fence(one):
            yield newest, one


def _fence(operation: Any) -> int:
    return int(operation.fence)


def _keeps_place(history: History, waiter: Acquire, until: float, promises: Promises) -> bool:
    """Return whether a waiter surely kept its place until then."""
    if all(wait.ticket for wait in waiter.waits_of_its_place) and (waiter.fence or waiter.surely_waited_until >= until):
        return True
    return not history.harm(promises.may_lose_waiting_places, waiter.client, waiter.in_line_by, until)


def _gone(history: History, one: Acquire) -> float:
    """Return when its client had surely finished with it, or recorded its last event."""
    gone = one.completed
    if one.is_granted:
        gone = one.release.completed if one.release is not None and one.release.outcome == "done" else inf
    return gone if gone < inf else history.last_seen[one.client]


def _left_waiting(occupancies: Iterable[Occupancy], deadline: float, capacity: int) -> list[Acquire]:
    """Find the requests that still wait by then, though each fits beside all others that may have a place."""
    waiting = []
    free = capacity
    for occupancy in occupancies:
        if occupancy.waits_until > deadline:
            waiting.append(occupancy.acquire)
        else:
            free -= occupancy.acquire.weight
            if free <= 0:
                return []
    return waiting if all(one.weight <= free for one in waiting) else []


def _deadline(history: History, at: float, promises: Promises) -> float:
    """Return by when the next waiter must hold, given the faults in between."""
    deadline = at + promises.wakes_within
    while True:
        faults = history.harm(None, None, at, deadline)
        later = max([deadline, *(one.completed + promises.recovers_within for one in faults)])
        if later == deadline:
            return deadline
        deadline = later


def _merged(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Join the spans that overlap."""
    merged: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


def _excess(consumes: Sequence[Consume], rate: float, burst: int) -> list[Consume]:
    """Find a period in which more was consumed than the burst and what drains in it.

    For every end, in order, a segment tree yields the worst beginning: its nodes have, for a range of beginnings, what
    was consumed since, and the maximum by which this exceeds what has drained.
    """
    if not consumes:
        return []
    zero = min(one.invoked for one in consumes)
    begun = sorted(consumes, key=_asked)
    index = {id(one): number for number, one in enumerate(begun)}
    size = 1 << (len(begun) - 1).bit_length()
    total, worst = [0.0] * (2 * size), [-inf] * (2 * size)
    for last in sorted(consumes, key=_returned):
        node = index[id(last)] + size
        total[node], worst[node] = last.cost, last.cost + rate * (last.invoked - zero)
        while node > 1:
            node //= 2
            left, right = 2 * node, 2 * node + 1
            total[node] = total[left] + total[right]
            worst[node] = max(worst[left] + total[right], worst[right])
        if worst[1] - rate * (last.completed - zero) > burst * (1 + 1e-6):
            return _worst_period(begun, last.completed, rate)
    return []


def _worst_period(begun: Sequence[Consume], end: float, rate: float) -> list[Consume]:
    def excess(start: float) -> float:
        return sum(one.cost for one in begun if one.invoked >= start and one.completed <= end) - rate * (end - start)

    start = max((one.invoked for one in begun if one.completed <= end), key=excess)
    return [one for one in begun if one.invoked >= start and one.completed <= end]


def _leads_until(history: History, leader: Acquire, promises: Promises) -> float:
    """Return until when on_lost had surely not been called, or, if the grace was long enough for it, had not ended."""
    if leader.stopped_at < leader.trusted_until:  # it holds until it has stopped, however slow the machine is
        return leader.stopped_at
    if leader.stopped_at - leader.deposed_at < promises.grace:
        end = leader.stopped_at
    elif leader.deposed_at < inf:
        end = leader.deposed_at
    else:
        end = history.last_seen[leader.client]
    return end - promises.slack


State = tuple[Any, int, frozenset[int]]
"""A register's value, the newest fence it has seen, and which of the pending operations have taken effect."""


def _explain(operations: Sequence[Write | Read]) -> Violation | None:
    """Find an order of these operations on one register that explains every answer; report the first without one."""
    known = _relevant(operations)
    events = sorted(
        [(one.invoked, 0, number) for number, one in enumerate(known)]
        + [(one.completed, 1, number) for number, one in enumerate(known) if _is_answered(one)]
    )
    pending: dict[int, Write | Read] = {}
    states: set[State] = {(None, 0, frozenset())}
    for _, is_end, number in events:
        one = known[number]
        if is_end:
            before, states = states, _after_effect(number, states, pending)
            del pending[number]
            if not states:
                held = sorted({f"{value!r} with fence {fence}" for value, fence, _ in before})
                message = f"{one.name!r} cannot have answered this: its value was {' or '.join(held[:SHOWN])}"
                return Violation("linearizability", message, (one, *pending.values()))
        else:
            pending[number] = one
            if not _changes(one):
                states = {_settled(state, {number: one}) for state in states}
        oldest = min(fence for _, fence, _ in states)
        for dead in [n for n, w in pending.items() if not _is_answered(w) and (w.fence or 0) < oldest]:
            del pending[dead]
            states = {(value, fence, effective - {dead}) for value, fence, effective in states}
    return None


def _relevant(operations: Sequence[Write | Read]) -> list[Write | Read]:
    """Leave out what no answer depends on: reads without an answer, and lost writes that would explain nothing."""
    values = {one.value for one in operations if isinstance(one, Read) and one.is_known}
    refused = [one.fence for one in operations if isinstance(one, Write) and one.outcome == "refused"]
    least = min(refused, default=inf)
    return [
        one
        for one in operations
        if _is_answered(one) or (isinstance(one, Write) and (one.value in values or one.fence > least))
    ]


def _is_answered(one: Write | Read) -> bool:
    return one.is_known and _outcome(one) != "unknown"


def _changes(one: Write | Read) -> bool:
    return isinstance(one, Write) and one.outcome != "refused"


def _after_effect(number: int, states: Iterable[State], pending: dict[int, Write | Read]) -> set[State]:
    """Return every state in which this operation has taken effect, with others before it in any order."""
    reached: set[State] = set()
    seen = set(states)
    left = list(seen)
    while left:
        value, fence, effective = left.pop()
        if number in effective:
            reached.add((value, fence, effective - {number}))
            continue
        for other, write in pending.items():
            if other in effective or not _changes(write) or (write.fence or 0) < fence:
                continue
            state = _settled((write.value, write.fence or 0, effective | {other}), pending)
            if state not in seen:
                seen.add(state)
                left.append(state)
    return reached


def _settled(state: State, pending: dict[int, Write | Read]) -> State:
    """Let operations take effect that change nothing and whose answer fits this state."""
    value, fence, effective = state
    now = {
        number
        for number, one in pending.items()
        if number not in effective
        and (
            (isinstance(one, Read) and one.value == value and one.fence in {None, fence})
            or (isinstance(one, Write) and one.outcome == "refused" and one.fence < fence)
        )
    }
    return (value, fence, effective | now) if now else state
