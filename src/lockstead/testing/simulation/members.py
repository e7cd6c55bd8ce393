"""Members of a quorum in memory: like real ones, they notice that they have restarted empty."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from uuid import uuid4

from lockstead.core.model import Ask, Membership, Refusal, Renewal, Standing
from lockstead.core.runtime import Runtime
from lockstead.runtimes.clock import now
from lockstead.runtimes.nesting import step
from lockstead.stores.memory import MemoryServer, MemoryStore
from lockstead.stores.tickets import ticket_floor


class MemberServer(MemoryServer):
    """A server that notices it has restarted empty, and so may be a member of a quorum."""

    def __init__(self, clock: Callable[[], float] = now, floor: Callable[[], int] = ticket_floor) -> None:
        super().__init__(clock, floor)
        self._mutex = threading.RLock()
        self._marker: _Marker | None = None

    def join(self, ask: Ask) -> tuple[Standing | Refusal, list[str]]:
        with self._mutex:
            votes_in = inf if self._marker is None else self._marker.votes_in(self._clock())
            if self._marker is None or votes_in > 0:
                return Refusal(recheck=votes_in, abstains=True), []
            outcome, woken = super().join(ask)
            if isinstance(outcome, Standing):
                self._marker.longest = max(self._marker.longest, ask.ttl)
            return outcome, woken

    def renew(self, renewals: Sequence[Renewal]) -> tuple[list[Standing], list[str]]:
        with self._mutex:
            standings, woken = super().renew(renewals)
            for number, (renewal, standing) in enumerate(zip(renewals, standings, strict=True)):
                if standing.held and self._marker is not None:
                    self._marker.longest = max(self._marker.longest, renewal.ttl)
                    standings[number] = standing._replace(ticket=self._raise_ticket(renewal))
            return standings, woken

    def probe(self) -> Membership:
        with self._mutex:
            now = self._clock()
            if self._marker is None:
                self._marker = _Marker(token=uuid4().hex, probed_at=now)
            marker = self._marker
            return Membership(marker.token, self._ticket, marker.longest, marker.votes_in(now))

    def admit(self, token: str, ticket: int, longest: float) -> Membership:
        with self._mutex:
            marker, membership = self._marker, self.probe()
            if marker is None or marker.token != token or membership.votes_in == 0:
                return membership
            marker.longest = max(marker.longest, longest)
            marker.votes_at = marker.probed_at + marker.longest
            self._ticket = max(self._ticket, ticket)
            return self.probe()

    def lose_data(self) -> None:
        """Restart empty, as a server without persistence does."""
        with self._mutex:
            self._lines.clear()
            self._ticket = 0
            self._marker = None

    def _raise_ticket(self, renewal: Renewal) -> int:
        """Raise the ticket of a place that holds, and the counter, to the ticket its quorum agreed on."""
        place = self._lines[renewal.name].find(renewal.owner)
        assert place is not None
        place.ticket = max(place.ticket, renewal.floor)
        self._ticket = max(self._ticket, place.ticket)
        return place.ticket

    def _forked(self) -> None:
        super()._forked()
        self._mutex = threading.RLock()


@dataclass(slots=True)
class _Marker:
    """Lost together with all other data: while it exists, so do the votes that were given."""

    token: str
    probed_at: float
    longest: float = 0.0
    votes_at: float = inf

    time: float = -inf

    def votes_in(self, now: float) -> float:
        """Return the seconds until it votes; a backward step of the clock is subtracted from its times, as in lines."""
        if back := max(self.time - now, 0.0):
            self.probed_at -= back
            self.votes_at -= back
        self.time = now
        return max(self.votes_at - now, 0.0)


class MemberStore(MemoryStore):
    """One client's view of a `MemberServer`."""

    def __init__(self, runtime: Runtime, server: MemberServer) -> None:
        super().__init__(runtime, server)
        self._member = server

    async def probe(self, timeout: float) -> Membership:
        with step():
            return self._member.probe()

    async def admit(self, token: str, ticket: int, longest: float, timeout: float) -> Membership:
        with step():
            return self._member.admit(token, ticket, longest)
