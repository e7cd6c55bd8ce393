"""What `info` and `inspect` return."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from math import inf
from typing import Any

from lockstead.core.model import Line, Place, SessionInfo
from lockstead.core.quoting import command_for
from lockstead.errors import DamagedError

MAX_DEPTH = 100
"""How deep metadata may be nested to be shown: the JSON encoder recurses, in Python."""
MAX_SHOWN = 100
"""How many characters of unreadable metadata are shown."""


@dataclass(frozen=True, slots=True)
class Holder:
    """One holder of a name at the moment of the inspection."""

    holder_id: str
    """The client that holds: host:pid:random."""
    fence: int
    """The fencing token; 0 if only its holder can read it, as with advisory locks."""
    weight: int
    """How much of the capacity it holds: 1 for a lock, the number of permits for a semaphore."""
    acquired_at: datetime
    expires_at: datetime | None
    """When the lease expires unless it is renewed, which a live holder does. None: with its holder's session."""
    metadata: dict[str, Any]
    session: SessionInfo | None
    """The connection on which it was taken, for servers that report their connections, as PostgreSQL does."""
    reserved: bool
    """Whether this holder has released the name, which is only reserved until it expires (`at_least`, `once`)."""

    def as_json(self) -> dict[str, Any]:
        """Return the same as values JSON can express."""
        expiry = None if self.expires_at is None else self.expires_at.isoformat()
        session = None if self.session is None else self.session._asdict()
        times = {"acquired_at": self.acquired_at.isoformat(), "expires_at": expiry}
        return asdict(self) | times | {"session": session}


@dataclass(frozen=True, slots=True)
class LockInfo:
    """The holders of a name at the moment of the inspection. By the time you read it, it may be outdated."""

    name: str
    capacity: int
    """How much can be held at a time: 1 for a lock, the permits of a semaphore, 2147483647 for a read-write lock."""
    holders: tuple[Holder, ...]
    """All holders, in the order of their tickets."""
    waiting: int
    """How many wait in the queue behind them."""
    damage: str | None = None
    """What cannot be read, and how to clear it; only then may `holders` be empty."""

    @property
    def holder_id(self) -> str:
        """The client that holds, or the first of several holders: host:pid:random."""
        return self._first.holder_id

    @property
    def fence(self) -> int:
        """The first holder's fence; 0 if only its holder can read it, as with advisory locks."""
        return self._first.fence

    @property
    def acquired_at(self) -> datetime:
        return self._first.acquired_at

    @property
    def expires_at(self) -> datetime | None:
        """When the first holder's lease expires unless it is renewed. None: with its holder's session."""
        return self._first.expires_at

    @property
    def metadata(self) -> dict[str, Any]:
        return self._first.metadata

    @property
    def session(self) -> SessionInfo | None:
        return self._first.session

    @property
    def _first(self) -> Holder:
        if not self.holders:
            raise DamagedError(self.damage or "it has no holder", name=self.name)
        return self.holders[0]

    def as_json(self) -> dict[str, Any]:
        """Return the same as values JSON can express: the first holder's fields, the name's, and all holders."""
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
    """Describe a line, with times on this machine's wall clock."""
    held = [place for place in line.places if place.acquired_at is not None]
    wall = datetime.now(UTC)
    damage = None if line.damage is None else str(line.damage)
    holders = []
    for place in held:
        metadata = _metadata(place.metadata)
        if metadata is None:
            shown = place.metadata if len(place.metadata) <= MAX_SHOWN else f"{place.metadata[:MAX_SHOWN]}…"
            remedy = f"`{command_for(line.name, 'release', '--force')}` frees the name"
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
        holder_id=place.owner.rpartition("/")[0] or place.owner,  # an SQL caller's owner has no sequence number
        fence=place.ticket,
        weight=place.weight,
        acquired_at=wall - timedelta(seconds=now - (place.acquired_at or now)),
        expires_at=None if place.expires_at == inf else wall + timedelta(seconds=place.expires_at - now),
        metadata=metadata,
        session=place.session,
        reserved=place.reserved,
    )


def _metadata(text: str) -> dict[str, Any] | None:
    """Parse metadata; None if it is not an object, or one that only SQL accepts: too deep, or with long numbers."""
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
