"""The values that pass between engine and store.

Durations are seconds. Points in time (`now`, `expires_at`, `acquired_at`) are on the *store's* clock and
cannot be compared with a client's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, IntEnum, auto
from math import inf
from typing import Literal, NamedTuple

from lockstead.errors import DamagedError


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a store supports. The engine refuses the rest, and the contract suite checks that it does."""

    fifo: bool = True
    """Places wait in ticket order. Without it, the store accepts only `Ask.queue=False`."""
    push: bool = True
    """The store wakes a place that newly holds. Without it, waiters poll with growing pauses."""
    semaphore: bool = True
    """Any capacity above one."""
    shared: bool = True
    """Read-write locks: a capacity of WHOLE, and a weight of one (a reader) or of all of it (a writer)."""
    expiry: bool = True
    """A place that is not renewed expires. Without it, places end with the session on which they were taken."""
    records: bool = True
    """An inspection shows the fences and metadata of all clients, not only those of the store object that is asked."""
    processes: bool = True
    """Other processes see the same lines."""

    def supports(self, capacity: int, weight: int) -> bool:
        """Return whether the store supports a place of that kind."""
        return capacity == 1 or self.semaphore or (self.shared and capacity == WHOLE and weight in {1, WHOLE})


WHOLE = 2**31 - 1
"""The capacity of a read-write lock's line: a reader's weight is one, a writer's the whole capacity."""


class Ask(NamedTuple):
    """One acquisition's request for a place in the line of `name`."""

    name: str
    owner: str
    ttl: float
    """Seconds after which the place expires once it holds, unless it is renewed."""
    heartbeat: float
    """The same while it waits, or holds without having claimed its ttl."""
    capacity: int = 1
    weight: int = 1
    queue: bool = True
    """Wait in line when it does not fit, rather than be refused."""
    metadata: str = "{}"
    floor: int = 0
    """The smallest ticket to draw. Honoured unless it is far ahead of the store's clock, so that the members of a
    quorum mostly draw the same one."""


class Renewal(NamedTuple):
    """A request to renew one place."""

    name: str
    owner: str
    ttl: float
    heartbeat: float
    claim: bool = True
    """Extend to the full `ttl` if the place holds; otherwise to the heartbeat only."""
    floor: int = 0
    """Raise the counter, and the place's own ticket, to at least this, if the place holds."""


class Reservation(NamedTuple):
    """A holder's request to release its place but keep the name reserved for a while."""

    name: str
    owner: str
    seconds: float
    """The reservation's duration from now: longer or shorter than what was left of the lease."""
    metadata: str | None = None
    """The metadata that the reservation shows; None keeps the place's own."""
    tombstone: float = 0.0
    """As in `Store.leave`."""


class PlaceState(Enum):
    """What a store answers about a place. A join answers only HELD or WAITING."""

    HELD = auto()
    WAITING = auto()
    """Of a place that held before: it was never granted, or the grant was undone, and its lease is lost."""
    GONE = auto()
    """There is no such place: it expired or was removed."""
    UNKNOWN = auto()
    """The request may or may not have been applied: the lease is neither renewed nor lost."""


class Standing(NamedTuple):
    """A place when the store answered."""

    state: PlaceState
    ticket: int = 0
    now: float = 0.0
    """The store's clock; 0 if unknown."""
    holder: str = ""
    """While waiting: the owner at the head of the line."""
    recheck: float = inf
    """For the first waiter: seconds until the line may move because a holder expires."""

    @property
    def held(self) -> bool:
        return self.state is PlaceState.HELD


GONE = Standing(PlaceState.GONE)
UNKNOWN = Standing(PlaceState.UNKNOWN)


class Refusal(NamedTuple):
    """Why no place was given: the name is held, or the line has another capacity."""

    holder: str = ""
    recheck: float = inf
    capacity: int = 0
    """The line's capacity if it differs from the requested one, else 0."""
    abstains: bool = False
    """This member of a quorum restarted empty and does not vote yet: in `recheck` seconds, if it is admitted."""
    name: str = ""
    """The line that refused, if places in several lines were requested."""


class RateRequest(NamedTuple):
    """A request to a rate limit, in seconds of its GCRA level: see `core/gcra.py`."""

    name: str
    cost: float
    """What the request adds to the level; 0 only reads it."""
    burst: float
    """The level up to which requests are allowed."""
    max_wait: float = 0.0
    """How long the caller is willing to wait for the level to fall to the burst."""


class RateResult(NamedTuple):
    """The store's decision on a `RateRequest`."""

    allowed: bool
    level: float
    """Seconds, including the cost if it was allowed. The caller proceeds once the level has fallen to the burst."""


class Finding(NamedTuple):
    """One result of examining a store."""

    level: Literal["ok", "warning", "error"]
    subject: str
    """The server it concerns."""
    message: str


class Membership(NamedTuple):
    """The state of a quorum member's votes."""

    token: str
    """Created when the member was found empty; `Member.admit` must name it."""
    ticket: int
    """The last ticket it drew or received."""
    longest: float
    """The longest ttl it ever granted to a lease; reservations do not count."""
    votes_in: float
    """Seconds until it votes: 0 once it does, infinite before it is admitted."""


class SessionInfo(NamedTuple):
    """The connection on which a place was taken, for servers that report their connections."""

    pid: int
    """The server's process for this connection."""
    application: str
    address: str


@dataclass(slots=True)
class Place:
    """One owner's place in a line. It holds from the moment `acquired_at` is set."""

    ticket: int
    """0 if the store does not report it."""
    owner: str
    capacity: int
    weight: int
    expires_at: float
    """Infinite for a place that ends with its session."""
    acquired_at: float | None
    metadata: str
    session: SessionInfo | None = field(default=None, kw_only=True)

    @property
    def reserved(self) -> bool:
        """Whether its owner has released it, and it only reserves the name for a while."""
        return self.owner.endswith(RESERVED)


RESERVED = "+"
"""Appended to the owner of a place that becomes a reservation, so that late renewals find nothing."""


class Wake(IntEnum):
    """How a wait for a place ended."""

    TIMEOUT = 0
    """The timeout has passed."""
    HINT = 1
    """Something may have changed: ask the store."""
    GRANT = 2
    """The store says that the place holds. It does until its last answered heartbeat expires.

    Only for a message that requires the right to write to the store; any other message is a HINT."""


class Line(NamedTuple):
    """A name's live places in ticket order, as `Store.inspect` reports them."""

    name: str
    """Empty if `damage` is in data that several names share."""
    now: float
    places: tuple[Place, ...]
    damage: DamagedError | None = None
    """What cannot be read, if anything; then `places` may be empty or incomplete."""
