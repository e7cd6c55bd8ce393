"""Redlock: one lock on a majority of servers that are independent of each other.

A *round* asks the members concurrently, and counts if a majority grants in it. Two majorities have a member in
common, and that member does not grant to two owners. `docs/decisions/0006-redlock-quorum.md` shows why this stays
true, and fences keep growing, when members restart empty; and what is not promised.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import TypeVar

from lockstead.core import lifecycle
from lockstead.core.model import (
    GONE,
    UNKNOWN,
    Ask,
    Capabilities,
    Finding,
    Line,
    Place,
    PlaceState,
    Refusal,
    Renewal,
    Reservation,
    Standing,
    Wake,
)
from lockstead.core.runtime import Runtime
from lockstead.core.store import Examinable, Member, Repairable
from lockstead.core.timing import LATE_REQUEST_WINDOW
from lockstead.errors import DamagedError, InvalidInputError, StoreError, UnsupportedError
from lockstead.stores.quorum.members import (
    DEFAULT_NODE_TIMEOUT,
    LONGEST_ROUND,
    MemberHealth,
    Members,
    UnaskedError,
    Votes,
    all_answered,
)
from lockstead.stores.tickets import ticket_floor

T = TypeVar("T")

MIN_MEMBERS = 3
TICKET_LEAD = 10_000
"""Microseconds by which the requested ticket is ahead of our clock: so members with clocks ahead of ours draw the same
one."""
PENDING_RELEASE_TTL = 60.0
"""Seconds for which the release of a place is retried whose expiry is not known."""


@dataclass(slots=True)
class _Placement:
    """The members on which one owner may have a place."""

    granted: set[int] = field(default_factory=set)
    in_doubt: list[set[int]] = field(default_factory=list)
    """For each attempt to join, the members that have not answered it."""
    reserved: set[int] = field(default_factory=set)
    """The members that have confirmed the reservation."""
    until: float = -inf
    """When the last of the places will have expired, by our clock."""

    def members_in_doubt(self) -> set[int]:
        return set().union(*self.in_doubt)

    def members(self) -> list[int]:
        return sorted(self.granted | self.members_in_doubt())


class Quorum:
    """A store made of members, best an odd number of servers that fail independently of each other.

    Exclusive locks only, not fair. A minority may be down: that costs one `node_timeout` once, and a member that is
    down is probed in the background.
    """

    def __init__(
        self,
        runtime: Runtime,
        members: Sequence[Member],
        names: Sequence[str],
        *,
        node_timeout: float = DEFAULT_NODE_TIMEOUT,
        clock: Callable[[], int] = ticket_floor,
    ) -> None:
        if len(members) < MIN_MEMBERS:
            msg = (
                f"a quorum needs at least {MIN_MEMBERS} members, got {len(members)}: with two, the loss of either one "
                "stops all locking"
            )
            raise InvalidInputError(msg)
        if not 0 < node_timeout <= LONGEST_ROUND / 2:
            msg = f"node_timeout must be above 0 and at most {LONGEST_ROUND / 2:g} seconds, got {node_timeout}"
            raise InvalidInputError(msg)
        self.runtime = runtime
        self.address = f"redlock://{','.join(names)}"
        self.capabilities = Capabilities(
            fifo=False,
            push=False,
            semaphore=False,
            shared=False,
            processes=all(member.capabilities.processes for member in members),
        )
        self._stores = members
        self._members = Members(runtime, members, names, node_timeout)
        self._majority = self._members.majority
        self._node_timeout = node_timeout
        self._clock = clock
        weakref.finalize(self, self._members.stop)
        self._reset()
        lifecycle.at_fork(self, in_child="_reset")

    def _reset(self) -> None:
        self._placements: dict[tuple[str, str], _Placement] = {}
        self._sweep_above = 64

    async def join(self, ask: Ask, timeout: float) -> Standing | Refusal:
        """Take a place on a majority.

        After a StoreError some members may have a place: repeat the same join, or call `leave`.
        """
        if ask.queue or ask.capacity > 1:
            msg = "a quorum supports exclusive locks only, and has no queue to wait in"
            raise UnsupportedError(msg, name=ask.name)
        await self._members.bootstrap()
        member_timeout = min(timeout, self._node_timeout)
        sent = self.runtime.now()
        placement = self._placement(ask, sent)
        request = ask._replace(floor=self._clock() + TICKET_LEAD)
        in_doubt: set[int] = set()
        placement.in_doubt.append(in_doubt)

        def on_answer(number: int, vote: Standing | Refusal | Exception) -> None:
            if isinstance(vote, Standing):
                placement.granted.add(number)
            elif isinstance(vote, Refusal):
                if vote.abstains:
                    self._members.start_admission()
            elif not isinstance(vote, StoreError) or vote.transient:
                return
            in_doubt.discard(number)

        votes = await self._members.ask(
            lambda _, member: member.join(request, member_timeout),
            self._is_join_decided,
            self._is_join_sufficient,
            on_send=in_doubt.update,
            on_answer=on_answer,
        )
        tickets = {number: vote.ticket for number, vote in enumerate(votes) if isinstance(vote, Standing)}
        if len(tickets) < self._majority:
            return await self._refuse(ask, votes, member_timeout)
        ticket = max(tickets.values())
        is_agreed = list(tickets.values()).count(ticket) >= self._majority
        if not self._is_in_time(sent) or not (
            is_agreed or await self._write_back(ask, ticket, tickets, member_timeout)
        ):
            reasons = "; ".join(self._reasons(votes)) or "they answered too late"
            msg = f"too few nodes confirmed {ask.name!r} in time ({reasons}): check them with `lockstead doctor`"
            raise StoreError(msg, name=ask.name, transient=True)
        return Standing(PlaceState.HELD, ticket, self.runtime.now())

    async def renew(self, renewals: Sequence[Renewal], timeout: float) -> list[Standing]:
        """Renew places on the members that have them. UNKNOWN if no majority answered whether the place holds."""
        if not renewals:
            return []
        member_timeout = min(timeout, self._node_timeout)
        sent = self.runtime.now()
        for renewal in renewals:
            if placement := self._placements.get((renewal.name, renewal.owner)):
                placement.until = max(placement.until, sent + renewal.ttl + self._node_timeout)

        def is_decided(votes: Votes[list[Standing]]) -> bool:
            answers = _answers(votes)
            silent = len(votes) - len(answers)
            held = [sum(answer[entry].held for answer in answers) for entry in range(len(renewals))]
            return all(number >= self._majority or number + silent < self._majority for number in held)

        votes = await self._members.ask(
            lambda _, member: member.renew(renewals, member_timeout), is_decided, is_decided
        )
        answers = _answers(votes)
        if len(answers) < self._majority:
            raise self._no_majority(votes)
        in_time = self._is_in_time(sent)
        outcome: list[Standing] = []
        for entry in range(len(renewals)):
            tickets = [standing.ticket for answer in answers if (standing := answer[entry]).held]
            if len(tickets) + len(votes) - len(answers) < self._majority:
                outcome.append(GONE)
            else:
                is_held = in_time and len(tickets) >= self._majority
                outcome.append(Standing(PlaceState.HELD, max(tickets), self.runtime.now()) if is_held else UNKNOWN)
        return outcome

    async def leave(self, name: str, owner: str, timeout: float, tombstone: float = 0.0) -> bool:
        """Release a place on every member that may have it; False if it was not on a majority any more.

        A member that does not answer is asked again in the background, if another owner can hold without it.
        """
        votes = await self._leave(name, owner, min(timeout, self._node_timeout), tombstone)
        if _count(votes, bool) < self._majority:
            raise self._no_majority(votes, name)
        self._placements.pop((name, owner), None)
        return len(votes) - votes.count(False) >= self._majority

    async def reserve(self, reservation: Reservation, timeout: float) -> bool:
        """Reserve a place on every member that may have it; False if it was not on a majority any more.

        On a member that does not answer the place is released in the background, but only once enough others have
        answered: if this has to be repeated, the member is asked again.
        """
        name, owner = reservation.name, reservation.owner
        member_timeout = min(timeout, self._node_timeout)
        members, until, tombstones = self._locate(name, owner, reservation.tombstone)
        placement = self._placements.get((name, owner)) or _Placement()
        reserved = placement.reserved
        is_over = False

        def queue_release(number: int) -> None:
            self._members.queue_release(number, name, owner, tombstones[number], until)

        def on_answer(number: int, vote: object) -> None:
            if not isinstance(vote, Exception):
                placement.granted.discard(number)
                if vote:
                    reserved.add(number)
            elif is_over and not isinstance(vote, DamagedError):
                queue_release(number)

        def is_decided(votes: Votes[bool]) -> bool:
            return len(reserved) >= self._majority or len(reserved.union(_silent(votes, members))) < self._majority

        votes = await self._members.ask(
            lambda number, member: member.reserve(reservation._replace(tombstone=tombstones[number]), member_timeout),
            is_decided,
            is_decided,
            among=members,
            on_answer=on_answer,
        )
        if not is_decided(votes):
            raise self._no_majority(_fill_unasked(votes, members), name)
        is_over = True
        for number in _silent(votes, members):
            if isinstance(votes[number], Exception) and not isinstance(votes[number], DamagedError):
                queue_release(number)
        self._placements.pop((name, owner), None)
        return len(reserved) >= self._majority

    async def wait(self, name: str, owner: str, timeout: float) -> Wake:
        """Sleep: a quorum has no line, so nothing wakes a waiter."""
        await self.runtime.sleep(timeout)
        return Wake.TIMEOUT

    async def inspect(self, prefix: str = "", *, exact: bool = False) -> list[Line]:
        """Report what is held on a majority, assuming that members which do not answer would confirm it."""
        votes = await self._members.ask(
            lambda _, member: member.inspect(prefix, exact=exact), all_answered, self._is_answered
        )
        answers = _answers(votes)
        if len(answers) < self._majority:
            raise self._no_majority(votes)
        found: dict[str, dict[str, list[tuple[Place, float]]]] = {}
        damage: dict[str, list[DamagedError]] = {}
        for line in (line for answer in answers for line in answer):
            if line.damage is not None:
                damage.setdefault(line.name, []).append(line.damage)
            for place in line.places:
                if place.acquired_at is not None:
                    found.setdefault(line.name, {}).setdefault(place.owner, []).append((place, line.now))
        silent = len(votes) - len(answers)
        lines = []
        for name in sorted({*found, *damage}):
            errors = damage.get(name, [])
            # a member that cannot read its record may have the place, like one that does not answer
            unknown = silent + len(errors)
            places = max(found[name].values(), key=len) if name in found else []
            if places and len(places) + unknown >= self._majority:
                lines.append(self._line(name, places, unknown)._replace(damage=errors[0] if errors else None))
            elif errors:
                lines.append(Line(name, 0.0, (), errors[0]))
        return lines

    async def repair(self, name: str, timeout: float) -> None:
        """Remove what is damaged on every member that answers."""

        async def repair(member: Member) -> bool:
            if isinstance(member, Repairable):
                await member.repair(name, timeout)
            return True

        votes = await self._members.ask(lambda _, member: repair(member), all_answered, all_answered)
        if not self._is_answered(votes):
            raise self._no_majority(votes, name)

    async def health(self) -> list[MemberHealth]:
        """Report for every member whether it answers, and when it votes."""
        return await self._members.health()

    async def examine(self) -> list[Finding]:
        """Report for every member whether it answers and votes, and its own findings."""
        await self._members.bootstrap()
        found: list[Finding] = []
        for member, health in zip(self._stores, await self.health(), strict=True):
            if not health.reachable:
                found.append(Finding("error", health.name, health.error.removeprefix(f"{health.name}: ")))
                continue
            if health.votes_in > 0:
                when = "once enough other nodes answer" if health.votes_in == inf else f"in {health.votes_in:.0f} s"
                found.append(Finding("warning", health.name, f"it restarted empty, and votes {when}"))
            if isinstance(member, Examinable):
                found += await member.examine()
        return found

    async def close(self) -> None:
        """Close the connections to all members."""
        await self._members.close()

    async def _write_back(self, ask: Ask, ticket: int, held: Iterable[int], member_timeout: float) -> bool:
        """Raise the tickets of the places we have to the highest of them, and the counters they were drawn from.

        Otherwise the members that the next holder's majority has in common with ours might not have our fence. Only
        where our place still holds: a counter raised after another owner drew from it would be too late for that draw.
        """
        renewals = [Renewal(ask.name, ask.owner, ask.ttl, ask.heartbeat, floor=ticket)]

        def is_raised(votes: Votes[list[Standing]]) -> bool:
            standings = [standing for (standing,) in _answers(votes)]
            return sum(each.held and each.ticket >= ticket for each in standings) >= self._majority

        sent = self.runtime.now()
        votes = await self._members.ask(
            lambda _, member: member.renew(renewals, member_timeout), is_raised, is_raised, among=held
        )
        return is_raised(votes) and self._is_in_time(sent)

    async def _refuse(self, ask: Ask, votes: Votes[Standing | Refusal], member_timeout: float) -> Refusal:
        """Release the places that were granted, and return the holder; raise if none is known."""
        busy = [vote for vote in votes if isinstance(vote, Refusal) and not vote.abstains]
        if not busy or not self._is_answered(votes):
            error = self._no_majority(votes, ask.name)
            if not error.transient:
                self._placements.pop((ask.name, ask.owner), None)
            raise error
        held = _count(votes, Standing)
        await self._leave(ask.name, ask.owner, member_timeout)
        self._placements.pop((ask.name, ask.owner), None)
        for refusal in busy:
            if refusal.capacity:
                return refusal
        ((holder, _),) = Counter(vote.holder for vote in busy).most_common(1)
        rechecks = sorted(vote.recheck for vote in busy)
        return Refusal(holder, rechecks[min(self._majority - held, len(busy)) - 1])

    async def _leave(
        self, name: str, owner: str, member_timeout: float, tombstone: float = 0.0
    ) -> list[bool | Exception | None]:
        """Leave every member that may have a place; queue the release for those that do not answer."""
        placement = self._placements.get((name, owner))
        members, until, tombstones = self._locate(name, owner, tombstone)

        def on_answer(number: int, vote: object) -> None:
            if isinstance(vote, Exception):
                if not isinstance(vote, DamagedError):  # a damaged line has no place to release
                    self._members.queue_release(number, name, owner, tombstones[number], until)
            elif placement is not None:
                placement.granted.discard(number)

        def are_free(votes: Votes[bool]) -> bool:
            silent = len(members) - _count(votes, bool)
            return len(votes) - silent >= self._majority

        votes = await self._members.ask(
            lambda number, member: member.leave(name, owner, member_timeout, tombstones[number]),
            are_free,
            are_free,
            among=members,
            on_answer=on_answer,
        )
        for number, vote in enumerate(votes):
            if isinstance(vote, UnaskedError):
                self._members.queue_release(number, name, owner, tombstones[number], until)
        return _fill_unasked(votes, members)

    def _locate(self, name: str, owner: str, tombstone: float) -> tuple[Sequence[int], float, dict[int, float]]:
        """Return which members may have an owner's place, until when, and for how long each is to refuse the owner."""
        placement = self._placements.get((name, owner))
        if placement is None:
            every_member = range(len(self._members))
            return (
                every_member,
                self.runtime.now() + max(PENDING_RELEASE_TTL, tombstone),
                dict.fromkeys(every_member, tombstone),
            )
        members, until = placement.members(), placement.until
        late_request_window = max(until - self.runtime.now(), LATE_REQUEST_WINDOW)
        tombstones = dict.fromkeys(placement.members_in_doubt(), late_request_window)
        return members, until, dict.fromkeys(members, 0.0) | tombstones

    def _placement(self, ask: Ask, now: float) -> _Placement:
        if len(self._placements) > self._sweep_above:
            for key, placement in list(self._placements.items()):
                if placement.until + LATE_REQUEST_WINDOW < now:
                    self._placements.pop(key, None)
            self._sweep_above = 2 * len(self._placements) + 64
        placement = self._placements.setdefault((ask.name, ask.owner), _Placement())
        placement.until = max(placement.until, now + ask.ttl + self._node_timeout)
        return placement

    def _is_in_time(self, sent: float) -> bool:
        return self.runtime.now() - sent <= LONGEST_ROUND

    def _is_answered(self, votes: Votes[T]) -> bool:
        return len(_answers(votes)) >= self._majority

    def _is_join_decided(self, votes: Votes[Standing | Refusal]) -> bool:
        """Return whether no further vote can change the outcome of a join."""
        return _count(votes, Standing) >= self._majority or _count(votes, Refusal) > len(votes) - self._majority

    def _is_join_sufficient(self, votes: Votes[Standing | Refusal]) -> bool:
        """Return whether a join need not ask the suspected members."""
        held = _count(votes, Standing)
        is_busy = any(isinstance(vote, Refusal) and not vote.abstains for vote in votes)
        return held >= self._majority or (is_busy and self._is_answered(votes))

    def _line(self, name: str, places: Sequence[tuple[Place, float]], silent: int) -> Line:
        """Merge the members' places into one line: it lasts for as long as the places on a majority do.

        A majority has the holder's fence, though not all of it may have answered. A vote that came too late has a
        ticket that does not count.
        """
        place, now = places[0]
        remaining = sorted(place.expires_at - now for place, now in places)
        lasts = remaining[min(len(remaining) + silent - self._majority, len(remaining) - 1)]
        tickets = Counter(place.ticket for place, _ in places)
        ticket = max(tickets, key=lambda each: (tickets[each], each))
        return Line(name, now, (replace(place, ticket=ticket, expires_at=now + lasts),))

    def _no_majority(self, votes: Votes[T], name: str = "") -> StoreError:
        """Name the members that do not answer or vote. Transient unless each refused: then there is nothing to undo."""
        reasons = self._reasons(votes)
        answered = len(_answers(votes))
        lead = "too few nodes vote" if answered >= self._majority else f"only {answered} of {len(votes)} nodes answered"
        is_final = all(isinstance(vote, StoreError) and not vote.transient for vote in votes)
        return StoreError(f"{lead}: {'; '.join(reasons)}", name=name, transient=not is_final)

    def _reasons(self, votes: Votes[T]) -> list[str]:
        """Say of each member that does not answer or vote why it does not."""
        reasons = []
        for number, vote in enumerate(votes):
            if vote is None or isinstance(vote, Exception):
                reasons.append(self._members.describe(number, vote or "no answer yet"))
            elif isinstance(vote, Refusal) and vote.abstains:
                when = (
                    f"votes in {vote.recheck:.0f} s" if vote.recheck < inf else "waits for the other nodes to admit it"
                )
                reasons.append(self._members.describe(number, f"restarted empty, and {when}"))
        return reasons


def _silent(votes: Votes[bool], members: Sequence[int]) -> list[int]:
    return [number for number in members if not isinstance(votes[number], bool)]


def _fill_unasked(votes: Votes[bool], members: Sequence[int]) -> list[bool | Exception | None]:
    """Add the answer of the members that have no place, and so were not asked: False."""
    return [vote if number in members else False for number, vote in enumerate(votes)]


def _answers(votes: Votes[T]) -> list[T]:
    return [vote for vote in votes if vote is not None and not isinstance(vote, Exception)]


def _count(votes: Votes[T], kind: type) -> int:
    return list(map(type, votes)).count(kind)
