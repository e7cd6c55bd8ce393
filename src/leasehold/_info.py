"""What an inspection tells."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from math import inf
from typing import Any

from leasehold._model import Line, Session


@dataclass(frozen=True, slots=True)
class LockInfo:
    """Who held a lock at the moment it was looked at. By the time you read it, it may be history."""

    name: str
    holder_id: str
    """The client that holds: host:pid:random."""
    fence: int
    """0 if only its holder knows it, as with advisory locks."""
    acquired_at: datetime
    expires_at: datetime | None
    """When the lease ends unless it is renewed, which a live holder does. None: when its holder's session ends."""
    metadata: dict[str, Any]
    waiting: int
    """How many stand in line behind the holder."""
    session: Session | None = None
    """The connection it came by, where a server knows its connections, as PostgreSQL does."""

    def as_json(self) -> dict[str, Any]:
        """Give the same as values JSON can express."""
        expiry = None if self.expires_at is None else self.expires_at.isoformat()
        session = None if self.session is None else self.session._asdict()
        times = {"acquired_at": self.acquired_at.isoformat(), "expires_at": expiry}
        return asdict(self) | times | {"session": session}


def describe(line: Line) -> LockInfo:
    """Describe a line by the place at its head, its times on this machine's wall clock."""
    head = line.places[0]
    wall = datetime.now(UTC)
    held = [place for place in line.places if place.acquired_at is not None]
    return LockInfo(
        name=line.name,
        holder_id=head.owner.rpartition("/")[0] or head.owner,  # an SQL caller's has no number
        fence=head.ticket,
        acquired_at=wall - timedelta(seconds=line.now - (head.acquired_at or line.now)),
        expires_at=None if head.expires_at == inf else wall + timedelta(seconds=head.expires_at - line.now),
        metadata=json.loads(head.metadata),
        waiting=len(line.places) - len(held),
        session=head.session,
    )
