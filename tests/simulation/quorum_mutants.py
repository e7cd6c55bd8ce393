"""Deliberate bugs in the Redlock store. Each breaks one thing `docs/decisions/0006-redlock-quorum.md` rests on."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from lockstead.core.model import UNKNOWN, PlaceState, Standing
from lockstead.errors import StoreError
from lockstead.stores.quorum.members import Members
from lockstead.stores.quorum.placement import Placement
from lockstead.stores.quorum.store import Quorum
from lockstead.testing import SimulatedMember, SimulatedMemberStore
from lockstead.testing.simulation.members import MemberServer
from tests.simulation.mutation import Patch

MUTANTS: dict[str, Callable[[Patch], None]] = {}


def mutant(install: Callable[[Patch], None]) -> Callable[[Patch], None]:
    MUTANTS[install.__name__] = install
    return install


@mutant
def half_is_a_majority(patch: Patch) -> None:
    def init(self, runtime, members, names, timeout) -> None:
        original(self, runtime, members, names, timeout)
        self.majority = (len(members) + 1) // 2 - (len(members) % 2)

    original = Members.__init__
    patch.setattr(Members, "__init__", init)


@mutant
def the_fence_is_the_maximum_only(patch: Patch) -> None:
    async def write_back(self, ask, ticket, held, member_timeout):
        return True

    patch.setattr(Quorum, "_write_back", write_back)


@mutant
def the_fence_is_written_back_to_places_only(patch: Patch) -> None:
    """Not to the counter, from which the next holder's ticket is drawn."""

    def raise_ticket(self, renewal):
        counter = self._ticket
        ticket = original(self, renewal)
        self._ticket = counter
        return ticket

    original = MemberServer._raise_ticket
    patch.setattr(MemberServer, "_raise_ticket", raise_ticket)


@mutant
def members_do_not_notice_that_they_are_empty(patch: Patch) -> None:
    def lose_data(self) -> None:
        marker = self._marker
        original(self)
        self._marker = marker

    original = SimulatedMember.lose_data
    patch.setattr(SimulatedMember, "lose_data", lose_data)


@mutant
def an_admitted_member_votes_at_once(patch: Patch) -> None:
    async def admit(self, number, membership, ticket, longest):
        return await original(self, number, membership, ticket, 0.0)

    original = Members._admit
    patch.setattr(Members, "_admit", admit)


@mutant
def an_admitted_member_counts_from_zero(patch: Patch) -> None:
    async def admit(self, number, membership, ticket, longest):
        return await original(self, number, membership, 0, longest)

    original = Members._admit
    patch.setattr(Members, "_admit", admit)


@mutant
def members_know_only_the_ttls_of_joins(patch: Patch) -> None:
    def renew(self, renewals):
        longest = self._marker.longest if self._marker else 0.0
        outcome = original(self, renewals)
        if self._marker:
            self._marker.longest = longest
        return outcome

    original = MemberServer.renew
    patch.setattr(MemberServer, "renew", renew)


@mutant
def one_admitted_member_is_enough_to_admit_others(patch: Patch) -> None:
    def required_wait(self, admitted, waited):
        return original(self, len(self) if admitted else 0, waited)

    original = Members._required_wait
    patch.setattr(Members, "_required_wait", required_wait)


@mutant
def no_member_is_admitted(patch: Patch) -> None:
    original = Members._required_wait
    patch.setattr(
        Members, "_required_wait", lambda self, admitted, waited: inf if admitted else original(self, admitted, waited)
    )


@mutant
def a_renewal_counts_answers_of_earlier_rounds(patch: Patch) -> None:
    async def renew(self, renewals, timeout):
        known = self.__dict__.setdefault("known", {})
        try:
            standings = await original(self, renewals, timeout)
        except StoreError:
            return [known.get(renewal.owner) for renewal in renewals]
        known.update({renewal.owner: standing for renewal, standing in zip(renewals, standings, strict=True)})
        return standings

    original = SimulatedMemberStore.renew
    patch.setattr(SimulatedMemberStore, "renew", renew, raising=False)


@mutant
def silence_counts_as_renewed(patch: Patch) -> None:
    async def renew(self, renewals, timeout):
        return [
            Standing(PlaceState.HELD) if standing == UNKNOWN else standing
            for standing in await original(self, renewals, timeout)
        ]

    original = Quorum.renew
    patch.setattr(Quorum, "renew", renew)


@mutant
def a_failed_join_leaves_only_where_it_was_granted(patch: Patch) -> None:
    def members(self):
        return sorted(self.granted)

    patch.setattr(Placement, "members", members)


@mutant
def late_requests_are_accepted(patch: Patch) -> None:
    """A join without an answer may arrive after its owner left."""

    async def leave(self, name, owner, timeout, tombstone=0.0):
        return await original(self, name, owner, timeout, 0.0)

    original = SimulatedMemberStore.leave
    patch.setattr(SimulatedMemberStore, "leave", leave, raising=False)


@mutant
def a_refused_join_keeps_what_it_was_given(patch: Patch) -> None:
    async def leave(self, name, owner, member_timeout, tombstone=0.0):
        return [False for _ in range(len(self._members))]

    patch.setattr(Quorum, "_leave", leave)


@mutant
def pending_releases_are_forgotten(patch: Patch) -> None:
    patch.setattr(Members, "queue_release", lambda self, number, departure: None)


@mutant
def silent_members_are_never_asked_again(patch: Patch) -> None:
    async def recover_member(self, number):
        return

    patch.setattr(Members, "_recover_member", recover_member)


@mutant
def tokens_are_not_compared(patch: Patch) -> None:
    def admit(self, token, ticket, longest):
        return original(self, self._marker.token if self._marker else token, ticket, longest)

    original = MemberServer.admit
    patch.setattr(MemberServer, "admit", admit)


@mutant
def long_rounds_count(patch: Patch) -> None:
    patch.setattr(Quorum, "_is_in_time", lambda self, sent: True)


@mutant
def a_reservation_is_released(patch: Patch) -> None:
    async def reserve(self, reservation, timeout):
        return await self.leave(reservation.name, reservation.owner, timeout, reservation.tombstone)

    patch.setattr(Quorum, "reserve", reserve)


@mutant
def what_too_few_confirm_counts_as_lost(patch: Patch) -> None:
    async def reserve(self, reservation, timeout):
        try:
            return await original(self, reservation, timeout)
        except StoreError:
            return False

    original = Quorum.reserve
    patch.setattr(Quorum, "reserve", reserve)
