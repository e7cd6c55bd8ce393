"""What must never be found in a history, whatever was done to whom while it was recorded.

Every checker takes a history and what the store promised, and returns what was broken. None accuses wrongly, so each
knows only what the times prove: the store acted somewhere between an invocation and its completion. What that keeps a
checker from seeing, it says. Everything it may excuse is a field of `Promises`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import Any, NamedTuple, TypeVar

from lockstead.core.lease import margin
from lockstead.testing.torture.history import (
    KILL,
    Acquire,
    Consume,
    Eviction,
    Fault,
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

    forgetting: Collection[str] = ()
    """Faults after which it may have let in others: a restart without persistence, a step of its clock, the end of a
    session that holds. What was asked for before such a fault ended is not relied on from when it began; nor, on any
    store, is a name that was taken away by force."""
    freeing: Collection[str] = ()
    """Faults after which a name may be free that was left taken."""
    forgiving: Collection[str] = ()
    """Faults after which it may have forgotten what was spent, though it let nobody in."""
    retracting: Collection[str] = ()
    """Faults after which a hold may be lost early, though nobody else was let in meanwhile."""
    halting: Collection[str] = (KILL, "pause")
    """Faults that keep a client from being told anything while they last."""
    slack: float = 0.25
    """How long a busy machine may keep a running thread or task from its turn."""
    fifo: bool = True
    """Whoever waits stands in line."""
    displacing: Collection[str] | None = None
    """Faults in which somebody who waits may lose his place; None: any. Where tickets are known nobody needs it."""
    wakes_within: float = inf
    """How soon the next has what somebody surely left, if there is no fault."""
    recovers_within: float = inf
    """How soon after the last of the faults that came in between."""
    longest_ttl: float = inf
    """After so long nothing is left of anybody who is gone, nor of what he left taken."""
    drift: float = 0.01
    """How much faster than ours the clock may run by which rates wear off."""
    grace: float = 0.0
    """A leader whose on_lost takes less has ended it before anybody else is elected."""


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
    """Find everything that is wrong."""
    return [violation for checker in CHECKERS for violation in checker(history, promises)]


def exclusion(history: History, promises: Promises) -> list[Violation]:
    """Those who are sure to hold a name at the same time fit in its capacity.

    A hold counts from when its acquisition returned until its trust ended, was retracted, or its release began. So a
    store that lets in two of whom one never believes it, or one a little too early, is not seen here.
    """
    return [
        Violation(
            "exclusion",
            f"at {at:.6f} {sum(one.hold.weight for one in crowd)} of {name!r} are surely held, "
            f"and there are {min(one.hold.capacity for one in crowd)}",
            tuple(one.hold for one in crowd),
        )
        for name, holds in _by_name(history.acquires)
        for at, crowd in _crowds(_beliefs(history, holds, promises))
    ]


def retractions(history: History, promises: Promises) -> list[Violation]:
    """Nobody learns that he lost what he was sure to hold for longer.

    Not seen: what was lost early, but released or let end before anybody noticed.
    """
    return [
        Violation(
            "retractions",
            f"{hold.name!r} was lost by {hold.retracted_at:.6f}, and sure to be held until {hold.trusted_until:.6f}",
            (hold,),
        )
        for hold in history.acquires
        if hold.retracted_at < inf
        and not history.harm(promises.retracting, hold.client, hold.invoked, hold.retracted_at)
        and not _forgot(history, hold, hold.retracted_at, promises)
    ]


def fences(history: History, promises: Promises) -> list[Violation]:
    """The fences of a name's exclusive grants are all different, and grow in the order of the grants.

    One was granted before another if it returned before the other was asked for; or, since no two hold at a time, if it
    was the first to be sure to hold. Forgetting suspends the second. Fences of shared grants order nothing.
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
        sure = [one for one in grants if _is_sure(one) and not _forgot(history, one, one.completed, promises)]
        pairs = {(id(a), id(b)): (a, b) for a, b in [*_went_back(grants, _asked), *_went_back(sure, _returned)]}
        found += [
            Violation("fences", f"the fence of {name!r} went back from {a.fence} to {b.fence}", (a, b))
            for a, b in pairs.values()
        ]
    return found


def reservations(history: History, promises: Promises) -> list[Violation]:
    """Nobody is sure to hold a name that was left taken, before the time is over that was asked for.

    That it was left so is known if its release is done; or if nobody was harmed meanwhile, and it was still held then.
    The store may be faster than we are by a margin. So it sees nothing of a name whose release was not answered, nor
    of whoever was let in early and did not believe it.
    """
    found = []
    for name, holds in _by_name(history.acquires):
        taken = [window for hold in holds if (window := _taken(history, hold, promises))]
        for at, crowd in _crowds([*_beliefs(history, holds, promises), *taken] if taken else []):
            left = [one.hold for one in crowd if one in taken]
            others = [one.hold for one in crowd if one not in taken]
            if left and others:
                message = f"at {at:.6f} {name!r} was left taken until {left[0].reserved_until:.6f}, and is surely held"
                found.append(Violation("reservations", message, (*left, *others)))
    return found


def outcomes(history: History, promises: Promises) -> list[Violation]:
    """Whoever is told what came of something was told what somebody who did it gave, before or meanwhile."""
    found = []
    for name, acquires in _by_name(history.acquires):
        given = {one.value: one for one in acquires if one.is_granted and one.value is not None}
        for one in acquires:
            if one.outcome == "remembered":
                source = given.get(one.value)
                if source is None or source.released_at > one.completed:
                    message = f"nobody had given {one.value!r} for {name!r} by {one.completed:.6f}"
                    found.append(Violation("outcomes", message, (one, *([source] if source else []))))
    return found


def evictions(history: History, promises: Promises) -> list[Violation]:
    """Whoever a name was taken from by force is told at his next renewal, and never renewed any more.

    He renews twice within a ttl, unless there is a fault or he was never to be; what was answered before it was taken
    away counts for a ttl. Not seen: what somebody believed who did not look again.
    """
    found = []
    for name, holds in _by_name(history.acquires):
        by_fence = {hold.fence: hold for hold in holds if hold.is_granted and hold.fence}
        for eviction in history.evictions:
            for hold in (by_fence[fence] for fence in eviction.fences if eviction.name == name and fence in by_fence):
                latest = eviction.completed + hold.ttl
                told = eviction.completed + hold.ttl / 2 + promises.slack
                if not hold.renew or history.harm(None, hold.client, eviction.invoked - hold.ttl, told):
                    told = inf
                late = [look for look in hold.checks if look.is_sure and (look.until > latest or look.at > told)]
                if late:
                    message = f"{name!r} was taken away by {eviction.completed:.6f}, and held at {late[0].at:.6f}"
                    found.append(Violation("evictions", message, (eviction, hold)))
    return found


def losses(history: History, promises: Promises) -> list[Violation]:
    """Whoever lost a hold, and runs, is told before those who are let in do not fit beside him any more.

    His word for not having been told is a look at the handle, the time of the signal, or that there was none; a `slack`
    before each may have been the machine's. Who is halted meanwhile is excused, and so is a hold that forgetting hit.
    Not seen: a signal that came late while nobody else was let in.
    """
    found = []
    for name, holds in _by_name(history.acquires):
        intervals = _beliefs(history, holds, promises)
        intervals += [
            Interval(hold.trusted_until, *late) for hold in holds if (late := _unsignalled(history, hold, promises))
        ]
        for at, crowd in _crowds(intervals):
            unsignalled = [one.hold for one in crowd if one.unsignalled]
            if unsignalled:
                found.append(
                    Violation(
                        "losses",
                        f"at {at:.6f} {name!r} had been let go on, and {unsignalled[0].client} not told of its loss",
                        (*unsignalled, *(one.hold for one in crowd if not one.unsignalled)),
                    )
                )
    return found


def stale_writes(history: History, promises: Promises) -> list[Violation]:
    """No register accepts a fence below one that it surely saw before."""
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
    order of completions and with what was reached remembered, as Lowe does it: a set of what the register may hold, and
    of who has had his moment, is carried from event to event. Operations that change nothing take place as soon as
    they can, and fences order the writes, so the set stays small. Values must be hashable.
    """
    return [violation for _, operations in _registers(history) if (violation := _explain(operations)) is not None]


def fifo(history: History, promises: Promises) -> list[Violation]:
    """Nobody who asks once another is surely in line is granted before him.

    Whoever was overtaken shows it by still waiting when the other returned; or by returning later, if the two do not
    fit beside each other and both were sure to hold. Not seen: the order of two who fit, or of whom one is not known to
    have stood in line before the other asked. Forgetting suspends it: there may be two lines for a while.
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
            if _forgot(history, waiter, max(until, returned), promises, since=since):
                continue
            for other in grants[bisect_right(invoked, since) : bisect_left(invoked, max(until, returned))]:
                too_many = waiter.weight + other.weight > waiter.capacity
                if other.completed < until or (other.completed < returned and too_many and _is_sure(other)):
                    message = f"{other.client} overtook {waiter.client}, who was in line for {name!r} by {since:.6f}"
                    found.append(Violation("fifo", message, (waiter, other)))
    return found


def wake_ups(history: History, promises: Promises) -> list[Violation]:
    """Once somebody has surely left and there is room, somebody who is in line for it has it in time.

    He left if his release is done, if he gave up without a fault, or if he was killed, or lost it, the longest ttl ago.
    If others may have taken the room meanwhile, nothing is said: those who were granted, and those of whom nobody
    knows. So it sees little of semaphores that many use, and nothing of a name for which somebody vanished and no kill
    was recorded.
    """
    if promises.wakes_within == inf:
        return []
    found = []
    for name, acquires in _by_name(history.acquires):
        crowd = sorted(
            (Reservation.of(history, one, promises) for one in acquires),
            key=lambda reservation: reservation.acquire.invoked,
        )
        invoked = [reservation.acquire.invoked for reservation in crowd]
        around: list[Reservation] = []
        seen = 0
        for gone, _, at in sorted(crowd, key=lambda reservation: reservation.until):
            if at == inf:
                break
            arrived = bisect_right(invoked, at)
            around = [reservation for reservation in [*around, *crowd[seen:arrived]] if reservation.until > at]
            seen = arrived
            deadline = _deadline(history, at, promises)
            concerned = [*around, *crowd[arrived : bisect_right(invoked, deadline)]]
            waiting = _left_waiting(concerned, deadline, gone.capacity)
            surely = [one for one in waiting if one.in_line_by <= at and _keeps_place(history, one, deadline, promises)]
            if surely:
                message = f"{name!r} was free at {at:.6f}, and nobody in line had it by {deadline:.6f}"
                found.append(Violation("wake_ups", message, (gone, *surely)))
    return found


def nothing_left(history: History, promises: Promises) -> list[Violation]:
    """Once everybody is gone and the longest ttl is over, an inspection finds nothing; and somebody looked."""
    if promises.longest_ttl == inf:
        return []
    ends = [_gone(history, one) for one in history.acquires]
    ends += [one.completed for one in history.faults if one.is_known]
    quiet = max(ends, default=-inf) + promises.longest_ttl
    late = [one for one in history.inspections if one.is_known and one.invoked >= quiet]
    if ends and not late:
        return [Violation("nothing_left", f"nobody looked at what is left after {quiet:.6f}", ())]
    return [
        Violation("nothing_left", f"{'; '.join(one.left[:SHOWN])}: left, though all was over by {quiet:.6f}", (one,))
        for one in late
        if one.left
    ]


def rates(history: History, promises: Promises) -> list[Violation]:
    """Within no time is more allowed than the burst and what that time earns.

    Only what was invoked and completed within it counts, so it sees the less, the longer an answer takes compared with
    the interval. No time in which the store may have forgotten is looked at.
    """
    found = []
    groups: dict[tuple[str, float, int], list[Consume]] = defaultdict(list)
    for spend in history.consumes:
        if spend.allowed and spend.cost:
            groups[spend.name, spend.interval, spend.burst].append(spend)
    forgot = history.harm({*promises.forgetting, *promises.forgiving}, "", -inf, inf)
    gaps = [(-inf, -inf), *((one.invoked, one.completed) for one in forgot)]
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
    """Nobody is elected before whoever led, and was not halted, was told to stop; and nobody stops without beginning.

    Of an on_lost that takes less than the grace, the end counts; so it does if he was sure to hold until then, as
    somebody is who resigns. That two lead inside their trust windows is a matter of `exclusion`. Not seen: an on_lost
    of somebody who lost the lead that is late by less than the slack.
    """
    found = []
    for name, acquires in _by_name(history.acquires):
        for one in acquires:
            if one.deposed_at < one.elected_at:
                message = f"{one.client} was told to stop leading {name!r} before it was told to begin"
                found.append(Violation("elections", message, (one,)))
        terms = sorted((one for one in acquires if one.elected_at < inf), key=lambda one: one.elected_at)
        began = [one.elected_at for one in terms]
        for leader in terms:
            end = _leads_until(history, leader, promises)
            for other in terms[bisect_right(began, leader.elected_at) : bisect_left(began, end)]:
                at = other.elected_at
                if not (
                    history.harm(promises.halting, leader.client, at - leader.ttl, at + promises.slack)
                    or _forgot(history, leader, at, promises)
                ):
                    message = f"{other.client} was elected to {name!r} at {at:.6f}, while {leader.client} still led"
                    found.append(Violation("elections", message, (leader, other)))
    return found


CHECKERS: tuple[Callable[[History, Promises], list[Violation]], ...] = (
    exclusion,
    retractions,
    fences,
    reservations,
    outcomes,
    evictions,
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
    """It counts because its holder was not told of the loss, not because he was sure to hold."""


class Reservation(NamedTuple):
    """How long an acquisition may matter to others."""

    acquire: Acquire
    waits_until: float
    """Until when it surely waited for this name, in a process that lived."""
    until: float
    """Until when it may have a place: unless it surely left, for as long as anything may be left of it."""

    @classmethod
    def of(cls, history: History, one: Acquire, promises: Promises) -> Reservation:
        waits = one.completed if one.is_known else history.last_seen[one.client]
        if one.several:
            waits = -inf
        if one.free_by < inf:
            return cls(one, waits, one.free_by)
        if one.outcome in {"refused", "cancelled"}:
            left = one.completed + promises.wakes_within
            if not history.harm(None, one.client, one.invoked, left):
                return cls(one, waits, left)
        ends = [history.killed_at(one.client), one.lost_at, inf if one.is_granted else one.completed]
        if one.release is not None:
            ends.append(one.release.completed)
        return cls(one, waits, min(ends) + promises.longest_ttl)


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
    """Tell whether it was sure to hold when it returned."""
    return grant.is_granted and grant.believed_until > grant.completed


def _beliefs(history: History, holds: Iterable[Acquire], promises: Promises) -> list[Interval]:
    """Give the times in which these were sure to hold, as far as the store is to be relied on."""
    intervals = []
    for hold in holds:
        if hold.is_granted:
            end = hold.believed_until
            forgot = _forgot(history, hold, end, promises)
            intervals.append(Interval(hold.completed, min([end, *(one.invoked for one in forgot)]), hold))
    return intervals


def _forgot(
    history: History, hold: Acquire, end: float, promises: Promises, *, since: float = -inf
) -> list[Fault | Eviction]:
    """Find why the store need not have kept it until then; since it was asked for, if nothing else is said.

    Whoever loses one of several names gives up the others.
    """
    start = max(hold.invoked, since)
    faults = history.harm(promises.forgetting, hold.client, start, end)
    return [*faults, *history.evictions_of(None if hold.several else hold.name, start, end)]


def _taken(history: History, hold: Acquire, promises: Promises) -> Interval | None:
    """Tell for how long a name was surely left taken by who released it, as far as the store is to be relied on."""
    release, until = hold.release, hold.reserved_until
    if until == -inf or release is None or not hold.is_granted or release.completed >= hold.trusted_until:
        return None
    if release.outcome != "done" and history.harm(None, hold.client, hold.invoked, release.completed):
        return None
    until -= margin(until - hold.invoked)
    forgot = [*_forgot(history, hold, until, promises), *history.harm(promises.freeing, None, hold.invoked, until)]
    return Interval(release.invoked, min([until, *(one.invoked for one in forgot)]), hold)


def _unsignalled(history: History, hold: Acquire, promises: Promises) -> tuple[float, Acquire, bool] | None:
    """Tell until when somebody whose trust had ended was surely not told, if he ran."""
    if not hold.is_granted or hold.trusted_until == -inf or hold.retracted_at < inf:
        return None
    evidence = [check.at for check in hold.checks if not check.told]
    if hold.lost_at < inf:
        evidence.append(hold.lost_at)
    elif hold.watched and not any(check.told for check in hold.checks):
        evidence.append(history.last_seen[hold.client])
    end, ended = max(evidence, default=-inf), hold.trusted_until
    halts = history.harm(promises.halting, hold.client, ended - promises.slack, end)
    forgot = _forgot(history, hold, end, promises)
    end = min([end, *(fault.invoked for fault in [*halts, *forgot])]) - promises.slack
    end = min(end, hold.released_at)
    if end <= ended:
        return None
    return end, hold, True


def _crowds(intervals: Iterable[Interval]) -> Iterator[tuple[float, list[Interval]]]:
    """Find, whenever a window begins, whether those that are open do not fit any more."""
    now: list[Interval] = []
    for window in sorted(intervals, key=lambda one: one.start):
        if window.end <= window.start:
            continue
        now = [one for one in now if one.end > window.start]
        now.append(window)
        if sum(one.hold.weight for one in now) > min(one.hold.capacity for one in now):
            yield window.start, list(now)


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
    """Tell whether somebody has surely had the place by which he is judged from when he got it until then."""
    if all(wait.ticket for wait in waiter.waits_of_its_place) and (waiter.fence or waiter.surely_waited_until >= until):
        return True
    return not history.harm(promises.displacing, waiter.client, waiter.in_line_by, until)


def _gone(history: History, one: Acquire) -> float:
    """Tell when its client was surely done with it, or was heard of for the last time."""
    gone = one.completed
    if one.is_granted:
        gone = one.release.completed if one.release is not None and one.release.outcome == "done" else inf
    return gone if gone < inf else history.last_seen[one.client]


def _left_waiting(stays: Iterable[Reservation], deadline: float, capacity: int) -> list[Acquire]:
    """Find who still waits by then, though there is room for any of them beside all others who may be there."""
    waiting = []
    room = capacity
    for reservation in stays:
        if reservation.waits_until > deadline:
            waiting.append(reservation.acquire)
        else:
            room -= reservation.acquire.weight
            if room <= 0:
                return []
    return waiting if all(one.weight <= room for one in waiting) else []


def _deadline(history: History, at: float, promises: Promises) -> float:
    """Tell by when the next must have it, given the faults that come in between."""
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
    """Find a time within which more was spent than the burst and what it earns.

    For every end, in their order, the worst beginning is kept by a tree of sums: of a span of beginnings, what was
    spent since, and the most that this is above what has been earned.
    """
    if not consumes:
        return []
    zero = min(one.invoked for one in consumes)
    begun = sorted(consumes, key=_asked)
    place = {id(one): number for number, one in enumerate(begun)}
    size = 1 << (len(begun) - 1).bit_length()
    total, worst = [0.0] * (2 * size), [-inf] * (2 * size)
    for last in sorted(consumes, key=_returned):
        node = place[id(last)] + size
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
    """Tell until when somebody surely was not told to stop, or had not ended what his grace was enough for."""
    if leader.stopped_at < leader.trusted_until:  # he holds on until he has stopped, however slow the machine is
        return leader.stopped_at
    if leader.stopped_at - leader.deposed_at < promises.grace:
        end = leader.stopped_at
    elif leader.deposed_at < inf:
        end = leader.deposed_at
    else:
        end = history.last_seen[leader.client]
    return end - promises.slack


State = tuple[Any, int, frozenset[int]]
"""What a register holds, the newest fence it has seen, and which of those not yet completed have had their moment."""


def _explain(operations: Sequence[Write | Read]) -> Violation | None:
    """Find an order of these operations on one register that explains all they showed, or say where there is none."""
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
                message = f"{one.name!r} cannot have answered so: it held {' or '.join(held[:SHOWN])}"
                return Violation("linearizability", message, (one, *pending.values()))
        else:
            pending[number] = one
            if not _changes(one):
                states = {_settled(state, {number: one}) for state in states}
        oldest = min(fence for _, fence, _ in states)
        for dead in [n for n, w in pending.items() if not _is_answered(w) and (w.fence or 0) < oldest]:
            del pending[dead]
            states = {(value, fence, had - {dead}) for value, fence, had in states}
    return None


def _relevant(operations: Sequence[Write | Read]) -> list[Write | Read]:
    """Leave out what nobody can have noticed: reads without an answer, and lost writes that would explain nothing."""
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
    """Give every state that can be reached by somebody's having his moment at last, and others theirs before."""
    reached: set[State] = set()
    seen = set(states)
    left = list(seen)
    while left:
        value, fence, had = left.pop()
        if number in had:
            reached.add((value, fence, had - {number}))
            continue
        for other, write in pending.items():
            if other in had or not _changes(write) or (write.fence or 0) < fence:
                continue
            state = _settled((write.value, write.fence or 0, had | {other}), pending)
            if state not in seen:
                seen.add(state)
                left.append(state)
    return reached


def _settled(state: State, pending: dict[int, Write | Read]) -> State:
    """Let those have their moment who change nothing and would be answered as they were."""
    value, fence, had = state
    now = {
        number
        for number, one in pending.items()
        if number not in had
        and (
            (isinstance(one, Read) and one.value == value and one.fence in {None, fence})
            or (isinstance(one, Write) and one.outcome == "refused" and one.fence < fence)
        )
    }
    return (value, fence, had | now) if now else state
