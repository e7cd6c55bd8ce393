"""Redlock: one lock on a majority of servers that are independent of each other.

A *round* asks the members concurrently, and counts if a majority grants in it. Two majorities have a member in
common, and that member does not grant to two owners. `docs/decisions/0006-redlock-quorum.md` shows why this stays
true, and fences keep growing, when members restart empty; and what is not promised.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
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
from lockstead.core.store import Examinable, Member
from lockstead.core.timing import LATE_REQUEST_WINDOW
from lockstead.errors import DamagedError, InvalidInputError, StoreError, UnsupportedError
from lockstead.stores.quorum.members import (
    DEFAULT_NODE_TIMEOUT,
    LONGEST_ROUND,
    MemberHealth,
    Members,
)
from lockstead.stores.quorum.placement import Departure, Placement, departure_from_all
from lockstead.stores.quorum.round import (
    InspectRound,
    JoinRound,
    LeaveRound,
    RenewRound,
    RepairRound,
    ReserveRound,
    Votes,
    WriteBackRound,
    answers,
    count,
    fill_unasked,
)
from lockstead.stores.tickets import ticket_floor

T = TypeVar("T")

_new = tuple.__new__
MIN_MEMBERS = 3
TICKET_LEAD = 10_000
"""Microseconds by which the requested ticket is ahead of our clock: so members with clocks ahead of ours draw the same
one."""


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
        self._placements: dict[tuple[str, str], Placement] = {}
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
        request = _new(Ask, (*ask[:-1], self._clock() + TICKET_LEAD))  # its floor; `_replace` takes 1 µs more
        votes = await JoinRound(self._members, request, member_timeout, placement).run()
        tickets = {number: vote.ticket for number, vote in enumerate(votes) if isinstance(vote, Standing)}
        if len(tickets) < self._majority:
            return await self._refuse(ask, votes, member_timeout)
        ticket = max(tickets.values())
        is_agreed = list(tickets.values()).count(ticket) >= self._majority
        if not self._is_in_time(sent) or not (
            is_agreed or await self._write_back(ask, ticket, list(tickets), member_timeout)
        ):
            raise self._unconfirmed(votes, ask.name)
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
        votes = await RenewRound(self._members, renewals, member_timeout).run()
        answered = answers(votes)
        if len(answered) < self._majority:
            raise self._no_majority(votes)
        in_time = self._is_in_time(sent)
        outcome: list[Standing] = []
        for entry in range(len(renewals)):
            tickets = [standing.ticket for answer in answered if (standing := answer[entry]).held]
            if len(tickets) + len(votes) - len(answered) < self._majority:
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
        if count(votes, bool) < self._majority:
            raise self._no_majority(votes, name)
        self._placements.pop((name, owner), None)
        return len(votes) - votes.count(False) >= self._majority

    async def reserve(self, reservation: Reservation, timeout: float) -> bool:
        """Reserve a place on every member that may have it; False if it was not on a majority any more.

        On a member that does not answer the place is released in the background, but only once enough others have
        answered: if this has to be repeated, the member is asked again.
        """
        name, owner = reservation.name, reservation.owner
        departure, placement = self._departure(name, owner, reservation.tombstone)
        member_timeout = min(timeout, self._node_timeout)
        reserve = ReserveRound(self._members, departure, placement, reservation, member_timeout)
        votes = await reserve.run()
        if not reserve.is_decided():
            raise self._no_majority(fill_unasked(votes, reserve.asked), name)
        reserve.settle()
        self._placements.pop((name, owner), None)
        return reserve.is_reserved()

    async def wait(self, name: str, owner: str, timeout: float) -> Wake:
        """Sleep: a quorum has no line, so nothing wakes a waiter."""
        await self.runtime.sleep(timeout)
        return Wake.TIMEOUT

    async def inspect(self, prefix: str = "", *, exact: bool = False) -> list[Line]:
        """Report what is held on a majority, assuming that members which do not answer would confirm it."""
        votes = await InspectRound(self._members, prefix, exact=exact).run()
        answered = answers(votes)
        if len(answered) < self._majority:
            raise self._no_majority(votes)
        found: dict[str, dict[str, list[tuple[Place, float]]]] = {}
        damage: dict[str, list[DamagedError]] = {}
        for line in (line for answer in answered for line in answer):
            if line.damage is not None:
                damage.setdefault(line.name, []).append(line.damage)
            for place in line.places:
                if place.acquired_at is not None:
                    found.setdefault(line.name, {}).setdefault(place.owner, []).append((place, line.now))
        silent = len(votes) - len(answered)
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
        votes = await RepairRound(self._members, name, timeout).run()
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

    async def _write_back(self, ask: Ask, ticket: int, held: Sequence[int], member_timeout: float) -> bool:
        """Raise the tickets of the places we have to the highest of them, and the counters they were drawn from.

        Otherwise the members that the next holder's majority has in common with ours might not have our fence. Only
        where our place still holds: a counter raised after another owner drew from it would be too late for that draw.
        """
        sent = self.runtime.now()
        write_back = WriteBackRound(self._members, held, ask, ticket, member_timeout)
        await write_back.run()
        return write_back.is_decided() and self._is_in_time(sent)

    async def _refuse(self, ask: Ask, votes: Votes[Standing | Refusal], member_timeout: float) -> Refusal:
        """Release the places that were granted, and return the holder; raise if none is known."""
        busy = [vote for vote in votes if isinstance(vote, Refusal) and not vote.abstains]
        if not busy or not self._is_answered(votes):
            error = self._no_majority(votes, ask.name)
            if not error.transient:
                self._placements.pop((ask.name, ask.owner), None)
            raise error
        held = count(votes, Standing)
        await self._leave(ask.name, ask.owner, member_timeout)
        self._placements.pop((ask.name, ask.owner), None)
        for refusal in busy:
            if refusal.capacity:
                return refusal
        ((holder, _),) = Counter(vote.holder for vote in busy).most_common(1)
        rechecks = sorted(vote.recheck for vote in busy)
        return Refusal(holder, rechecks[min(self._majority - held, len(busy)) - 1])

    async def _leave(self, name: str, owner: str, member_timeout: float, tombstone: float = 0.0) -> Votes[bool]:
        """Leave every member that may have a place; queue the release for those that do not answer."""
        departure, placement = self._departure(name, owner, tombstone)
        return await LeaveRound(self._members, departure, placement, member_timeout).run()

    def _departure(self, name: str, owner: str, tombstone: float) -> tuple[Departure, Placement]:
        """Find which members may have an owner's place: all, if this client has not joined as that owner."""
        now = self.runtime.now()
        placement = self._placements.get((name, owner))
        if placement is None:
            return departure_from_all(self._members.numbers, name, owner, now, tombstone), Placement()
        return placement.departure(name, owner, now), placement

    def _placement(self, ask: Ask, now: float) -> Placement:
        if len(self._placements) > self._sweep_above:
            for key, placement in list(self._placements.items()):
                if placement.until + LATE_REQUEST_WINDOW < now:
                    self._placements.pop(key, None)
            self._sweep_above = 2 * len(self._placements) + 64
        placement = self._placements.setdefault((ask.name, ask.owner), Placement())
        placement.until = max(placement.until, now + ask.ttl + self._node_timeout)
        return placement

    def _is_in_time(self, sent: float) -> bool:
        return self.runtime.now() - sent <= LONGEST_ROUND

    def _is_answered(self, votes: Votes[T]) -> bool:
        return len(answers(votes)) >= self._majority

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

    def _unconfirmed(self, votes: Votes[T], name: str) -> StoreError:
        """Report a majority that did not confirm in time, or not with one ticket. Some members may have a place."""
        reasons = "; ".join(self._reasons(votes)) or "they answered too late"
        msg = f"too few nodes confirmed {name!r} in time ({reasons}): check them with `lockstead doctor`"
        return StoreError(msg, name=name, transient=True)

    def _no_majority(self, votes: Votes[T], name: str = "") -> StoreError:
        """Name the members that do not answer or vote. Transient unless each refused: then there is nothing to undo."""
        reasons = self._reasons(votes)
        answered = len(answers(votes))
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
