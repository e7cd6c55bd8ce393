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
from lockstead.core.runtime import InFlight, Runtime


@runtime_checkable
class Store(Protocol):
    """Lines of places on one server, seen through one runtime.

    `join`, `renew` and `leave` are one atomic round trip each. They answer within `timeout` seconds or raise
    a transient `StoreError`, after which their outcome is unknown: they may still be applied, even later.
    Expiry is judged by the server's clock alone.
    """

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def runtime(self) -> Runtime: ...

    @property
    def address(self) -> str:
        """Where the data is, as log lines name it: one line, like a URL without user, password and options."""
        ...

    async def join(self, ask: Ask, timeout: float) -> Standing | Refusal:
        """Take a place, or refresh the one `ask.owner` already has."""
        ...

    async def renew(self, renewals: Sequence[Renewal], timeout: float) -> list[Standing]:
        """Keep places alive in one batch: the answers, in order. Never shortens, never resurrects."""
        ...

    async def leave(self, name: str, owner: str, timeout: float, tombstone: float = 0.0) -> bool:
        """Remove a place and return whether it was still alive. Safe to repeat.

        `tombstone`: for how many seconds the store refuses this owner a place, in case a join arrives late.
        """
        ...

    async def wait(self, name: str, owner: str, timeout: float) -> Wake:
        """Wait until the place may newly hold, or until `timeout` seconds have passed.

        A hint may be spurious, and any wake-up may be lost. A grant must be true, however late it arrives and
        whatever else other clients send to the channel on which the store listens.
        """
        ...

    async def inspect(self, prefix: str = "", *, exact: bool = False) -> list[Line]:
        """Report the non-empty lines, by name, whose name starts with `prefix` or, if `exact`, equals it.

        A line that cannot be read is reported with `damage`; the other lines are reported all the same.
        """
        ...

    async def close(self) -> None:
        """Close the connections. Places stay until they expire."""
        ...


@runtime_checkable
class Examinable(Protocol):
    """A store that can report more about its health than that it answers."""

    async def examine(self) -> list[Finding]: ...


@runtime_checkable
class Repairable(Protocol):
    """A store that can remove data it cannot read."""

    async def repair(self, name: str, timeout: float) -> None:
        """Remove everything stored under a name if any of it is damaged, and repair what it shares with other names.

        The places of that name are gone, whether they held or waited.
        """
        ...


@runtime_checkable
class Watching(Protocol):
    """A store that can detect by itself that a place may be gone."""

    def watch(self, suspect: Callable[[str], None]) -> None:
        """Call `suspect` with the owner of a place that may be gone, from any thread."""
        ...


@runtime_checkable
class Reserving(Protocol):
    """A store that can keep a name reserved after its holder has released it."""

    async def reserve(self, reservation: Reservation, timeout: float) -> bool:
        """Turn a place that holds into a reservation: it stays for a while, its owner changed to owner + RESERVED.

        One atomic round trip, safe to repeat. No renewal, join or leave of the owner finds the place any more.
        Returns whether the place was still there and held; one that waits is removed as by `leave`.
        """
        ...


@runtime_checkable
class MultiJoining(Protocol):
    """A store that can grant places in several lines in one step."""

    async def join_all(self, asks: Sequence[Ask], timeout: float) -> list[Standing] | Refusal | None:
        """Take a place that holds in each of these lines, all of different names and none queueing, or in none.

        One atomic round trip, idempotent as `join` is. Returns None if these names cannot be joined in one step.
        """
        ...


@runtime_checkable
class RateLimiting(Protocol):
    """A store that keeps the states of rate limits, in a namespace separate from that of lines."""

    async def consume(self, request: RateRequest, timeout: float) -> RateResult:
        """Add the cost to the limit's level if that falls to the burst within `max_wait`: one atomic round trip.

        Judged by the server's clock: a backward step drains nothing, and starves no client. Not idempotent.
        """
        ...


@runtime_checkable
class Sending(Protocol):
    """A member that can send a request without waiting for its reply, so that others are sent theirs meanwhile.

    Each returns None if nothing was sent, as no connection is ready for it: then `join` or `leave` does it all.
    """

    def send_join(self, ask: Ask, timeout: float) -> InFlight[Standing | Refusal] | None: ...

    def send_leave(self, name: str, owner: str, timeout: float) -> InFlight[bool] | None: ...


class Member(Store, Reserving, Protocol):
    """A store that can be a member of a quorum.

    It detects that it restarted empty, and then gives no place (`Refusal.abstains`) until it is admitted, so that
    neither the votes nor the tickets it lost are given a second time.
    """

    async def probe(self, timeout: float) -> Membership:
        """Return the membership; if there is none, create one that waits to be admitted."""
        ...

    async def admit(self, token: str, ticket: int, longest: float, timeout: float) -> Membership:
        """Raise the counter to `ticket` and let the member vote `longest` seconds after its first probe.

        Does nothing if the membership has another token, or votes already.
        """
        ...
