"""The store port: the only thing a backend implements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from lockstead.core.model import (
    Ask,
    Capabilities,
    Finding,
    Line,
    Membership,
    RateRequest,
    RateResult,
    Refusal,
    Renewal,
    Reservation,
    Standing,
    Wake,
)
from lockstead.core.runtime import Runtime

LATE_REQUEST_WINDOW = 30.0
"""How long a request that nobody answered may still be under way, say in the buffers of a server that was stopped."""


@runtime_checkable
class Store(Protocol):
    """Lines of places on one server, seen through one runtime.

    `join`, `renew` and `leave` are one atomic round trip each. They answer within `timeout` seconds or raise
    a transient `StoreError`, after which their outcome is unknown: they may still be carried out, even later.
    Expiry is judged by the server's clock alone.
    """

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def runtime(self) -> Runtime: ...

    async def join(self, ask: Ask, timeout: float) -> Standing | Refusal:
        """Take a place, or refresh the one `ask.owner` already has."""
        ...

    async def renew(self, renewals: Sequence[Renewal], timeout: float) -> list[Standing | None]:
        """Keep places alive in one batch; None for each that is gone. Never shortens, never resurrects."""
        ...

    async def leave(self, name: str, owner: str, timeout: float, tombstone: float = 0.0) -> bool:
        """Give a place up and say whether it was still alive. Safe to repeat.

        `tombstone` is how long the store refuses this owner a place, for when a join may still be on its way.
        """
        ...

    async def wait(self, name: str, owner: str, timeout: float) -> Wake:
        """Sleep until the place may newly hold, or the time is over.

        A hint may come for no reason, and any wake-up may be lost. A grant must be true, however
        late it comes, and whatever else is sent to where the store listens.
        """
        ...

    async def inspect(self, prefix: str = "", *, exact: bool = False) -> list[Line]:
        """Report the non-empty lines, by name, whose name starts with `prefix` or, if `exact`, equals it.

        A line that cannot be read is one with `damage`, and keeps no other from being reported.
        """
        ...

    async def close(self) -> None:
        """Let connections go. Places stay until they expire."""
        ...


@runtime_checkable
class Examinable(Protocol):
    """A store that can tell more of its health than that it answers."""

    async def examine(self) -> list[Finding]: ...


@runtime_checkable
class Repairable(Protocol):
    """A store that can remove what it cannot read."""

    async def repair(self, name: str, timeout: float) -> None:
        """Remove everything kept under a name if any of it is damaged, and repair what it shares with others.

        Places that it had are gone, whether they held or waited.
        """
        ...


@runtime_checkable
class Watching(Protocol):
    """A store that may notice by itself that a place is gone."""

    def watch(self, doubt: Callable[[str], None]) -> None:
        """Call `doubt` with its owner, from any thread, once there is reason to think that a place is gone."""
        ...


@runtime_checkable
class Reserving(Protocol):
    """A store whose names may stay taken for a while after their holder has gone."""

    async def reserve(self, reservation: Reservation, timeout: float) -> bool:
        """Give up a place that holds, but let it stand for a while under its owner's name with LINGERING added.

        One atomic round trip, safe to repeat. No renewal, join or leave of the owner's finds the place any more.
        Says whether it was still there and held; one that waits is given up as by `leave`.
        """
        ...


@runtime_checkable
class MultiJoining(Protocol):
    """A store that can give places in several lines in one step."""

    async def join_all(self, asks: Sequence[Ask], timeout: float) -> list[Standing] | Refusal | None:
        """Take a place that holds in each of these lines, all of different names and none queueing, or in none.

        One atomic round trip, idempotent as `join` is. None where just these cannot be had in one step.
        """
        ...


@runtime_checkable
class RateLimiting(Protocol):
    """A store that keeps rates, under names that have nothing to do with those of lines."""

    async def spend(self, charge: RateRequest, timeout: float) -> RateResult:
        """Add to a name's debt if it then wears off to the limit within the caller's patience: one atomic round trip.

        Judged by the server's clock; a backward step of it lets nothing wear off, and starves nobody. Not idempotent.
        """
        ...


class Member(Store, Reserving, Protocol):
    """A store that may be one of a quorum's.

    It can tell that it has come back empty, and gives no place (`Refusal.abstains`) until it was admitted: so
    that neither the votes nor the tickets it forgot are given a second time.
    """

    async def probe(self, timeout: float) -> Membership:
        """Tell the membership; where there is none, begin one that waits to be admitted."""
        ...

    async def admit(self, token: str, ticket: int, longest: float, timeout: float) -> Membership:
        """Raise the counter to `ticket` and let the member vote `longest` seconds after it first was knocked at.

        Does nothing where the membership has another token, or votes already.
        """
        ...
