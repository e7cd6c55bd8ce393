"""A model of Redlock: clients acquire, renew and release a lock on a majority of members, some of which lose data.

`docs/model.md` says what is left out, and which code each step stands for.

There is no clock. That time has passed shows in what has ended by then: a trust window closes at any moment, and only
then may the places end that it rests on; a pause of the protocol is over once all is over that it outlasts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations
from typing import NamedTuple, TypeVar

from tests.model.checker import Step, Violation

T = TypeVar("T")


class Scope(NamedTuple):
    members: int = 3
    clients: int = 2
    ttls: tuple[int, ...] = (1,)
    """The ttls that clients use, by rank."""
    losses: int = 0
    """How many answers are lost in one run."""
    data_losses: int = 0
    """How often a member loses its data, while all others keep theirs."""
    spread: int = 1
    """How far members' counters may get apart."""
    acquisitions: int = -1
    """How often each client may ask for the lock; without end if negative."""
    renewals: bool = False
    repeats: bool = False
    """Whether a join that failed may be repeated under the same owner."""
    late_admissions: bool = False
    """Whether the same admission may be made by two clients, and the second be late."""


IDLE, JOINING, RAISING, HELD, RENEWING = range(5)
"""What a client is at: a round that takes places, one that writes the fence back, holding, and a round that renews."""

VOTES, EMPTY, PROBED, SETTLED, ADMITTED = range(5)
"""The status of a member: EMPTY lost its data, PROBED has a new token, SETTLED waits for the others to be asked, and
ADMITTED for the longest ttl to be over."""

ENDS, COVERED, FRESH = range(3)
"""When a place expires: it may end at any moment; not before its owner's trust window closes; nor before that of the
round that is just under way would."""

OUT, NO = 0, -1
"""A vote that is not known, and one that does not count; any other is a ticket."""

NO_CLIENT = -1
FREE = -2


class Member(NamedTuple):
    status: int
    counter: int
    longest: int
    """The longest ttl it knows of."""
    owner: int
    ticket: int
    expiry: int
    is_read: bool
    """Whether it was asked for the data that another member lost."""
    late: tuple[int, ...]
    """A ticket and a ttl that a client was about to admit it with, before it lost its data once more."""
    votes: tuple[int, ...]
    """The vote that each client received from it in the round under way."""
    counted: tuple[bool, ...]
    """Whose trust window rests on its vote."""


class Client(NamedTuple):
    acquisitions: int
    """How many it may yet begin."""
    phase: int = IDLE
    ttl: int = 0
    fence: int = 0


class State(NamedTuple):
    members: tuple[Member, ...]
    clients: tuple[Client, ...]
    top: int = 0
    """The highest fence that any client ever held under."""
    losses: int = 0
    data_losses: int = 0
    """How many of both may yet happen."""


class RedlockModel:
    def __init__(self, scope: Scope = Scope()) -> None:  # noqa: B008
        self.scope = scope
        self.majority = scope.members // 2 + 1
        self.served: dict[tuple[Member, int, Client], Member] = {}
        """All requests that a member ever got, by client, and what became of them."""

    def draw(self, member: Member) -> int:
        return member.counter + 1

    def raised(self, member: Member, client: int, fence: int) -> Member:
        """Raise a place that holds, and the counter, to the fence; a member that has no such place takes no notice."""
        if member.owner != client:
            return member
        ticket = max(member.ticket, fence)
        return member._replace(ticket=ticket, counter=max(member.counter, ticket), expiry=FRESH)

    def confirms(self, member: Member, client: int) -> bool:
        return member.owner == client

    def refreshed(self, member: Member, client: int, ttl: int) -> Member:
        return member._replace(expiry=FRESH, longest=max(member.longest, ttl)) if member.owner == client else member

    def joined(self, member: Member, client: int, ttl: int) -> Member:
        """Give a client a place where there is none, or refresh its own."""
        if not self.gives_places(member):
            return member
        if member.owner == FREE:
            ticket = self.draw(member)
            member = member._replace(owner=client, ticket=ticket, counter=ticket)
        return self.refreshed(member, client, ttl)

    def gives_places(self, member: Member) -> bool:
        return member.status == VOTES

    def must_write_back(self, tickets: list[int]) -> bool:
        return tickets.count(max(tickets)) < self.majority

    def counts(self, votes: list[int]) -> bool:
        """Return whether enough members said yes in a round."""
        return sum(vote > 0 for vote in votes) >= self.majority

    def is_over(self, state: State, number: int) -> bool:
        """Return whether every round is over in which a member voted and lost its data since."""
        member = state.members[number]
        return not any(vote > 0 and member.owner != client for client, vote in enumerate(member.votes))

    def has_outlived(self, state: State, number: int) -> bool:
        """Return whether every trust window is closed that rests on a vote a member has lost, if it knows its ttl."""
        member = state.members[number]
        return not any(
            counted and member.owner != client and state.clients[client].ttl <= member.longest
            for client, counted in enumerate(member.counted)
        )

    def enough_to_admit(self, others: list[Member]) -> bool:
        return sum(other.is_read for other in others) > (self.scope.members - 1) // 2

    def updated_from(self, member: Member, other: Member) -> Member:
        """Take over what another member knows, before voting again."""
        counter, longest = max(member.counter, other.counter), max(member.longest, other.longest)
        return member._replace(counter=counter, longest=longest)

    def late_admission(self, member: Member) -> Member:
        """Apply an admission under a token that the member had before it lost its data once more."""
        return member._replace(late=())

    def emptied(self, member: Member) -> Member:
        return member._replace(status=EMPTY, counter=0, longest=0, owner=FREE, ticket=0, expiry=ENDS)

    def start(self) -> State:
        no_requests = (OUT,) * self.scope.clients
        member = Member(VOTES, 1, 0, FREE, 0, ENDS, False, (), no_requests, (False,) * self.scope.clients)
        return State(
            (member,) * self.scope.members,
            (Client(self.scope.acquisitions),) * self.scope.clients,
            1,
            self.scope.losses,
            self.scope.data_losses,
        )

    def steps(self, state: State) -> Iterator[Step[State]]:
        for step in self._all_steps(state):
            if isinstance(step.after, Violation) or self._is_in_scope(step.after):
                yield step

    def _all_steps(self, state: State) -> Iterator[Step[State]]:
        for number, client in enumerate(state.clients):
            yield from self._client_steps(state, number, client)
        for number, member in enumerate(state.members):
            yield from self._member_steps(state, number, member)

    def _client_steps(self, state: State, number: int, client: Client) -> Iterator[Step[State]]:
        name = "AB"[number]
        if client.phase == IDLE:
            for ttl in self.scope.ttls if client.acquisitions else ():
                left = max(client.acquisitions - 1, -1)
                after = self._begin_round(state, number, Client(left, JOINING, ttl))
                yield Step(f"{name} asks all members for a place of ttl {ttl}", after)
            return
        if client.phase in (JOINING, RAISING, RENEWING):
            for which in range(self.scope.members):
                yield from self._vote_steps(state, number, client, which)
            yield from self._end_of_round(state, number, client)
        if client.phase == HELD and self.scope.renewals:
            yield Step(f"{name} renews", self._begin_round(state, number, client._replace(phase=RENEWING)))
        if client.phase in (HELD, RENEWING):
            yield Step(f"{name} releases", self._end(state, number))
            yield Step(f"{name}'s trust window closes", self._end(state, number))
        else:
            yield Step(f"{name} gives up", self._end(state, number))
            if self.scope.repeats:
                yield Step(f"{name} asks all members once more", self._repeat(state, number, client))

    def _vote_steps(self, state: State, number: int, client: Client, which: int) -> Iterator[Step[State]]:
        member = state.members[which]
        if member.votes[number] != OUT:
            return
        if client.phase == JOINING:
            after = self.joined(member, number, client.ttl)
        elif client.phase == RAISING:
            after = self.raised(member, number, client.fence)
        else:
            after = self.refreshed(member, number, client.ttl)
        self.served[_alone(member), number, client._replace(acquisitions=0)] = _alone(after)
        is_yes = self.confirms(after, number) and (client.phase != RAISING or after.ticket >= client.fence)
        label = f"member {which} gets {'AB'[number]}'s {('join', 'write-back', '', 'renewal')[client.phase - 1]}"
        answered = after._replace(votes=_put(after.votes, number, after.ticket if is_yes else NO))
        yield Step(label, state._replace(members=_put(state.members, which, answered)))
        if is_yes and state.losses:
            without_reply = after._replace(votes=_put(after.votes, number, NO))
            after_all = state._replace(members=_put(state.members, which, without_reply), losses=state.losses - 1)
            yield Step(f"{label}, but its answer is lost", after_all, is_fault=True)

    def _end_of_round(self, state: State, number: int, client: Client) -> Iterator[Step[State]]:
        name = "AB"[number]
        votes = [member.votes[number] for member in state.members]
        if client.phase == RENEWING:
            if self.counts(votes):
                yield Step(f"{name} has renewed", self._hold(state, number, client))
            if sum(vote == NO for vote in votes) < self.majority:
                yield Step(f"{name} could not renew", self._hold(state, number, client, renewed=False))
            return
        if not self.counts(votes):
            return
        fence = max(votes)
        if client.phase == JOINING and self.must_write_back([vote for vote in votes if vote > 0]):
            after = self._begin_round(state, number, client._replace(phase=RAISING, fence=fence))
            members = tuple(
                member._replace(votes=_put(member.votes, number, OUT if vote > 0 else NO))
                for member, vote in zip(after.members, votes, strict=True)
            )
            yield Step(f"{name} writes fence {fence} back", after._replace(members=members))
        elif fence <= state.top:
            yield Step(f"{name} holds", Violation(f"fence {fence} is given out after fence {state.top}"))
        else:
            yield Step(f"{name} holds under fence {fence}", self._hold(state._replace(top=fence), number, client))

    def _begin_round(self, state: State, number: int, client: Client) -> State:
        members = tuple(member._replace(votes=_put(member.votes, number, OUT)) for member in state.members)
        return state._replace(members=members, clients=_put(state.clients, number, client))

    def _repeat(self, state: State, number: int, client: Client) -> State:
        """Begin the join again, under the same owner; the places there are may end until they are refreshed."""
        members = tuple(m._replace(expiry=ENDS) if m.owner == number else m for m in state.members)
        return self._begin_round(state._replace(members=members), number, client._replace(phase=JOINING, fence=0))

    def _hold(self, state: State, number: int, client: Client, *, renewed: bool = True) -> State:
        """Let a round's trust window be the client's, which rests on the votes in it; or let the round have failed."""
        members = []
        for member in state.members:
            counted = member.votes[number] > 0 if renewed else member.counted[number]
            expiry = member.expiry
            if member.owner == number:
                expiry = COVERED if member.expiry == FRESH else ENDS if renewed else member.expiry
            votes = _put(member.votes, number, OUT)
            members.append(member._replace(expiry=expiry, votes=votes, counted=_put(member.counted, number, counted)))
        clients = _put(state.clients, number, client._replace(phase=HELD, fence=0))
        return state._replace(members=tuple(members), clients=clients)

    def _end(self, state: State, number: int) -> State:
        """End an acquisition. Its places have no client: they are left or expire, one at a time."""
        members = tuple(
            member._replace(
                owner=NO_CLIENT if member.owner == number else member.owner,
                ticket=0 if member.owner == number else member.ticket,
                expiry=ENDS if member.owner == number else member.expiry,
                votes=_put(member.votes, number, OUT),
                counted=_put(member.counted, number, False),
            )
            for member in state.members
        )
        return state._replace(
            members=members, clients=_put(state.clients, number, Client(state.clients[number].acquisitions))
        )

    def _member_steps(self, state: State, number: int, member: Member) -> Iterator[Step[State]]:
        def become(label: str, after: Member, *, is_fault: bool = False) -> Step[State]:
            return Step(label, state._replace(members=_put(state.members, number, after)), is_fault)

        others = [each for which, each in enumerate(state.members) if which != number]
        if member.owner != FREE and member.expiry == ENDS:
            yield become(f"a place on member {number} ends", member._replace(owner=FREE, ticket=0))
        if state.data_losses and all(other.status == VOTES for other in others):
            members = tuple(each._replace(is_read=False) for each in _put(state.members, number, self.emptied(member)))
            after = state._replace(members=members, data_losses=state.data_losses - 1)
            yield Step(f"member {number} loses its data", after, is_fault=True)
        if member.status == EMPTY:
            yield become(f"a client probes member {number}", member._replace(status=PROBED))
        elif member.status == PROBED:
            if self.is_over(state, number):
                yield become(f"member {number} was left out for long enough", member._replace(status=SETTLED))
            if member.late:
                yield become(f"a late admission reaches member {number}", self.late_admission(member))
        elif member.status == SETTLED:
            yield from self._admission_steps(state, number, member, others)
        elif member.status == ADMITTED and self.has_outlived(state, number):
            yield become(f"member {number} votes again", member._replace(status=VOTES))

    def _admission_steps(
        self, state: State, number: int, member: Member, others: list[Member]
    ) -> Iterator[Step[State]]:
        for which, other in enumerate(state.members):
            if which != number and not other.is_read:
                members = _put(state.members, which, other._replace(is_read=True))
                members = _put(members, number, self.updated_from(member, other))
                yield Step(
                    f"member {which} is asked for the data that member {number} lost", state._replace(members=members)
                )
        if self.enough_to_admit(others):
            after = member._replace(status=ADMITTED)
            members = tuple(each._replace(is_read=False) for each in _put(state.members, number, after))
            yield Step(f"member {number} is admitted", state._replace(members=members))
            if self.scope.late_admissions:
                twice = _put(members, number, after._replace(late=(after.counter, after.longest)))
                label = f"member {number} is admitted, and the same is on its way once more"
                yield Step(label, state._replace(members=twice), is_fault=True)

    def _is_in_scope(self, state: State) -> bool:
        known = _known_counters(state)
        return max(known) - min(known) <= self.scope.spread

    def fault(self, state: State) -> str:
        holders = [number for number, client in enumerate(state.clients) if client.phase in (HELD, RENEWING)]
        if len(holders) > 1:
            return "two hold"
        ignorant = sum(member.counter < state.top for member in state.members if member.status == VOTES)
        if ignorant >= self.majority:
            return "a majority votes that lacks a fence which was given out"
        return ""

    def is_at_rest(self, state: State) -> bool:
        return all(client.phase == IDLE for client in state.clients) and all(
            member.status == VOTES and member.owner == FREE for member in state.members
        )

    def canonical(self, state: State) -> State:
        """Sort clients and members by all there is to know of them, and count tickets from the lowest counter."""
        lowest = min(_known_counters(state)) - 1
        order = sorted(range(self.scope.clients), key=state.clients.__getitem__)
        orders = permutations(order) if len(set(state.clients)) < len(order) else [order]
        return min(self._sorted(state, lowest, order) for order in orders)

    def _sorted(self, state: State, lowest: int, order: Sequence[int]) -> State:
        position = {number: place for place, number in enumerate(order)}
        members = [
            Member(
                member.status,
                max(member.counter - lowest, 0),
                member.longest,
                position.get(member.owner, member.owner),
                _less(member.ticket, lowest),
                member.expiry,
                member.is_read,
                (max(member.late[0] - lowest, 0), member.late[1]) if member.late else (),
                tuple([_less(member.votes[number], lowest) for number in order]),
                tuple([member.counted[number] for number in order]),
            )
            for member in state.members
        ]
        clients = [state.clients[number] for number in order]
        return State(
            tuple(sorted(members)),
            tuple([Client(left, phase, ttl, _less(fence, lowest)) for left, phase, ttl, fence in clients]),
            max(state.top - lowest, 0),
            state.losses,
            state.data_losses,
        )


def _alone(member: Member) -> Member:
    """Show a member without what others know of it."""
    return member._replace(is_read=False, late=(), votes=(), counted=())


def _known_counters(state: State) -> list[int]:
    return [member.counter for member in state.members if member.counter or member.status in (VOTES, ADMITTED)]


def _less(ticket: int, lowest: int) -> int:
    return max(ticket - lowest, 1) if ticket > 0 else ticket


def _put(items: tuple[T, ...], number: int, item: T) -> tuple[T, ...]:
    return (*items[:number], item, *items[number + 1 :])
