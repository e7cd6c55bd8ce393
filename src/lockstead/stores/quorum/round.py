"""A round: one request to several members at once, and their votes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Coroutine, Sequence
from typing import Any, Generic, TypeVar

from lockstead.core.model import Ask, Line, Refusal, Renewal, Reservation, Standing
from lockstead.core.runtime import InFlight
from lockstead.core.store import Repairable
from lockstead.errors import DamagedError, StoreError
from lockstead.stores.quorum.members import VOTE_GRACE, Members
from lockstead.stores.quorum.placement import Departure, Placement

T = TypeVar("T")
Request = Coroutine[Any, Any, T] | InFlight[T]
Votes = Sequence[T | Exception | None]
"""Each member's answer; None where there is none yet."""


class UnaskedError(StoreError):
    """The member was not asked: it was unreachable recently, and the others sufficed."""


class Round(ABC, Generic[T]):
    """Asks the members, and says when it is decided. A subclass is one kind of request."""

    def __init__(self, members: Members, asked: Sequence[int]) -> None:
        self.members = members
        self.majority = members.majority
        self.asked = asked
        self.votes: list[T | Exception | None] = [None] * len(members)

    @abstractmethod
    def send(self, number: int) -> Request[T]:
        """Send the request to one member, or return a coroutine that does."""

    def take(self, number: int, outcome: T | Exception) -> None:
        """Take a vote: every one, even if it arrives after the decision."""
        self.votes[number] = outcome
        if isinstance(outcome, Exception):
            self.members.note_failure(number, outcome)

    @abstractmethod
    def is_decided(self) -> bool:
        """Return whether to wait for no further vote."""

    def is_sufficient(self) -> bool:
        """Return whether the suspected members need not be asked."""
        return self.is_decided()

    async def run(self) -> Votes[T]:
        """Ask concurrently until it is decided; suspected members only if the others do not suffice.

        What is not answered by then is awaited in the background.
        """
        gather = self.members.runtime.gather
        trusted, suspected = self.members.by_health(self.asked)
        await gather(self, trusted, VOTE_GRACE)
        if suspected:
            if self.is_sufficient():
                for number in suspected:
                    self.votes[number] = UnaskedError(self.members.error_of(number), transient=True)
            else:
                await gather(self, suspected, VOTE_GRACE)
        return self.votes.copy()  # to which no late vote is added


class JoinRound(Round[Standing | Refusal]):
    """Ask every member for a place, and remember those that may have given one."""

    def __init__(self, members: Members, ask: Ask, timeout: float, placement: Placement) -> None:
        super().__init__(members, members.numbers)
        self._request = ask
        self._timeout = timeout
        self._placement = placement
        self._in_doubt = placement.begin_attempt()

    def send(self, number: int) -> Request[Standing | Refusal]:
        self._in_doubt.add(number)  # before anything can interrupt
        sender = self.members.senders[number]
        in_flight = None if sender is None else sender.send_join(self._request, self._timeout)
        return in_flight or self.members.stores[number].join(self._request, self._timeout)

    def take(self, number: int, outcome: Standing | Refusal | Exception) -> None:
        if type(outcome) is Standing:
            self.votes[number] = outcome
            self._placement.granted.add(number)
            self._in_doubt.discard(number)
            return
        super().take(number, outcome)
        if isinstance(outcome, Refusal):
            if outcome.abstains:
                self.members.start_admission()
        elif not isinstance(outcome, StoreError) or outcome.transient:
            return  # it may have given a place all the same
        self._in_doubt.discard(number)

    def is_decided(self) -> bool:
        kinds = list(map(type, self.votes))
        return kinds.count(Standing) >= self.majority or kinds.count(Refusal) > len(kinds) - self.majority

    def is_sufficient(self) -> bool:
        """Return whether it is granted, or is not and some vote names the holder."""
        granted, refused = count(self.votes, Standing), count(self.votes, Refusal)
        is_busy = any(isinstance(vote, Refusal) and not vote.abstains for vote in self.votes)
        return granted >= self.majority or (is_busy and granted + refused >= self.majority)


class RenewRound(Round[list[Standing]]):
    """Ask every member to renew places."""

    def __init__(self, members: Members, renewals: Sequence[Renewal], timeout: float) -> None:
        super().__init__(members, members.numbers)
        self._renewals = renewals
        self._timeout = timeout

    def send(self, number: int) -> Request[list[Standing]]:
        return self.members.stores[number].renew(self._renewals, self._timeout)

    def is_decided(self) -> bool:
        """Return whether each place is on a majority, or cannot be."""
        answered = answers(self.votes)
        silent = len(self.votes) - len(answered)
        held = [sum(answer[entry].held for answer in answered) for entry in range(len(self._renewals))]
        return all(number >= self.majority or number + silent < self.majority for number in held)


class WriteBackRound(Round[list[Standing]]):
    """Ask the members that gave a place to raise its ticket, and their counter, to the highest of them."""

    def __init__(self, members: Members, held: Sequence[int], ask: Ask, ticket: int, timeout: float) -> None:
        super().__init__(members, held)
        self._renewals = [Renewal(ask.name, ask.owner, ask.ttl, ask.heartbeat, floor=ticket)]
        self._ticket = ticket
        self._timeout = timeout

    def send(self, number: int) -> Request[list[Standing]]:
        return self.members.stores[number].renew(self._renewals, self._timeout)

    def is_decided(self) -> bool:
        standings = [standing for (standing,) in answers(self.votes)]
        return sum(each.held and each.ticket >= self._ticket for each in standings) >= self.majority


class LeaveRound(Round[bool]):
    """Ask the members that may have a place to release it; queue the release for those that do not answer."""

    def __init__(self, members: Members, departure: Departure, placement: Placement, timeout: float) -> None:
        super().__init__(members, departure.members)
        self._departure = departure
        self._placement = placement
        self._timeout = timeout

    def send(self, number: int) -> Request[bool]:
        name, owner, _, _, tombstones = self._departure
        if number in tombstones:
            return self.members.stores[number].leave(name, owner, self._timeout, tombstones[number])
        sender = self.members.senders[number]
        in_flight = None if sender is None else sender.send_leave(name, owner, self._timeout)
        return in_flight or self.members.stores[number].leave(name, owner, self._timeout)

    def take(self, number: int, outcome: bool | Exception) -> None:  # noqa: FBT001 (a vote, as of any round)
        if type(outcome) is bool:
            self.votes[number] = outcome
            self._placement.granted.discard(number)
            return
        super().take(number, outcome)
        if not isinstance(outcome, DamagedError):  # a damaged line has no place to release
            self.members.queue_release(number, self._departure)

    def is_decided(self) -> bool:
        """Return whether another owner can hold without the members that have not answered."""
        silent = len(self.asked) - count(self.votes, bool)
        return len(self.votes) - silent >= self.majority

    async def run(self) -> Votes[bool]:
        votes = await super().run()
        for number, vote in enumerate(votes):
            if isinstance(vote, UnaskedError):
                self.members.queue_release(number, self._departure)
        return fill_unasked(votes, self.asked)


class ReserveRound(Round[bool]):
    """Ask the members that may have a place to turn it into a reservation.

    What the members confirmed counts in later rounds of the same reservation, too.
    """

    def __init__(
        self, members: Members, departure: Departure, placement: Placement, reservation: Reservation, timeout: float
    ) -> None:
        super().__init__(members, departure.members)
        self._departure = departure
        self._placement = placement
        self._reservation = reservation
        self._timeout = timeout
        self._is_settled = False

    def send(self, number: int) -> Request[bool]:
        tombstone = self._departure.tombstones.get(number, 0.0)
        return self.members.stores[number].reserve(self._reservation._replace(tombstone=tombstone), self._timeout)

    def take(self, number: int, outcome: bool | Exception) -> None:  # noqa: FBT001 (as above)
        super().take(number, outcome)
        if not isinstance(outcome, Exception):
            self._placement.granted.discard(number)
            if outcome:
                self._placement.reserved.add(number)
        elif self._is_settled and not isinstance(outcome, DamagedError):
            self.members.queue_release(number, self._departure)

    def is_reserved(self) -> bool:
        return len(self._placement.reserved) >= self.majority

    def is_decided(self) -> bool:
        possible = self._placement.reserved.union(self._silent())
        return self.is_reserved() or len(possible) < self.majority

    def settle(self) -> None:
        """Release the place, in the background, where the reservation is not confirmed: it will not be repeated."""
        self._is_settled = True
        for number in self._silent():
            vote = self.votes[number]
            if isinstance(vote, Exception) and not isinstance(vote, DamagedError):
                self.members.queue_release(number, self._departure)

    def _silent(self) -> list[int]:
        return [number for number in self.asked if not isinstance(self.votes[number], bool)]


class InspectRound(Round[list[Line]]):
    def __init__(self, members: Members, prefix: str, *, exact: bool) -> None:
        super().__init__(members, members.numbers)
        self._prefix = prefix
        self._exact = exact

    def send(self, number: int) -> Request[list[Line]]:
        return self.members.stores[number].inspect(self._prefix, exact=self._exact)

    def is_decided(self) -> bool:
        return None not in self.votes

    def is_sufficient(self) -> bool:
        return len(answers(self.votes)) >= self.majority


class RepairRound(Round[bool]):
    def __init__(self, members: Members, name: str, timeout: float) -> None:
        super().__init__(members, members.numbers)
        self._name = name
        self._timeout = timeout

    async def send(self, number: int) -> bool:
        member = self.members.stores[number]
        if isinstance(member, Repairable):
            await member.repair(self._name, self._timeout)
        return True

    def is_decided(self) -> bool:
        return None not in self.votes


def answers(votes: Votes[T]) -> list[T]:
    return [vote for vote in votes if vote is not None and not isinstance(vote, Exception)]


def count(votes: Votes[T], kind: type) -> int:
    return list(map(type, votes)).count(kind)


def fill_unasked(votes: Votes[bool], asked: Sequence[int]) -> list[bool | Exception | None]:
    """Add the answer of the members that have no place, and so were not asked: False."""
    if len(asked) == len(votes):
        return list(votes)
    return [vote if number in asked else False for number, vote in enumerate(votes)]
