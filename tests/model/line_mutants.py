"""Deliberate bugs in the model of a line. Each breaks one rule of `docs/protocol.md`; the checker must find it."""

from __future__ import annotations

from collections.abc import Callable

from tests.model.line import HELD, WAITING, Barred, Call, Client, Line, LineModel, Outcome, Owner, Place, Request, Scope

MUTANTS: dict[str, LineModel] = {}
ONE_FAULT = Scope(faults=1)


def mutant(scope: Scope = ONE_FAULT) -> Callable[[type[LineModel]], type[LineModel]]:
    def enlist(model: type[LineModel]) -> type[LineModel]:
        MUTANTS[model.__name__] = model(scope)
        return model

    return enlist


@mutant()
class AnyOwnerMayRenewForTheHolder(LineModel):
    def find(self, line: Line, owner: Owner) -> Owner | None:
        return super().find(line, owner) or (line[0].owner if line else None)


@mutant()
class AnyOwnerMayLeaveForTheHolder(LineModel):
    def leave(self, line: Line, barred: Barred, request: Request, last: int) -> Outcome:
        return super().leave(line, barred, request._replace(owner=line[0].owner if line else request.owner), last)


@mutant()
class RenewalsResurrect(LineModel):
    def renew(self, line: Line, barred: Barred, request: Request, last: int) -> Outcome:
        return self.join(line, barred, request, last)


@mutant()
class RenewalsExtendTheDead(LineModel):
    def renew(self, line: Line, barred: Barred, request: Request, last: int) -> Outcome:
        own = request.owner
        line = tuple(
            place._replace(expires_in=max(place.expires_in, 1)) if place.owner == own else place for place in line
        )
        return super().renew(line, barred, request, last)


@mutant()
class RenewalsShorten(LineModel):
    def renewed(self, place: Place, kind: str) -> int:
        return self.scope.heartbeat


@mutant()
class RepeatedJoinsDoNotRefresh(LineModel):
    def renewed(self, place: Place, kind: str) -> int:
        return place.expires_in if kind == "join" else super().renewed(place, kind)


@mutant()
class WaitingPlacesNeverClaimTheirTtl(LineModel):
    def renewed(self, place: Place, kind: str) -> int:
        return max(place.expires_in, self.scope.heartbeat)


@mutant()
class WaitingPlacesLastForTheirTtl(LineModel):
    def ttl_of_waiting(self) -> int:
        return self.scope.ttl


@mutant()
class TheDeadHoldForEver(LineModel):
    def is_expired(self, place: Place) -> bool:
        return place.expires_in <= 0 and not place.holds


@mutant()
class TheDeadAreGranted(LineModel):
    def is_expired(self, place: Place) -> bool:
        return place.expires_in <= 0 and place.holds


@mutant()
class OneMoreFits(LineModel):
    def settle(self, line: Line) -> tuple[Line, tuple[Owner, ...]]:
        return LineModel(self.scope._replace(capacity=self.scope.capacity + 1)).settle(line)


@mutant(Scope(clients=3, ttl=2, faults=0))
class NewcomersOvertake(LineModel):
    def append(self, line: Line, place: Place) -> Line:
        holders = self.scope.capacity
        return (*line[:holders], place, *line[holders:])


@mutant()
class TicketsStartOver(LineModel):
    def draw(self, line: Line, last: int) -> int:
        return last + 1 if line else last


@mutant()
class LateRequestsAreAccepted(LineModel):
    def needs_tombstone(self, client: Client) -> bool:
        return False


@mutant()
class ALeaveWakesNoWaiter(LineModel):
    def leave(self, line: Line, barred: Barred, request: Request, last: int) -> Outcome:
        outcome = super().leave(line, barred, request, last)
        return outcome._replace(line=tuple(place for place in line if place.owner != request.owner), woken=())


@mutant()
class AHolderByAnExpiryIsNotWoken(LineModel):
    def renew(self, line: Line, barred: Barred, request: Request, last: int) -> Outcome:
        outcome = super().renew(line, barred, request, last)
        unwoken = tuple(place._replace(notified=place.owner not in outcome.woken) for place in outcome.line)
        return outcome._replace(line=unwoken, woken=())


@mutant()
class TheNextIsWokenBeforeALeaveIsSaved(LineModel):
    def leave(self, line: Line, barred: Barred, request: Request, last: int) -> Outcome:
        outcome = super().leave(line, barred, request, last)
        return outcome._replace(line=line) if outcome.woken else outcome


@mutant()
class TheTrustWindowStartsAtTheReply(LineModel):
    def trust_window(self, age: int) -> int:
        return super().trust_window(0)


@mutant()
class ThereIsNoMargin(LineModel):
    def trust_window(self, age: int) -> int:
        return max(self.scope.ttl - age, 0)


@mutant(Scope(clients=1, ttl=4, late_request_window=6, faults=2, slow=True))
class AReplyReopensATrustWindow(LineModel):
    """A late join may have made another place; another client may have held in between."""

    def awakes_with(self, client: Client, call: Call) -> Client | None:
        awake = self.note(client._replace(phase=HELD), call)
        return awake if self.believes(awake) else None


@mutant()
class NoClientWatchesTheTrustWindow(LineModel):
    def believes(self, client: Client) -> bool:
        return super().believes(client._replace(trust_window=1))


@mutant()
class UnknownCountsAsRenewed(LineModel):
    def drop_reply(self, client: Client, call: Call) -> Client:
        after = super().drop_reply(client, call)
        return after._replace(trust_window=self.trust_window(0)) if client.phase == HELD else after


@mutant(Scope(faults=0))
class AWaiterWhosePlaceIsGoneGoesOnWaiting(LineModel):
    def note_gone(self, client: Client) -> Client:
        return client if client.phase == WAITING else super().note_gone(client)


@mutant()
class AMessageCountsForTheWholeTtl(LineModel):
    def trust_window_by_message(self, client: Client) -> int:
        return self.trust_window(0)


@mutant(Scope(ttl=2, late_request_window=2, faults=1))
class AMessageCountsWhateverPlaceItIsAbout(LineModel):
    """Two joins of one owner may make two places, one after the other; the message was about the first."""

    def counts_message(self, client: Client) -> bool:
        return client.alive > 0


@mutant()
class AForgedMessageCounts(LineModel):
    """Its owner is all that a message names, and any client can guess it."""

    def counts_forged_message(self, client: Client) -> bool:
        return client.alive > 0


@mutant(Scope(faults=0, clock_steps=2))
class AClockSetBackIsIgnored(LineModel):
    def gain(self, since: int, by: int) -> int:
        return by
