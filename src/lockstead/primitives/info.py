"""What an inspection tells."""

from __future__ import annotations

import json
import shlex
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from math import inf
from typing import Any

from lockstead.core.model import Line, Place, Session
from lockstead.errors import DamagedError

MAX_DEPTH = 100
"""How deep metadata may be nested to be shown: what writes it out recurses, in Python."""
SHOWN = 100
"""How many characters to show of metadata that cannot be read."""


@dataclass(frozen=True, slots=True)
class Holder:
    """One of those who held a name."""

    holder_id: str
    """The client that holds: host:pid:random."""
    fence: int
    """0 if only its holder knows it, as with advisory locks."""
    weight: int
    """How much of the capacity: 1 for a lock, the permits of a semaphore."""
    acquired_at: datetime
    expires_at: datetime | None
    """When the lease ends unless it is renewed, which a live holder does. None: when its holder's session ends."""
    metadata: dict[str, Any]
    session: Session | None
    """The connection it came by, where a server knows its connections, as PostgreSQL does."""
    reserved: bool
    """Whether this holder is done, and only left the name taken until it expires."""

    def as_json(self) -> dict[str, Any]:
        """Give the same as values JSON can express."""
        expiry = None if self.expires_at is None else self.expires_at.isoformat()
        session = None if self.session is None else self.session._asdict()
        times = {"acquired_at": self.acquired_at.isoformat(), "expires_at": expiry}
        return asdict(self) | times | {"session": session}


@dataclass(frozen=True, slots=True)
class LockInfo:
    """Who held a name at the moment it was looked at. By the time you read it, it may be history."""

    name: str
    capacity: int
    """How much can be held at a time: 1 of a lock, the permits of a semaphore, 2147483647 readers."""
    holders: tuple[Holder, ...]
    """All who hold, the first one first."""
    waiting: int
    """How many stand in line behind them."""
    damage: str | None = None
    """What of this name cannot be read, and how to clear it; only then may there be no holders."""

    @property
    def holder_id(self) -> str:
        """The client that holds, or the first of several: host:pid:random."""
        return self._first.holder_id

    @property
    def fence(self) -> int:
        """The first holder's fence; 0 if only its holder knows it, as with advisory locks."""
        return self._first.fence

    @property
    def acquired_at(self) -> datetime:
        return self._first.acquired_at

    @property
    def expires_at(self) -> datetime | None:
        """When the first holder's lease ends unless it is renewed. None: when its holder's session ends."""
        return self._first.expires_at

    @property
    def metadata(self) -> dict[str, Any]:
        return self._first.metadata

    @property
    def session(self) -> Session | None:
        return self._first.session

    @property
    def _first(self) -> Holder:
        if not self.holders:
            raise DamagedError(self.damage or "it has no holder", name=self.name)
        return self.holders[0]

    def as_json(self) -> dict[str, Any]:
        """Give the same as values JSON can express: the first holder's, if any, beside the name's own, then all."""
        holders = [holder.as_json() for holder in self.holders]
        return {
            "name": self.name,
            **(holders[0] if holders else {}),
            "capacity": self.capacity,
            "waiting": self.waiting,
            "holders": holders,
            "damage": self.damage,
        }


def describe(line: Line) -> LockInfo:
    """Describe a line, its times on this machine's wall clock."""
    held = [place for place in line.places if place.acquired_at is not None]
    wall = datetime.now(UTC)
    damage = None if line.damage is None else str(line.damage)
    holders = []
    for place in held:
        metadata = _metadata(place.metadata)
        if metadata is None:
            shown = place.metadata if len(place.metadata) <= SHOWN else f"{place.metadata[:SHOWN]}…"
            remedy = f"`lockstead release {shlex.quote(line.name)} --force` frees the name"
            damage = (
                damage
                or f"the metadata of {place.owner}, which holds {line.name!r}, cannot be read: {shown} ({remedy})"
            )
        holders.append(_holder(place, line.now, wall, metadata or {}))
    return LockInfo(
        name=line.name,
        capacity=line.places[0].capacity if line.places else 0,
        holders=tuple(holders),
        waiting=len(line.places) - len(held),
        damage=damage,
    )


def _holder(place: Place, now: float, wall: datetime, metadata: dict[str, Any]) -> Holder:
    return Holder(
        holder_id=place.owner.rpartition("/")[0] or place.owner,  # an SQL caller's has no number
        fence=place.ticket,
        weight=place.weight,
        acquired_at=wall - timedelta(seconds=now - (place.acquired_at or now)),
        expires_at=None if place.expires_at == inf else wall + timedelta(seconds=place.expires_at - now),
        metadata=metadata,
        session=place.session,
        reserved=place.reserved,
    )


def _metadata(text: str) -> dict[str, Any] | None:
    """Read metadata; None if it is no object, or one that SQL takes and Python does not: too deep, numbers too long."""
    with suppress(ValueError, RecursionError):
        metadata = json.loads(text)
        if isinstance(metadata, dict) and not _is_deep(metadata):
            return metadata
    return None


def _is_deep(value: object) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        containers = [
            each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list)
        ]
        level = [child for children in containers for child in children]
    return bool(level)
