"""The line rule: you hold if everything up to and including you fits in the capacity.

Pure steps over a `Ledger`, the few things a store must be able to do with one name's places. The store
executes a step atomically and afterwards wakes exactly the places that the step reports.

Two facts carry the proofs. No place overtakes another, and capacity changes only while a line is empty: so a
place that fits keeps fitting until it is removed, and `acquired_at`, set when it first fits, says that it holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import inf
from typing import NamedTuple, Protocol

from lockstead.core.model import GONE, RESERVED, Ask, Place, PlaceState, Refusal, Renewal, Reservation, Standing


class Ledger(Protocol):
    """One name's line as a store keeps it."""

    def places(self) -> Iterator[Place]:
        """Walk the line in ticket order, lazily: mostly only its head is read."""
        ...

    def find(self, owner: str) -> Place | None: ...

    def append(self, place: Place) -> bool:
        """Draw the next ticket for a place and add it to the end; False if its owner has a tombstone.

        `place.ticket` is the smallest ticket to draw; a store that is never a quorum's member may ignore it.
        """
        ...

    def update(self, place: Place) -> None: ...

    def rename(self, place: Place, owner: str) -> None:
        """Change a place's owner; it keeps its ticket and its position."""
        ...

    def remove(self, owner: str) -> float:
        """Remove a place and return when it would have expired; minus infinity if there is none."""
        ...

    def add_tombstone(self, owner: str, until: float) -> None:
        """Refuse `owner` a place until then, even if its join arrives late."""
        ...


class Head(NamedTuple):
    """The front of a settled line: its holders, their total weight, the first waiter, and the new holders to wake."""

    holders: list[Place]
    spent: int
    waiting: Place | None
    woken: list[Place]

    @property
    def recheck_at(self) -> float:
        return min((place.expires_at for place in self.holders), default=inf)


def settle(ledger: Ledger, now: float) -> Head:
    """Walk from the head to the first live place that does not fit, removing expired places on the way."""
    holders: list[Place] = []
    expired: list[Place] = []
    waiting = None
    spent = 0
    for place in ledger.places():
        if place.expires_at <= now:
            expired.append(place)
            continue
        if spent + place.weight > place.capacity:
            waiting = place
            break
        spent += place.weight
        holders.append(place)
    for place in expired:
        ledger.remove(place.owner)
    woken = [place for place in holders if place.acquired_at is None]
    for place in woken:
        place.acquired_at = now
        ledger.update(place)
    return Head(holders, spent, waiting, woken)


def join(ledger: Ledger, ask: Ask, now: float) -> tuple[Standing | Refusal, list[Place]]:
    """Give `ask.owner` a place, or refresh the one it has: a repeated join is a renewal."""
    head = settle(ledger, now)
    if own := _find(ledger, head, ask.owner, now):
        return _refresh(ledger, head, own, ask, now, claim=True), head.woken
    if head.holders and head.holders[0].capacity != ask.capacity:
        return _refusal(head, now)._replace(capacity=head.holders[0].capacity), head.woken
    fits = head.waiting is None and head.spent + ask.weight <= ask.capacity
    if not fits and not ask.queue:
        return _refusal(head, now), head.woken
    place = Place(
        ticket=ask.floor,
        owner=ask.owner,
        capacity=ask.capacity,
        weight=ask.weight,
        expires_at=now + (ask.ttl if fits else ask.heartbeat),
        acquired_at=now if fits else None,
        metadata=ask.metadata,
    )
    if not ledger.append(place):
        return Refusal(), head.woken
    if not fits and head.waiting is None:
        head = head._replace(waiting=place)
    return _standing(head, place, now), head.woken


def renew(ledger: Ledger, renewal: Renewal, now: float) -> tuple[Standing, list[Place]]:
    """Extend a live place; one that is gone stays gone, for a renewal never resurrects."""
    head = settle(ledger, now)
    own = _find(ledger, head, renewal.owner, now)
    if own is None:
        return GONE, head.woken
    return _refresh(ledger, head, own, renewal, now, claim=renewal.claim), head.woken


def leave(ledger: Ledger, owner: str, now: float, tombstone: float) -> tuple[bool, list[Place]]:
    """Remove `owner`'s place; with `tombstone`, also refuse a late join of that owner for that long."""
    was_there = now < ledger.remove(owner)
    if tombstone:
        ledger.add_tombstone(owner, now + tombstone)
    return was_there, settle(ledger, now).woken


def reserve(ledger: Ledger, reservation: Reservation, now: float) -> tuple[bool, list[Place]]:
    """Turn a place that holds into a reservation for that long from now; remove one that waits."""
    head = settle(ledger, now)
    own = next((place for place in head.holders if place.owner == reservation.owner), None)
    # A late join may have added a second place beside the owner's reservation: remove that place, keep the reservation.
    if own is None or ledger.find(reservation.owner + RESERVED):
        _, woken = leave(ledger, reservation.owner, now, reservation.tombstone)
        return False, head.woken + woken
    ledger.rename(own, reservation.owner + RESERVED)
    own.expires_at = now + reservation.seconds
    own.metadata = own.metadata if reservation.metadata is None else reservation.metadata
    ledger.update(own)
    if reservation.tombstone:
        ledger.add_tombstone(reservation.owner, now + reservation.tombstone)
    return True, [place for place in head.woken if place is not own]


def join_all(lines: Sequence[tuple[Ledger, Ask]], now: float) -> tuple[list[Standing] | Refusal, list[Place]]:
    """Give every owner a place that holds, or none of them a place. No place queues."""
    standings: list[Standing] = []
    to_wake: list[Place] = []
    for number, (ledger, ask) in enumerate(lines):
        outcome, woken = join(ledger, ask, now)
        to_wake += woken
        if isinstance(outcome, Refusal):
            for joined, undone in lines[:number]:
                to_wake += leave(joined, undone.owner, now, 0.0)[1]
            return outcome._replace(name=ask.name), to_wake
        standings.append(outcome)
    return standings, to_wake


def live(places: Iterable[Place], now: float) -> tuple[Place, ...]:
    """Select what an inspection shows, marking what holds without changing the line."""
    shown = [place for place in places if now < place.expires_at]
    spent = 0
    for place in shown:
        spent += place.weight
        if spent > place.capacity:
            break
        if place.acquired_at is None:
            place.acquired_at = now
    return tuple(shown)


def _find(ledger: Ledger, head: Head, owner: str, now: float) -> Place | None:
    for place in head.holders:
        if place.owner == owner:
            return place
    if head.waiting is None:
        return None
    own = ledger.find(owner)
    if own is not None and own.expires_at <= now:
        ledger.remove(owner)
        return None
    return own


def _refresh(ledger: Ledger, head: Head, own: Place, request: Ask | Renewal, now: float, *, claim: bool) -> Standing:
    duration = request.ttl if claim and own.acquired_at is not None else request.heartbeat
    if now + duration > own.expires_at:
        own.expires_at = now + duration
        ledger.update(own)
    return _standing(head, own, now)


def _standing(head: Head, own: Place, now: float) -> Standing:
    if own.acquired_at is not None:
        return Standing(PlaceState.HELD, own.ticket, now)
    first = head.waiting is not None and head.waiting.owner == own.owner
    return Standing(PlaceState.WAITING, own.ticket, now, head.holders[0].owner, head.recheck_at - now if first else inf)


def _refusal(head: Head, now: float) -> Refusal:
    return Refusal(head.holders[0].owner, head.recheck_at - now)
