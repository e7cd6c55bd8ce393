"""How outages of the store are logged: each once when it begins, and once when it ends, if a lease is left by then."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from lockstead.core.lease import HELD, RELEASING, WAITING, Lease
from lockstead.errors import StoreError

log = logging.getLogger("lockstead")


class OutageLog:
    """The outage of one client's store, if there is one."""

    def __init__(self, address: str, mutex: AbstractContextManager[Any], leases: dict[str, Lease]) -> None:
        self._address = address
        self._mutex = mutex
        self._leases = leases
        self.outage: Outage | None = None

    def add_failure(self, error: Exception, leases: Sequence[Lease], now: float) -> None:
        """Log that an outage begins, once, not at every attempt; nothing if none of these leases is kept any more."""
        with self._mutex:
            failed = [lease for lease in leases if lease.ask.owner in self._leases]
            if not failed:
                return
            is_new = self.outage is None
            outage = self.outage or Outage(self._address, error, failed, self._leases.values(), now)
            outage.owners.update(lease.ask.owner for lease in failed)
            self.outage = outage
        if is_new:
            outage.log_beginning()
        elif log.isEnabledFor(logging.DEBUG):
            log.debug("%s: retrying (%s)", self._address, reason(error, self._address))

    def add_answers(self, answered: Iterable[Lease], now: float) -> None:
        """Log that the outage is over, once, if it is by these answers."""
        with self._mutex:
            outage = self.outage
            if outage is None or not outage.is_ended_by(lease.ask.owner for lease in answered):
                return
            self.outage = None
        outage.log_end(now)

    def forget(self, owner: str) -> None:
        """Expect no answer for a place that is gone; with none left, no request would show the end of the outage."""
        if self.outage is not None:
            self.outage.owners.discard(owner)
            if not self._leases:
                self.outage = None


class Outage:
    """An outage: from the first failed request until the store answers for one of the places whose requests failed.

    A success for any other place does not end it, unless all of those places are gone: one node of several may be down.
    """

    def __init__(
        self, address: str, error: Exception, failed: Sequence[Lease], leases: Collection[Lease], now: float
    ) -> None:
        self.owners: set[str] = set()
        """The owners of the places whose requests failed."""
        self._is_unreachable = isinstance(error, StoreError) and error.transient
        self._began_at = now
        self._address = address
        # A store that does not answer endangers all; one that refuses a request may refuse only that one.
        endangered = list(leases) if self._is_unreachable else failed
        self._held = [lease for lease in endangered if lease.is_held(now)]
        self._cause = reason(error, address)
        self._risk = self._describe_risk(endangered, now)

    def is_ended_by(self, answered: Iterable[str]) -> bool:
        """Return whether answers for the places of these owners end it."""
        return not self.owners or not self.owners.isdisjoint(answered)

    def log_beginning(self) -> None:
        if self._is_unreachable:
            log.warning("store %s unreachable (%s): %s; retrying", self._address, self._cause, self._risk)
        else:
            log.warning("request to store %s failed (%s): %s; retrying", self._address, self._cause, self._risk)

    def log_end(self, now: float) -> None:
        """Log the end as a warning, like its beginning, so that a log which shows one shows both."""
        seconds, result = now - self._began_at, self._describe_result(now)
        if self._is_unreachable:
            log.warning("store %s reachable again after %.1f s: %s", self._address, seconds, result)
        else:
            log.warning("requests to store %s succeed again after %.1f s: %s", self._address, seconds, result)

    def _describe_risk(self, endangered: Sequence[Lease], now: float) -> str:
        if self._held:
            first = min(lease.trusted_until for lease in self._held) - now
            return f"{_count(len(self._held), 'held lease')} at risk, first one in {first:.1f} s"
        alive = [lease.alive_until for lease in endangered if lease.state is WAITING and lease.alive_until > now]
        if alive:
            first = min(alive) - now
            return f"no lease held, {_count(len(alive), 'waiting place')} at risk, first one in {first:.1f} s"
        if releases := sum(lease.state is RELEASING for lease in endangered):
            return f"no lease held, {_count(releases, 'release')} pending"
        return "no lease held"

    def _describe_result(self, now: float) -> str:
        if not self._held:
            return "no lease was held"
        kept = sum(lease.is_held(now) for lease in self._held)
        # The keeper may not have marked a lease yet whose trust window has closed.
        lost = sum(lease.loss is not None or (lease.state is HELD and not lease.is_held(now)) for lease in self._held)
        released = len(self._held) - kept - lost
        return f"{_count(kept, 'lease')} kept, {lost} lost" + (f", {released} released" if released else "")


def reason(error: BaseException, address: str) -> str:
    """Write an error for a line that names the store: in one line, and without the address that it may begin with."""
    text = " ".join(str(error).split()) or type(error).__name__  # those of libpq have several lines
    where, _, what = text.partition(": ")
    is_address = address.endswith(where) and address.removesuffix(where).rstrip("/")[-1:] in {":", ""}
    return what if what and is_address else text


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
