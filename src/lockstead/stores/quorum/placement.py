"""Where one owner may have a place: what a client remembers of its rounds, to release all of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from lockstead.core.timing import LATE_REQUEST_WINDOW

PENDING_RELEASE_TTL = 60.0
"""Seconds for which the release of a place is retried whose expiry is not known."""


class Departure(NamedTuple):
    """A place that is to be released or reserved, on each member that may have it."""

    name: str
    owner: str
    members: Sequence[int]
    until: float
    """When the last of the places will have expired, by our clock."""
    tombstones: Mapping[int, float]
    """For how long a member is to refuse the owner, if it is: a request to join may arrive there late."""


@dataclass(slots=True)
class Placement:
    """The members on which one owner may have a place."""

    granted: set[int] = field(default_factory=set)
    in_doubt: list[set[int]] = field(default_factory=list)
    """For each attempt to join, the members that have not answered it."""
    reserved: set[int] = field(default_factory=set)
    """The members that have confirmed the reservation."""
    until: float = -inf
    """When the last of the places will have expired, by our clock."""

    def begin_attempt(self) -> set[int]:
        """Return a new set, for the members that have not answered this attempt to join."""
        in_doubt: set[int] = set()
        self.in_doubt.append(in_doubt)
        return in_doubt

    def members_in_doubt(self) -> set[int]:
        return set().union(*self.in_doubt)

    def members(self) -> list[int]:
        return sorted(self.granted | self.members_in_doubt())

    def departure(self, name: str, owner: str, now: float) -> Departure:
        if not any(self.in_doubt):
            return Departure(name, owner, sorted(self.granted), self.until, {})
        late_request_window = max(self.until - now, LATE_REQUEST_WINDOW)
        tombstones = dict.fromkeys(self.members_in_doubt(), late_request_window)
        return Departure(name, owner, self.members(), self.until, tombstones)


def departure_from_all(members: Sequence[int], name: str, owner: str, now: float, tombstone: float) -> Departure:
    """Assume a place on every member: it was taken by another client."""
    until = now + max(PENDING_RELEASE_TTL, tombstone)
    return Departure(name, owner, members, until, dict.fromkeys(members, tombstone))
