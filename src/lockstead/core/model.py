"""The values that pass between engine and store.

Durations are seconds. Points in time (`now`, `expires_at`, `acquired_at`) are on the *store's* clock and
mean nothing beside a client's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from math import inf
from typing import Literal, NamedTuple

from lockstead.errors import DamagedError


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a store can carry. The engine refuses the rest; the contract suite tests the rest is refused."""

    fifo: bool = True
    """Places wait in ticket order. Without it, only `Ask.queue=False` is understood."""
    push: bool = True
    """A place that newly holds is woken. Without it, waiters ask again with growing pauses."""
    semaphore: bool = True
    """Any capacity above one."""
    shared: bool = True
    """Readers beside each other, and writers alone: a capacity of WHOLE, and a weight of one or all of it."""
    expiry: bool = True
    """A place ends by itself when it is not renewed. Without it, places end with the session they were taken on."""
    records: bool = True
    """An inspection shows everybody's fences and metadata, not only those of the store object that is asked."""
    processes: bool = True
    """Other processes see the same lines."""

    def carry(self, capacity: int, weight: int) -> bool:
        """Tell whether a place of that kind can be had here."""
        return capacity == 1 or self.semaphore or (self.shared and capacity == WHOLE and weight in {1, WHOLE})


WHOLE = 2**31 - 1
"""The capacity of a line of readers and writers: a reader takes one of it, a writer all."""


class Ask(NamedTuple):
    """One acquisition's request for a place in the line of `name`."""

    name: str
    owner: str
    ttl: float
    """How long the place lives once it holds."""
    heartbeat: float
    """How long it lives while it waits, or holds without having claimed."""
    capacity: int = 1
    weight: int = 1
    queue: bool = True
    """Wait in line when it does not fit, rather than be refused."""
    metadata: str = "{}"
    floor: int = 0
    """The least ticket wished for. Granted unless it is far ahead of the store's clock, so that the members of a
    quorum mostly draw the same one."""


class Renewal(NamedTuple):
    """One place's request to live on."""

    name: str
    owner: str
    ttl: float
    heartbeat: float
    claim: bool = True
    """Buy the full `ttl` if the place holds."""
    floor: int = 0
    """Raise the counter, and the place's own ticket, to at least this, if the place holds."""


class Reservation(NamedTuple):
    """A holder's request to go, but to leave its name taken for a while."""

    name: str
    owner: str
    seconds: float
    """For how long from now: longer or shorter than the place would have lived."""
    metadata: str | None = None
    """What the place shows from now on, if something else."""
    tombstone: float = 0.0
    """As in `Store.leave`."""


class Standing(NamedTuple):
    """Where a place stood when the store answered."""

    ticket: int
    held: bool
    """False of a place that held before: it was never granted, or the grant was undone, and its lease is lost."""
    now: float
    """The store's clock; 0 if nobody told."""
    holder: str = ""
    """While waiting: the owner at the head of the line."""
    recheck: float = inf
    """While first in waiting: seconds until the line may move because a holder expires."""


UNKNOWN = Standing(0, False, 0.0)
"""The standing of a place that the store could tell nothing of: its lease is not renewed, nor lost."""


class Refusal(NamedTuple):
    """Why no place was given: somebody holds, or the line has another capacity."""

    holder: str = ""
    recheck: float = inf
    capacity: int = 0
    """The line's capacity where it differs from the one asked for, else 0."""
    abstains: bool = False
    """This member of a quorum has come back empty, and does not vote yet: in `recheck` seconds if it is admitted."""
    name: str = ""
    """The line that refused, where places in several were asked for."""


class RateRequest(NamedTuple):
    """A request to take so much from a rate: a debt that wears off by itself, a second in a second."""

    name: str
    cost: float
    """Seconds of debt; 0 only looks."""
    limit: float
    """The most debt there may be at the moment of acting."""
    patience: float = 0.0
    """How long the caller would wait for the debt to wear off to that."""


class RateResult(NamedTuple):
    """What came of a charge."""

    allowed: bool
    debt: float
    """Seconds, with the charge if it was allowed. The caller acts once it has worn off to the limit."""


class Finding(NamedTuple):
    """One thing an examination of a store brought to light."""

    level: Literal["ok", "warning", "error"]
    subject: str
    """The server it is about."""
    message: str


class Membership(NamedTuple):
    """What a member of a quorum remembers of the votes it gave."""

    token: str
    """Made when it was found empty; whoever admits it must name it."""
    ticket: int
    """The last ticket it drew or was told of."""
    longest: float
    """The longest life it ever gave to a lease; what stays on after its holder is none."""
    votes_in: float
    """Seconds until it votes: 0 once it does, infinite before it is admitted."""


class Session(NamedTuple):
    """The connection a place came by, where a server knows its connections."""

    pid: int
    """Of the server's process behind it."""
    application: str
    address: str


@dataclass(slots=True)
class Place:
    """One owner's place in a line. It holds from the moment `acquired_at` is set."""

    ticket: int
    """0 where the store cannot tell."""
    owner: str
    capacity: int
    weight: int
    expires_at: float
    """Infinite for a place that ends with its session."""
    acquired_at: float | None
    metadata: str
    session: Session | None = field(default=None, kw_only=True)

    @property
    def reserved(self) -> bool:
        """Whether its owner has gone, and only the name stays taken for a while."""
        return self.owner.endswith(RESERVED)


RESERVED = "+"
"""What is added to an owner's name when its place stays on after it: so that late renewals find nothing."""


class Wake(IntEnum):
    """How a wait for a place ended."""

    SILENCE = 0
    """The time is over."""
    HINT = 1
    """Something may have changed: ask."""
    GRANT = 2
    """The store says that the place holds. It does, for as long as its last answered heartbeat lets it live.

    Only for a message that no client can send without the right to write to the store: else it is a HINT."""


class Line(NamedTuple):
    """A name's live places in ticket order, as `Store.inspect` reports them."""

    name: str
    """Empty where `damage` is to what several names share."""
    now: float
    places: tuple[Place, ...]
    damage: DamagedError | None = None
    """What of it cannot be read; then there may be no places, or not all."""
