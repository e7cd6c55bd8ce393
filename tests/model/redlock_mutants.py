"""Deliberate bugs in the model of Redlock. Each breaks one thing `docs/decisions/0006-redlock-quorum.md` rests on."""

from __future__ import annotations

from collections.abc import Callable

from tests.model.redlock import ADMITTED, FREE, RENEWING, VOTES, Client, Member, RedlockModel, Scope, State

MUTANTS: dict[str, RedlockModel] = {}
FENCES = Scope()
RENEWALS = Scope(renewals=True)
DATA_LOSS = Scope(data_losses=1, acquisitions=1)


def mutant(scope: Scope) -> Callable[[type[RedlockModel]], type[RedlockModel]]:
    def enlist(model: type[RedlockModel]) -> type[RedlockModel]:
        MUTANTS[model.__name__] = model(scope)
        return model

    return enlist


@mutant(FENCES)
class HalfIsAMajority(RedlockModel):
    def __init__(self, scope: Scope) -> None:
        super().__init__(scope)
        self.majority = scope.members // 2


@mutant(FENCES)
class TheFenceIsTheMaximumOnly(RedlockModel):
    def must_write_back(self, tickets: list[int]) -> bool:
        return False


@mutant(FENCES)
class TheFenceIsWrittenBackToPlacesOnly(RedlockModel):
    def raised(self, member: Member, client: int, fence: int) -> Member:
        return super().raised(member, client, fence)._replace(counter=member.counter)


@mutant(FENCES)
class TheFenceIsWrittenBackWhereverItCanBe(RedlockModel):
    def raised(self, member: Member, client: int, fence: int) -> Member:
        return member._replace(ticket=max(member.ticket, fence), counter=max(member.counter, fence))

    def confirms(self, member: Member, client: int) -> bool:
        return member.owner != FREE


@mutant(RENEWALS)
class ARenewalCountsAnswersOfEarlierRounds(RedlockModel):
    def _begin_round(self, state: State, number: int, client: Client) -> State:
        after = super()._begin_round(state, number, client)
        if client.phase != RENEWING:
            return after
        members = (
            member._replace(votes=(*member.votes[:number], int(member.counted[number]), *member.votes[number + 1 :]))
            for member in after.members
        )
        return after._replace(members=tuple(members))


@mutant(DATA_LOSS)
class MembersDoNotNoticeThatTheyAreEmpty(RedlockModel):
    def emptied(self, member: Member) -> Member:
        return super().emptied(member)._replace(status=VOTES)


@mutant(DATA_LOSS)
class AMemberThatWaitsForAdmissionVotes(RedlockModel):
    def gives_places(self, member: Member) -> bool:
        return member.status in (VOTES, ADMITTED)


@mutant(DATA_LOSS)
class AnAdmittedMemberVotesAtOnce(RedlockModel):
    def has_outlived(self, state: State, number: int) -> bool:
        return True


@mutant(DATA_LOSS)
class AnAdmittedMemberCountsFromZero(RedlockModel):
    def updated_from(self, member: Member, other: Member) -> Member:
        return super().updated_from(member, other)._replace(counter=member.counter)


@mutant(DATA_LOSS)
class NoMemberReportsTheLongestTtl(RedlockModel):
    def updated_from(self, member: Member, other: Member) -> Member:
        return super().updated_from(member, other)._replace(longest=member.longest)


@mutant(DATA_LOSS)
class LongRoundsCount(RedlockModel):
    def is_over(self, state: State, number: int) -> bool:
        return True


@mutant(DATA_LOSS)
class OneMemberIsEnoughToAdmitAnother(RedlockModel):
    def enough_to_admit(self, others: list[Member]) -> bool:
        return any(other.is_read for other in others)


@mutant(DATA_LOSS)
class NoMemberIsAdmitted(RedlockModel):
    def enough_to_admit(self, others: list[Member]) -> bool:
        return False


@mutant(Scope(data_losses=2, late_admissions=True, acquisitions=1))
class TokensAreNotCompared(RedlockModel):
    def late_admission(self, member: Member) -> Member:
        counter, longest = member.late
        return member._replace(status=ADMITTED, counter=counter, longest=longest, late=())
