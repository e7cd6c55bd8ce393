"""One place of this client, as the client records it: from before its first request until it is surely gone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from enum import Enum, auto
from math import inf
from weakref import ref

from lockstead.core.model import Ask, PlaceState, Renewal, Reservation, Standing
from lockstead.core.timing import (
    BEAT_AFTER,
    BEAT_JITTER,
    CLAIM_AHEAD,
    LATE_REQUEST_WINDOW,
    RENEW_AHEAD,
    RENEW_JITTER,
    REQUEST_TIMEOUT,
    RETRY_AFTER,
    SLACK,
    margin,
)
from lockstead.errors import InvalidLockError, LockLostError, StoreError

EXPIRED = "its lease expired after renewal had stopped (max_hold, renew=False or a dropped handle)"
NOT_RENEWED = "it could not be renewed in time"
PLACE_GONE = (
    "the store has no place for it any more (it expired, was released by force, or was lost with its session or the "
    "store's data)"
)
GONE_AT_RELEASE = (
    "the store had no place for it any more when it was released (it was released by force, or was lost with its "
    "session or the store's data)"
)
REFUTED = "the store answered that its place is waiting, not holding"


class LeaseState(Enum):
    JOINING = auto()
    """A join is out, or will be; there may be a place."""
    WAITING = auto()
    """The place is in line. It lives until `alive_until`."""
    HELD = auto()
    """Ours until `trusted_until`."""
    LOST = auto()
    """The loss is being signalled to the holder."""
    RELEASING = auto()
    """A release is out, by the keeper or by a caller, or is due."""
    GONE = auto()
    """Not kept any more: nothing of it is left on the store, or what is left expires by itself."""
    INHERITED = auto()
    """A copy, in a forked child, of a lease of the parent."""


JOINING, WAITING, HELD, LOST, RELEASING, GONE, INHERITED = LeaseState
"""Module-level names: Python 3.11 takes 40 ns to look up a member of an enum, 15 of them in a pair."""


PLACE_HELD = PlaceState.HELD


class Claim:
    """What keeps leases renewed: the user's handle. A lease whose claim was garbage-collected is not renewed."""

    withdrawn = False
    """An acquisition that still waits under this claim must end."""
    is_scoped = False
    """It belongs to a block: once it is collected the block has been left, so its leases are released at once."""
    opened_by: Hashable = None
    """The thread or task that has opened the block, and ends it before it does anything that comes after."""
    outer: Claim | None = None
    """The claim of a re-entered lease."""
    on_lost: Callable[[], None] | None = None
    """Called when a lease tracked under it is lost, before the lease's watchers."""
    resign: Callable[[], Awaitable[None]] | None = None
    """How `release_all` releases its leases, if not at once: a leader has to stop first."""
    leases: tuple[Lease, ...] = ()
    """Every lease tracked under it. An interrupt may lose any other reference to a lease, but not this one."""


class Lease:
    """The record of one acquisition, shared by its caller and the keeper. Only its methods change it.

    The methods that change its state, and the requests that are due; the others change only what these use.

    | method             | called by                    | from                         | to                       |
    |--------------------|------------------------------|------------------------------|--------------------------|
    | `send_join_again`  | engine, multi-lock           | JOINING                      |                          |
    | `apply`, `apply_all` | keeper, with any answer    | JOINING, WAITING             | WAITING, HELD, RELEASING |
    |                    |                              | HELD                         | HELD; returns a loss     |
    | `accept_push`      | keeper                       | WAITING                      | HELD                     |
    | `lose`             | keeper                       | HELD                         | LOST                     |
    | `find_gone`        | engine: release found none   | GONE                         | GONE, with a loss        |
    | `release`          | engine, multi-lock, keeper   | any but GONE, INHERITED      | RELEASING                |
    | `take_requests`    | keeper, before it sends      | WAITING, HELD, RELEASING     |                          |
    | `retry_soon`       | keeper, after a failure      | WAITING, HELD, RELEASING     |                          |
    | `end`              | keeper, once surely gone     | any                          | GONE                     |
    | `inherit`          | engine, in a forked child    | any                          | INHERITED                |

    The caller holds the keeper's mutex, except where no other thread can have the lease yet.
    """

    state = JOINING
    due: float | None = None
    """When the keeper has to send the next request for it: a renewal, or a release. None while one is out, and when
    there is none to send: renewal has stopped, or the caller sends it."""
    slack = 0.0
    """How much earlier that request may be sent, along with others."""

    joins_in_doubt = 1
    """Joins that were sent, or are about to be, and not answered."""
    ticket = 0
    holder = ""
    """While waiting: the owner at the head of the line."""
    recheck_at = inf
    """While waiting: when the line may move because a holder expires."""
    alive_until = -inf
    """Until when the place is surely alive, by its last answered heartbeat."""

    granted_at: float | None = None
    trusted_until = -inf
    """The end of the trust window."""
    renew_until = inf
    """No renewal extends the lease beyond that."""
    extended_until = -inf
    """The latest expiry that was requested by an extension."""
    suspected_at = -inf
    """When the store last reported that the place may be gone."""
    loss: str | None = None
    """Why it was lost."""
    watchers: tuple[Callable[[], None], ...] = ()
    """Called once, when it is lost."""

    entries: tuple[tuple[ref[Claim], bool], ...] = ()
    """Of a re-entrant lease: the claims that hold it, and whether each is scoped."""
    entered_as: tuple[Hashable, str] | None = None
    """Of a re-entrant lease: the thread or task that may re-enter it, and the name."""

    is_reserving = False
    """Whether its release keeps the name reserved: until then, with that metadata."""
    reserved_until = -inf
    reserved_metadata: str | None = None
    gone_by = inf
    """Once it is being released: when the place must have expired, whatever happens."""
    _renewal: Renewal | None = None

    def __init__(self, ask: Ask, claim: ref[Claim], renew_for: float, grace: float) -> None:
        self.ask = ask
        self.claim: ref[Claim] | None = claim
        self.renew_for = renew_for
        self.grace = grace

    def scope(self, on_dropped: Callable[[ref[Claim]], None]) -> None:
        """Belong to a block: have `on_dropped` called if the claim is collected without a release."""
        claim = self.claim() if self.claim is not None else None
        if claim is not None:
            self.claim = ref(claim, on_dropped)

    def send_join_again(self) -> None:
        """Count one more join as in doubt until it is answered."""
        self.joins_in_doubt += 1

    def join_answered(self) -> None:
        self.joins_in_doubt -= 1

    def join_failed(self, error: StoreError) -> None:
        """Leave a join in doubt, unless the store refused it, or it was not sent."""
        if not error.transient or not error.was_sent:
            self.joins_in_doubt -= 1

    def apply(
        self, standing: Standing, sent: float, duration: float, now: float, pace: float, *, is_join: bool = False
    ) -> str | None:
        """Apply the answer to a request for that duration, sent then; return why the lease is lost by it, if it is.

        `pace`, from 0 to 1, differs between clients, so that they do not renew in step. Ignored once the lease is being
        released.
        """
        if is_join:
            self.joins_in_doubt -= 1
        is_held = standing.state is PLACE_HELD
        if self.state is HELD:
            if not is_held:
                return self._apply_to_held(standing.state, sent, now)
            if now < self.trusted_until:  # else a late join may have made another place since
                self._trust(sent, duration, pace)
                if self.suspected_at >= sent:  # the answer may be older than the suspicion
                    self.due, self.slack = now, 0.0
        elif self.state is JOINING or self.state is WAITING:
            if is_held:
                self.state = HELD
                self.ticket = standing.ticket
                self.granted_at = now
                self.renew_until = sent + self.renew_for
                self._trust(sent, duration, pace)
            elif standing.state is PlaceState.WAITING:
                self._queue(sent, standing, now, pace)
            elif standing.state is PlaceState.GONE:
                self.release(now)
            else:
                self.retry_soon(now)
        return None

    def _apply_to_held(self, answer: PlaceState, sent: float, now: float) -> str | None:
        """Return why a lease that is held is lost by another answer than that it is, if it is."""
        if answer is PlaceState.GONE:
            return PLACE_GONE
        if answer is PlaceState.WAITING and self.granted_at is not None and sent > self.granted_at:
            return REFUTED  # the grant was forged, or a failover undid it
        if self.needs_renewal():  # unknown, or older than the grant
            self.retry_soon(now)
        return None

    def accept_push(self, now: float) -> bool:
        """Hold by the store's message that the place holds; False if the place may have ended since.

        A place that holds does so until it is released or expires, and it does not expire before its last answered
        heartbeat does: so it is trusted for that long, and its ttl is claimed soon, unless it is released before.
        False also for a lease that is not renewed, which has to claim its ttl by a request at once; for one whose
        heartbeat, less its grace, leaves too little time to claim it later; and after a join in doubt: the message may
        be about a place that has expired, not about the one that the repeated join was given.
        """
        ask = self.ask
        if self.state is not WAITING or self.renew_for < ask.ttl or self.joins_in_doubt:
            return False
        if now >= self.alive_until - self.grace - ask.heartbeat * CLAIM_AHEAD:
            return False
        self.state = HELD
        self.granted_at = now
        self.renew_until = now + self.renew_for
        self.trusted_until = self.alive_until - self.grace
        self.retry_soon(now)
        return True

    def _trust(self, sent: float, duration: float, pace: float) -> None:
        """Extend the trust window to a duration that began, at the earliest, when its request was sent."""
        ttl = self.ask.ttl
        until = sent + duration - margin(duration) - self.grace
        self.trusted_until = max(self.trusted_until, until)
        if self.renew_until == inf or not self.is_exhausted():
            self.due = self.trusted_until - ttl * (RENEW_AHEAD + RENEW_JITTER * pace) + self.grace
            self.slack = ttl * SLACK
        else:
            self.due = None

    def _queue(self, sent: float, standing: Standing, now: float, pace: float) -> None:
        """Stay in line for one more heartbeat."""
        heartbeat = self.ask.heartbeat
        self.state = WAITING
        self.ticket = standing.ticket
        self.holder = standing.holder
        self.recheck_at = now + standing.recheck
        self.alive_until = max(self.alive_until, sent + heartbeat - margin(heartbeat))
        self.due = sent + heartbeat * (BEAT_AFTER + BEAT_JITTER * pace)
        self.slack = heartbeat * SLACK

    def suspect(self, now: float) -> bool:
        """Renew it at once: the store reported that the place may be gone. False if it is not held."""
        if self.state is not HELD:
            return False
        self.due, self.slack, self.suspected_at = now, 0.0, now
        return True

    def lose(self, why: str) -> bool:
        """Be lost; False if it is not held any more."""
        if self.state is not HELD:
            return False
        self.state, self.due, self.loss = LOST, None, why
        return True

    def find_gone(self) -> None:
        """Be lost: the release of a lease inside its trust window found no place."""
        self.loss = GONE_AT_RELEASE

    def release(self, now: float, due: float | None = None) -> None:
        """Stop holding or waiting. Without `due` the caller sends the release; else the keeper, with retries."""
        if self.state is GONE or self.state is INHERITED:
            return
        self.due, self.slack = due, 0.0
        if self.state is not RELEASING:
            self.state = RELEASING
            late = LATE_REQUEST_WINDOW if self.joins_in_doubt else REQUEST_TIMEOUT
            self.gone_by = max(self.trusted_until, self.extended_until, now + self.ask.ttl) + late

    @staticmethod
    def take_requests(leases: Iterable[Lease]) -> tuple[list[Lease], list[Lease]]:
        """Have the requests that are due sent now; return the leases to renew, and those to release."""
        renewing: list[Lease] = []
        releasing: list[Lease] = []
        for lease in leases:
            if lease.due is not None:
                lease.due = None
                if lease.state is HELD or lease.state is WAITING:
                    renewing.append(lease)
                elif lease.state is RELEASING:
                    releasing.append(lease)
        return renewing, releasing

    def retry_soon(self, now: float) -> None:
        """Repeat soon a request whose outcome is unknown; the trust window stays."""
        self.due = now + self.ask.heartbeat * RETRY_AFTER
        self.slack = 0.0

    def end(self) -> None:
        """Be surely gone. Python swallows an interrupt in the callback of a claim: it must not be called any more."""
        self.state, self.due = GONE, None
        claim = self.claim() if self.entries and self.claim is not None else None
        self.claim = None if claim is None else ref(claim)

    def inherit(self) -> None:
        """Become the copy, in a forked child, of a lease that is the parent's."""
        self.state, self.due = INHERITED, None

    def change_ttl(self, ttl: float, sent: float, renew_for: float) -> None:
        """Use another ttl from the next renewal on, as if granted then."""
        self.ask = self.ask._replace(ttl=ttl)
        self.renew_for = renew_for
        self.renew_until = sent + renew_for

    def extend(self, sent: float, seconds: float) -> None:
        """Expect an extension, sent then, which may be applied even if it is not answered."""
        self.extended_until = max(self.extended_until, sent + seconds)

    def stop_renewing(self) -> None:
        """Stop renewing. The code that dropped the handle may still be at work, so the lease is left to expire."""
        self.renew_until, self.due = -inf, None

    def retire(self, now: float) -> None:
        """Renew for one more ttl at most: a holder that is slow to stop must not hold for ever."""
        self.renew_until = min(self.renew_until, now + self.ask.ttl)

    def reserve(self, until: float, metadata: str | None = None) -> None:
        """Keep the name reserved until then, however early it is released."""
        self.is_reserving = True
        self.reserved_until = max(self.reserved_until, until)
        if metadata is not None:
            self.reserved_until, self.reserved_metadata = until, metadata

    def enter(self, context: Hashable, claim: Claim) -> None:
        """Be re-entrant for that thread or task."""
        self.entered_as, self.entries = (context, self.ask.name), ((ref(claim), claim.is_scoped),)

    def enter_again(self, claim: Claim) -> None:
        self.entries += ((ref(claim), claim.is_scoped),)

    def exit(self, claim: Claim, on_dropped: Callable[[ref[Claim]], None]) -> bool:
        """Subtract a claim, and return whether no other holds it. Safe to repeat for the same claim.

        A block's claim that was collected does not count: an interrupt came before its end. One acquired by hand does.
        """
        self.entries = tuple(
            (other, is_scoped)
            for other, is_scoped in self.entries
            if (held := other()) is not claim and (held is not None or not is_scoped)
        )
        if self.entries and self.claim is not None and self.claim() is claim:
            left, is_scoped = self.entries[0]  # one that is left keeps it renewed
            held = left()
            self.claim = ref(held, on_dropped) if held is not None and is_scoped else left
        return not self.entries

    def exit_all(self) -> None:
        self.entered_as, self.entries = None, ()

    def watch(self, on_lost: Callable[[], None]) -> bool:
        """Have `on_lost` called when it is lost; False if it is lost already."""
        if self.loss is None:
            self.watchers += (on_lost,)
        return self.loss is None

    def unwatch(self, on_lost: Callable[[], None]) -> None:
        self.watchers = tuple(watcher for watcher in self.watchers if watcher != on_lost)

    def take_watchers(self) -> tuple[Callable[[], None], ...]:
        """Return the watchers, that of the claim first: each is called once."""
        watchers, self.watchers = self.watchers, ()
        claim = self.claim() if self.claim is not None else None
        return watchers if claim is None or claim.on_lost is None else (claim.on_lost, *watchers)

    @property
    def fence(self) -> int:
        """The fencing token: the ticket, once the place was granted."""
        return self.ticket

    def is_held(self, now: float) -> bool:
        return self.state is HELD and now < self.trusted_until

    def is_exhausted(self) -> bool:
        """Return whether no renewal could extend the trust window any further."""
        return self.renew_until - self.trusted_until <= margin(self.ask.ttl) + self.grace

    def needs_renewal(self) -> bool:
        return self.state is WAITING or (self.state is HELD and not self.is_exhausted())

    def wakes_keeper_at(self) -> float:
        """Return when the keeper has to send a request for it, or to signal its loss."""
        if self.state is HELD and (self.due is None or self.due > self.trusted_until):
            return self.trusted_until
        return inf if self.due is None else self.due

    def duration(self) -> float:
        """Return for how long one renewal extends its place."""
        return self.ask.ttl if self.state is HELD else self.ask.heartbeat

    def renewal(self, duration: float) -> Renewal:
        """Return the request to renew it; the last one is reused if it was for the same duration."""
        renewal = self._renewal
        if renewal is None or renewal.ttl != duration:
            self._renewal = renewal = Renewal(self.ask.name, self.ask.owner, duration, self.ask.heartbeat)
        return renewal

    @staticmethod
    def renewals(leases: Sequence[Lease], sent: float) -> list[Renewal]:
        """Return the requests to renew leases, none of them for longer than it may be held.

        One loop, without a call for each that is renewed without limit: it takes a quarter of the time, at 10,000 held.
        """
        renewals = []
        for lease in leases:
            renewal, ttl = lease._renewal, lease.ask.ttl  # noqa: SLF001 (of this class)
            if renewal is None or renewal.ttl != ttl or lease.renew_until != inf:
                renewal = lease.renewal(min(ttl, max(lease.renew_until - sent, 0.0)))
            renewals.append(renewal)
        return renewals

    @staticmethod
    def apply_all(
        leases: Sequence[Lease],
        renewals: Sequence[Renewal],
        standings: Sequence[Standing],
        *,
        sent: float,
        now: float,
        pace: float,
    ) -> tuple[list[tuple[Lease, str]], float]:
        """Apply the answers to a batch of renewals, as `apply` does; return the losses, and when the first is due.

        One loop, as in `renewals`. What is common has no call: of a lease that is held and renewed without limit, the
        answer that it is held. Leases that are alike then have the same times.
        """
        losses: list[tuple[Lease, str]] = []
        first_due = inf
        alike: tuple[float, float] | None = None
        until = due = slack = 0.0
        for lease, renewal, standing in zip(leases, renewals, standings, strict=True):
            ttl, grace = renewal.ttl, lease.grace
            if alike != (ttl, grace):
                alike = ttl, grace
                until = sent + ttl - margin(ttl) - grace
                due, slack = until - ttl * (RENEW_AHEAD + RENEW_JITTER * pace) + grace, ttl * SLACK
            if (
                standing.state is PLACE_HELD
                and lease.state is HELD
                and lease.renew_until == inf
                and now < lease.trusted_until <= until
                and lease.suspected_at < sent
                and lease.ask.ttl == ttl
            ):
                lease.trusted_until, lease.due, lease.slack = until, due, slack
                if due < first_due:  # noqa: PLR1730 (`min` is a call)
                    first_due = due
                continue
            loss = lease.apply(standing, sent, ttl, now, pace)
            if loss is not None:
                losses.append((lease, loss))
            else:
                first_due = min(first_due, lease.wakes_keeper_at())
        return losses, first_due

    def tombstone(self) -> float:
        """Return for how long the store must refuse its owner a place: a join in doubt may arrive late."""
        return max(self.ask.ttl, LATE_REQUEST_WINDOW) if self.joins_in_doubt else 0.0

    def reservation(self, now: float) -> Reservation | None:
        """Return the reservation that its release has to make; None if that would end now."""
        left = self.reserved_until - now
        if left <= 0:
            return None
        return Reservation(self.ask.name, self.ask.owner, left, self.reserved_metadata, self.tombstone())

    def error(self) -> InvalidLockError:
        """Explain why this lease is not held."""
        name = self.ask.name
        if self.state is INHERITED:
            return InvalidLockError(
                f"{name!r} is held by the parent process, not by this fork of it: acquire it here", name=name
            )
        if self.loss is not None:
            return LockLostError(
                f"{name!r} (fence {self.ticket}) was lost: {self.loss}; what it protected may have another holder",
                name=name,
                reason=self.loss,
            )
        return InvalidLockError(f"{name!r} (fence {self.ticket}) was released already: acquire it again", name=name)
