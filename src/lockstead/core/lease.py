"""One place of this client, as the client records it: from before its first request until it is surely gone."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from enum import Enum, auto
from math import inf
from weakref import ref

from lockstead.core.model import Ask, Renewal, Standing
from lockstead.core.timing import LATE_REQUEST_WINDOW, REQUEST_TIMEOUT, margin
from lockstead.errors import InvalidLockError, LockLostError


class LeaseState(Enum):
    WAITING = auto()
    HELD = auto()
    LOST = auto()
    LEFT = auto()
    INHERITED = auto()
    """A copy, in a forked child, of a lease that the parent holds."""


WAITING, HELD, LOST, LEFT, INHERITED = LeaseState
"""Module-level names: Python 3.11 is slow to look up the members of an enum."""


class Claim:
    """Kept alive by the user's handles: a lease whose claim was garbage-collected is no longer renewed."""

    __slots__ = ("__weakref__", "counts", "is_scoped", "leases", "outer", "withdrawn")

    def __init__(self) -> None:
        self.withdrawn = False
        """An acquisition that still waits under this claim must end."""
        self.is_scoped = False
        """It belongs to a block: once it is collected the block has been left, so its leases are released at once."""
        self.leases: list[Lease] = []
        """Every lease tracked under it. An interrupt may lose any other reference to a lease, but not this one."""
        self.outer: Claim | None = None
        """The claim of a re-entered lease."""
        self.counts = 1
        """What it adds to the depth of a lease; 0 once that was subtracted."""


class ClaimRef(ref[Claim]):
    """A weak reference that calls `on_dropped` with the owner of its lease when the claim is collected."""

    __slots__ = ("on_dropped", "owner")

    on_dropped: Callable[[str], None]
    owner: str


def _dropped(claim: ref[Claim]) -> None:
    assert isinstance(claim, ClaimRef)
    claim.on_dropped(claim.owner)


class Lease:
    """Mutable state of one acquisition, shared by the acquiring thread or task and the keeper."""

    __slots__ = (
        "_renewal",
        "alive_until",
        "ask",
        "claim",
        "dead_by",
        "depth",
        "due",
        "entered_as",
        "fence",
        "grace",
        "granted_at",
        "holder",
        "joins_in_doubt",
        "leaves",
        "leaving",
        "longest",
        "reason",
        "recheck_at",
        "renew_for",
        "renew_until",
        "reserved_metadata",
        "reserved_until",
        "slack",
        "state",
        "suspected_at",
        "ticket",
        "trusted_until",
        "watchers",
    )

    def __init__(self, ask: Ask, claim: Claim, renew_for: float, grace: float = 0.0) -> None:
        self.ask = ask
        self._renewal: Renewal | None = None
        self.claim: ref[Claim] = ref(claim)
        self.renew_for = renew_for
        self.grace = grace
        self.reserved_until = -inf
        self.reserved_metadata: str | None = None
        self.state = WAITING
        self.depth = 1
        self.entered_as: tuple[Hashable, str] | None = None
        self.longest = -inf
        self.ticket = 0
        self.alive_until = -inf
        self.fence = 0
        self.granted_at = inf
        self.holder = ""
        self.reason = ""
        self.leaving = False
        self.suspected_at = -inf
        self.leaves = 0
        self.joins_in_doubt = 0
        self.dead_by = inf
        self.trusted_until = -inf
        self.renew_until = inf
        self.recheck_at = inf
        self.due = inf
        self.slack = 0.0
        self.watchers: tuple[Callable[[], None], ...] = ()

    def watch_claim(self, on_dropped: Callable[[str], None]) -> None:
        """Call `on_dropped` with the owner if the claim is collected."""
        claim = self.claim()
        if claim is not None:
            watched = ClaimRef(claim, _dropped)
            watched.owner, watched.on_dropped = self.ask.owner, on_dropped
            self.claim = watched

    def unwatch_claim(self) -> None:
        """Do not report that the claim is collected: Python swallows an interrupt that arrives in such a callback."""
        claim = self.claim()
        if claim is not None:
            self.claim = ref(claim)

    def is_held(self, now: float) -> bool:
        return self.state is HELD and not self.leaving and now < self.trusted_until

    def grant(self, sent: float, fence: int, now: float) -> None:
        """Become a holder by the answer to a request sent then, or by a message received now."""
        self.state = HELD
        self.fence = fence
        self.granted_at = now
        self.renew_until = sent + self.renew_for

    def trust(self, sent: float, duration: float, pace: float) -> None:
        """Extend the trust window to a duration that began, at the earliest, when its request was sent.

        `pace`, from 0 to 1, differs between clients, so that they do not renew in step.
        """
        ttl = self.ask.ttl
        self.trusted_until = max(self.trusted_until, sent + duration - margin(duration) - self.grace)
        self.slack = ttl / 12
        early = ttl * (0.6 + 0.1 * pace) - self.grace
        self.due = inf if self.is_exhausted() else self.trusted_until - early

    def change_ttl(self, ttl: float, sent: float, renew_for: float) -> None:
        """Use another ttl from the next renewal on, as if granted then."""
        self.ask = self.ask._replace(ttl=ttl)
        self.renew_for = renew_for
        self.renew_until = sent + renew_for

    def stop_renewing(self) -> None:
        """Stop renewing. The code that dropped the handle may still be at work, so the lease is left to expire."""
        self.renew_until = -inf
        self.due = inf

    def retire(self, now: float) -> None:
        """Renew for one more ttl at most: a holder that is slow to stop must not hold for ever."""
        self.renew_until = min(self.renew_until, now + self.ask.ttl)

    def is_exhausted(self) -> bool:
        """Return whether no renewal could extend the trust window any further."""
        return self.renew_until - self.trusted_until <= margin(self.ask.ttl) + self.grace

    def wait(self, sent: float, standing: Standing, recheck_at: float, pace: float) -> None:
        """Stay in line for one more heartbeat."""
        heartbeat = self.ask.heartbeat
        self.ticket = standing.ticket
        self.holder = standing.holder
        self.recheck_at = recheck_at
        self.alive_until = max(self.alive_until, sent + heartbeat - margin(heartbeat))
        self.slack = heartbeat / 12
        self.due = sent + heartbeat * (0.27 + 0.06 * pace)

    def trust_heartbeat(self, now: float) -> None:
        """Hold until the last answered heartbeat expires, and claim the ttl soon, unless released before."""
        self.trusted_until = self.alive_until - self.grace
        self.retry_soon(now)

    def retry_soon(self, now: float) -> None:
        """Repeat soon a request whose outcome is unknown; the trust window stays."""
        self.due = now + self.ask.heartbeat / 10
        self.slack = 0.0

    def give_up(self, now: float, due: float) -> None:
        """Stop holding. The keeper sends the release when `due`, and retries for as long as the place may exist."""
        self.leaving = True
        self.due = due
        self.slack = 0.0
        late = LATE_REQUEST_WINDOW if self.joins_in_doubt else REQUEST_TIMEOUT
        self.dead_by = min(self.dead_by, max(self.trusted_until, self.longest, now + self.ask.ttl) + late)

    def duration(self) -> float:
        """Return for how long one renewal extends its place."""
        return self.ask.ttl if self.state is HELD else self.ask.heartbeat

    def wakes_keeper_at(self) -> float:
        return min(self.due, self.trusted_until) if self.state is HELD and not self.leaving else self.due

    def renewal(self, duration: float) -> Renewal:
        """Return the request to renew it; the last one is reused if it was for the same duration."""
        renewal = self._renewal
        if renewal is None or renewal.ttl != duration:
            self._renewal = renewal = Renewal(self.ask.name, self.ask.owner, duration, self.ask.heartbeat)
        return renewal

    def error(self) -> InvalidLockError:
        """Explain why this lease is not held."""
        name = self.ask.name
        if self.state is INHERITED:
            return InvalidLockError(
                f"{name!r} is held by the parent process, not by this fork of it: acquire it here", name=name
            )
        if self.state is LOST:
            return LockLostError(
                f"{name!r} (fence {self.fence}) was lost: {self.reason}; what it protected may have another holder",
                name=name,
                reason=self.reason,
            )
        return InvalidLockError(f"{name!r} (fence {self.fence}) was released already: acquire it again", name=name)
