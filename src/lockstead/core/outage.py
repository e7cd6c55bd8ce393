"""How an outage of the store is logged: once when it begins, and once when it ends, if a lease is left by then."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from lockstead.core.lease import LOST, WAITING, Lease
from lockstead.errors import StoreError


class Outage:
    """An outage: from the first failed request until the store answers for one of the places whose requests failed.

    A success for any other place does not end it, unless all of those places are gone: one node of several may be down.
    """

    def __init__(self, error: Exception, failed: Sequence[Lease], leases: Collection[Lease], now: float) -> None:
        self.owners: set[str] = set()
        """The owners of the places whose requests failed."""
        self._is_unreachable = isinstance(error, StoreError) and error.transient
        self._began_at = now
        # A store that does not answer endangers all; one that refuses a request may refuse only that one.
        endangered = list(leases) if self._is_unreachable else failed
        self._held = [lease for lease in endangered if lease.is_held(now)]
        problem = "store unreachable" if self._is_unreachable else "request to the store failed"
        self.beginning = f"{problem} ({one_line(error)}): {self._describe_risk(endangered, now)}; retrying"
        """What to log when it begins."""

    def is_ended_by(self, answered: Iterable[str]) -> bool:
        """Return whether answers for the places of these owners end it."""
        return not self.owners or not self.owners.isdisjoint(answered)

    def describe_end(self, now: float) -> str:
        recovered = "store reachable again" if self._is_unreachable else "requests to the store succeed again"
        return f"{recovered} after {now - self._began_at:.1f} s: {self._describe_result(now)}"

    def _describe_risk(self, endangered: Sequence[Lease], now: float) -> str:
        if self._held:
            first = min(lease.trusted_until for lease in self._held) - now
            return f"{_count(len(self._held), 'held lease')} at risk, first one in {first:.1f} s"
        waiting = [lease.alive_until for lease in endangered if lease.state is WAITING and not lease.leaving]
        alive = [until for until in waiting if until > now]
        if alive:
            first = min(alive) - now
            return f"no lease held, {_count(len(alive), 'waiting place')} at risk, first one in {first:.1f} s"
        if releases := sum(lease.leaving for lease in endangered):
            return f"no lease held, {_count(releases, 'release')} pending"
        return "no lease held"

    def _describe_result(self, now: float) -> str:
        if not self._held:
            return "no lease was held"
        kept = sum(lease.is_held(now) for lease in self._held)
        # The keeper may not have marked a lease yet whose trust window has closed.
        lost = sum(lease.state is LOST or (not lease.leaving and not lease.is_held(now)) for lease in self._held)
        released = len(self._held) - kept - lost
        return f"{_count(kept, 'lease')} kept, {lost} lost" + (f", {released} released" if released else "")


def one_line(error: Exception) -> str:
    """Write an error for a log: those of libpq have several lines."""
    return " ".join(str(error).split())


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
