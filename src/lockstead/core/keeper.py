"""The keeper: one loop per client that renews and releases every place the client has in any line.

It renews held leases and waiting places in one batch, signals a loss before another client can hold, and releases
abandoned places in the background until the store confirms it or the place must have expired.

All answers of the store, to requests of the acquiring thread or task and to those of this loop, go through `apply`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from weakref import WeakMethod, ref

from lockstead.core import lifecycle
from lockstead.core.lease import HELD, LEFT, LOST, WAITING, Lease
from lockstead.core.model import UNKNOWN, PlaceState, Reservation, Standing
from lockstead.core.outage import Outage, reason
from lockstead.core.runtime import Event, drive
from lockstead.core.store import Reserving, Store, Watching
from lockstead.core.timing import (
    CLOCK_STEP_THRESHOLD,
    KEEPER_IDLE_TIMEOUT,
    KEEPER_RESTART_DELAY,
    LATE_REQUEST_WINDOW,
    MAX_IDLE_SLEEP,
    MIN_IDLE_SLEEP,
    REQUEST_TIMEOUT,
)
from lockstead.errors import StoreError

log = logging.getLogger("lockstead")

BATCH = 500
"""How many renewals go into one request."""
EXPIRED = "its lease expired after renewal had stopped (max_hold, renew=False or a dropped handle)"
PLACE_GONE = (
    "the store has no place for it any more (it expired, was released by force, or was lost with its session or the "
    "store's data)"
)
GONE_AT_RELEASE = (
    "the store had no place for it any more when it was released (it was released by force, or was lost with its "
    "session or the store's data)"
)
REFUTED = "the store answered that its place is waiting, not holding"


class Keeper:
    def __init__(self, store: Store, *, leave_at_exit: bool) -> None:
        self.store = store
        self.runtime = store.runtime
        self.closing = False
        self._leave_at_exit = leave_at_exit
        self._offset: tuple[float, float] | None = None
        self.reset()
        if isinstance(store, Watching):
            suspect = WeakMethod(self.suspect)  # weak: a store may outlive its clients
            store.watch(lambda owner: call(owner) if (call := suspect()) else None)

    def reset(self) -> None:
        """Start without leases: at first, and in a forked child, in which no other thread exists."""
        self.mutex = self.runtime.mutex()
        self.leases: dict[str, Lease] = {}
        self._running = False
        self._event: Event | None = None
        self._wakes_at = inf  # infinite also while the loop is awake, or not running
        self._next_due_at = inf  # no lease needs a request or a check before then
        self._idle_sleep = MAX_IDLE_SLEEP
        self._pace = self.runtime.random()
        self._idle_since = -inf
        self._outage: Outage | None = None

    def register(self, lease: Lease) -> None:
        """Keep a lease, from before its first request is sent."""
        self.leases[lease.ask.owner] = lease
        if self._leave_at_exit:
            lifecycle.at_exit.add(self)

    def forget(self, lease: Lease) -> None:
        """Stop keeping a lease whose place is surely gone."""
        with self.mutex:
            self.leases.pop(lease.ask.owner, None)
            lease.unwatch_claim()
            lease.leaving = True
            if lease.state is not LOST:
                lease.state = LEFT
            if self._outage is not None:
                self._outage.owners.discard(lease.ask.owner)
                if not self.leases:  # no request is left whose answer would show its end
                    self._outage = None
            if not self.leases:
                lifecycle.at_exit.discard(self)

    def apply(self, lease: Lease, sent: float, duration: float, standing: Standing) -> None:
        """Apply the answer to a request for that duration, sent then; a loss is signalled."""
        with self.mutex:
            loss = self._apply(lease, sent, duration, standing)
        if loss:
            self.mark_lost(lease, loss)
        else:
            self._schedule(lease.wakes_keeper_at())

    def _apply(self, lease: Lease, sent: float, duration: float, standing: Standing) -> str:
        """Apply an answer, unless the lease is being released; return why it is lost, or an empty string."""
        if lease.leaving or (lease.state is not WAITING and lease.state is not HELD):
            return ""
        if loss := _loss_by(lease, sent, standing):
            return loss
        if standing.state is PlaceState.GONE:
            lease.state, lease.due = LEFT, inf
        elif standing.held:
            if lease.state is WAITING:
                lease.grant(sent, standing.ticket, self.runtime.now())
            elif self.runtime.now() >= lease.trusted_until:  # a late join may have made another place since
                return ""
            lease.trust(sent, duration, self._pace)
            if lease.suspected_at >= sent:  # the answer may be older than the suspicion
                lease.due, lease.slack = self.runtime.now(), 0.0
        elif lease.state is HELD or standing.state is PlaceState.UNKNOWN:  # unknown, or older than the grant
            if not lease.is_exhausted():
                lease.retry_soon(self.runtime.now())
        else:
            recheck_at = self.runtime.now() + standing.recheck
            lease.wait(sent, standing, recheck_at, self._pace)
        return ""

    def accept_grant(self, lease: Lease) -> bool:
        """Hold by the store's message that a place holds, without a request; False if the place may have ended since.

        A place that holds does so until it is released or expires, and it does not expire before its last answered
        heartbeat does. False also for a lease that is not renewed, which has to claim its ttl by a request at once;
        for one whose heartbeat, less its grace, leaves too little time to claim it later; and after a join in doubt:
        the message may be about a place that has expired, not about the one that the repeated join was given.
        """
        now = self.runtime.now()
        with self.mutex:
            if lease.state is not WAITING or lease.leaving or lease.renew_for < lease.ask.ttl:
                return False
            if lease.joins_in_doubt or now >= lease.alive_until - lease.grace - lease.ask.heartbeat / 3:
                return False
            lease.grant(now, lease.ticket, now)
            lease.trust_heartbeat(now)
        self._schedule(lease.wakes_keeper_at())
        return True

    def check_trust_window(self, lease: Lease) -> None:
        """Mark a lease lost whose trust window has closed, before any caller relies on it."""
        if lease.state is HELD and not lease.leaving:
            now = self.runtime.now()
            if now >= lease.trusted_until:
                self.mark_lost(lease, EXPIRED if lease.is_exhausted() else "it could not be renewed in time")

    def suspect(self, owner: str) -> None:
        """Renew a lease at once: its store reported that the place may be gone."""
        now = self.runtime.now()
        with self.mutex:
            lease = self.leases.get(owner)
            if lease is None or lease.leaving or lease.state is not HELD:
                return
            lease.due, lease.slack, lease.suspected_at = now, 0.0, now
        self.runtime.call_in_owner(lambda: self._schedule(now))

    def mark_lost(self, lease: Lease, why: str) -> None:
        with self.mutex:
            if lease.state is not HELD or lease.leaving:
                return
            lease.state, lease.reason = LOST, why
        self.runtime.call_in_owner(lambda: self._handle_loss(lease))

    def _handle_loss(self, lease: Lease) -> None:
        self.signal_loss(lease)
        self.release_in_background(lease, lease.grace)

    def signal_loss(self, lease: Lease) -> None:
        """Call every watcher, once, and log the loss."""
        with self.mutex:
            watchers, lease.watchers = lease.watchers, ()
        for on_lost in watchers:
            try:
                on_lost()
            except Exception:
                log.exception(
                    "%s: could not signal the loss of %r to one of its watchers: code that watches it may go on; "
                    "handle.is_held is False",
                    self.store.address,
                    lease.ask.name,
                )
        log.warning(
            "%s: lost %r (fence %d): %s; the holder must stop",
            self.store.address,
            lease.ask.name,
            lease.fence,
            lease.reason,
        )

    def watch(self, lease: Lease, on_lost: Callable[[], None]) -> None:
        """Call `on_lost`, which must not block, once when the lease is lost; immediately if it is lost already."""
        with self.mutex:
            if lease.state is not LOST:
                lease.watchers += (on_lost,)
                return
        on_lost()

    def unwatch(self, lease: Lease, on_lost: Callable[[], None]) -> None:
        with self.mutex:
            lease.watchers = tuple(watcher for watcher in lease.watchers if watcher != on_lost)

    async def leave(self, lease: Lease, timeout: float) -> bool:
        """Release the place, or turn it into a reservation; return whether it was still there.

        The lease is forgotten only once the store has answered.
        """
        ask = lease.ask
        tombstone = max(ask.ttl, LATE_REQUEST_WINDOW) if lease.joins_in_doubt else 0.0
        lease.leaves += 1
        left = lease.reserved_until - self.runtime.now()
        if left > 0 and isinstance(self.store, Reserving):
            try:
                was_there = await self.store.reserve(
                    Reservation(ask.name, ask.owner, left, lease.reserved_metadata, tombstone), timeout
                )
            except StoreError as error:
                if not error.transient:  # a retry would fail again, and would keep the name held meanwhile
                    await self.store.leave(ask.name, ask.owner, timeout, tombstone)
                    log.warning(
                        "%s: could not reserve %r after its release (%s): the name is free",
                        self.store.address,
                        ask.name,
                        reason(error, self.store.address),
                    )
                    self.forget(lease)
                raise
        else:
            was_there = await self.store.leave(ask.name, ask.owner, timeout, tombstone)
        self._log_recovery([lease])
        self.forget(lease)
        return was_there or lease.leaves > 1  # an earlier attempt of ours may have removed it

    def release_in_background(self, lease: Lease, grace: float = 0.0) -> None:
        """Release the place in the background, with retries, `grace` seconds from now: the holder's time to stop."""
        now = self.runtime.now()
        lease.give_up(now, due=now + grace)
        self._schedule(now + grace)

    def watch_claim(self, lease: Lease) -> None:
        """Release the lease at once if its claim is collected: it belongs to a block."""
        lease.watch_claim(self.claim_dropped)

    def claim_dropped(self, owner: str) -> None:
        """Release the lease of a block that was left without a release: an interrupt came before `__exit__` began.

        Called wherever the claim is collected, which may be in the middle of any other call.
        """
        lease = self.leases.get(owner)
        if lease is not None and not lease.leaving:
            with suppress(RuntimeError):  # no thread can be started, or no loop: the lease expires after its ttl
                self.runtime.call_in_owner(lambda: self.release_in_background(lease))

    def stop(self) -> None:
        """End the loop once no lease is left to keep."""
        with self.mutex:
            self.closing = True
        if self._event is not None:
            self._event.set()

    async def leave_all(self, budget: float) -> None:
        """Release every place, in any state, within `budget` seconds."""
        now = self.runtime.now()
        leases = list(self.leases.values())
        if self.runtime.is_nested(self.mutex):  # the interrupted call must end first
            for lease in leases:
                self.release_in_background(lease)
            return
        for lease in leases:
            lease.give_up(now, due=inf)
        for lease in leases:
            try:
                await self.leave(lease, max(now + budget - self.runtime.now(), 0.0))
            except Exception as error:
                self._log_unreleased(lease, error)
                self.forget(lease)
            except BaseException:
                for left in list(self.leases.values()):
                    self.release_in_background(left)
                raise

    def exit(self, budget: float) -> None:
        """Release everything: the interpreter is about to exit."""
        self.closing = True
        drive(self.leave_all(budget))

    def _schedule(self, moment: float) -> None:
        if moment >= self._wakes_at:
            return
        try:
            now = self.runtime.now()
            with self.mutex:
                starting, self._running = not self._running, True
                asleep = self._wakes_at < inf
                self._next_due_at = min(self._next_due_at, moment)
                if moment > now + MIN_IDLE_SLEEP:
                    self._idle_sleep = min(self._idle_sleep, moment - now)
                former = self._event
                if starting:
                    event = self._event = self.runtime.event()
                    self._idle_since = now
            if former is not None and (asleep or starting):  # also ends an older loop that may still be running
                former.set()
            if starting:
                self._start(event)
        except BaseException:  # no thread can be started, or an interrupt, maybe after the loop was started
            self._running = False
            raise

    def _start(self, event: Event) -> None:
        cancelled = WeakMethod(self._was_cancelled)
        work = partial(_keep, ref(self, lambda _: event.set()), event)
        self.runtime.spawn(work, "lockstead-keeper", lambda: call() if (call := cancelled()) else None)

    async def run(self, event: Event) -> float | None:
        """Do what is due, and return how long to wait for the event; None ends the loop."""
        if self._event is not event:  # another loop was started, because this one was not known to be running
            return None
        try:
            return await self._tick()
        except Exception:
            log.exception("%s: renewal loop failed; retrying in %g s", self.store.address, KEEPER_RESTART_DELAY)
            with self.mutex:
                self._next_due_at = -inf  # the scan may not have reached every lease
            await self.runtime.sleep(KEEPER_RESTART_DELAY)
            return 0.0

    def _was_cancelled(self) -> None:
        """Restart soon: all tasks of the loop were cancelled, but the loop is still in use."""
        with self.mutex:
            self._running, self._wakes_at = False, inf
        self.runtime.call_later(KEEPER_RESTART_DELAY, self._restart)

    def _restart(self) -> None:
        if self.leases:
            self._schedule(self.runtime.now())

    async def _tick(self) -> float | None:
        """Do what is due, and return the seconds until something else is; None ends the loop."""
        with self.mutex:
            self._wakes_at = inf
        now = self.runtime.now()
        if now >= self._next_due_at:
            with self.mutex:
                self._next_due_at = inf
            due, next_at = self._scan(now)
            with self.mutex:
                self._next_due_at = min(self._next_due_at, next_at)
            if due:
                await self._dispatch(due)
                return 0.0
        if self.leases:
            self._idle_since = now
        elif self.closing or now > self._idle_since + KEEPER_IDLE_TIMEOUT:
            with self.mutex:
                self._running = bool(self.leases)
                return 0.0 if self._running else None
        with self.mutex:
            if self._next_due_at == inf:
                self._next_due_at = now + self._idle_sleep
            self._wakes_at = self._next_due_at
            return self._next_due_at - now

    def _scan(self, now: float) -> tuple[list[Lease], float]:
        """Scan every lease: signal losses, and return the leases that are due and when the next one will be.

        Leases that are due soon (within their slack) are sent along with one that is due now, but never on their own:
        else the interval between renewals would shrink.
        """
        soon: list[Lease] = []
        ahead: list[float] = []
        for lease in list(self.leases.values()):
            if lease.state is HELD and not lease.leaving:
                if now >= lease.trusted_until:
                    self.check_trust_window(lease)
                else:
                    ahead.append(lease.trusted_until)
            if lease.due > now + lease.slack:
                ahead.append(lease.due)
            elif self._is_dropped(lease):
                log.warning(
                    "%s: the handle of %r was dropped without a release: it expires after its ttl",
                    self.store.address,
                    lease.ask.name,
                )
                lease.stop_renewing()
            else:
                soon.append(lease)
        if any(lease.due <= now for lease in soon):
            return soon, min(ahead, default=inf)
        return [], min((*ahead, *(lease.due for lease in soon)), default=inf)

    def _is_dropped(self, lease: Lease) -> bool:
        return lease.claim() is None and lease.state is HELD and not lease.leaving and not lease.is_exhausted()

    async def _dispatch(self, due: Sequence[Lease]) -> None:
        """Send the requests that are due in a thread or task of their own."""
        with self.mutex:  # the caller that is releasing a lease sends its request itself
            renewing = [lease for lease in due if lease.due < inf and not lease.leaving]
            leaving = [lease for lease in due if lease.due < inf and lease.leaving]
            for lease in due:
                lease.due = inf
        work = partial(self._send_requests, renewing, leaving)
        try:
            self.runtime.spawn(work, "lockstead-renewal", lambda: self._reschedule(renewing, leaving))
        except RuntimeError:  # no thread can be started
            await work()

    async def _send_requests(self, renewing: Sequence[Lease], leaving: Sequence[Lease]) -> None:
        """Renew and release what is due, apart from the loop: no slow answer may delay the signal of a loss."""
        for start in range(0, len(renewing), BATCH):
            batch = renewing[start : start + BATCH]
            await self._attempt(self._renew(batch), renewing=batch)
        for lease in leaving:
            await self._attempt(self.leave(lease, REQUEST_TIMEOUT), leaving=[lease])

    async def _attempt(
        self, request: Awaitable[object], renewing: Sequence[Lease] = (), leaving: Sequence[Lease] = ()
    ) -> None:
        """Await a request; if it fails, schedule it again while the place may still exist."""
        try:
            await request
        except Exception as error:
            self._log_outage(error, (*renewing, *leaving))
            is_hopeless = self.closing and isinstance(error, StoreError) and not error.transient
            for lease in (*renewing, *leaving):
                if is_hopeless or self.runtime.now() >= lease.dead_by:
                    self.forget(lease)
            self._reschedule(renewing, leaving)

    def _reschedule(self, renewing: Sequence[Lease], leaving: Sequence[Lease]) -> None:
        """Retry soon what is not done yet, except for a lease that the caller is releasing itself."""
        now = self.runtime.now()
        with self.mutex:
            wanted = [*(lease for lease in renewing if not lease.leaving and not lease.is_exhausted()), *leaving]
            again = [lease for lease in wanted if lease.due == inf and lease.ask.owner in self.leases]
            for lease in again:
                lease.retry_soon(now)
        if again:
            self._schedule(min(lease.due for lease in again))

    def _log_outage(self, error: Exception, leases: Sequence[Lease]) -> None:
        """Log that an outage begins, once, not at every attempt; nothing if none of these leases is kept any more."""
        now = self.runtime.now()
        with self.mutex:
            failed = [lease for lease in leases if lease.ask.owner in self.leases]
            if not failed:
                return
            is_new = self._outage is None
            outage = self._outage or Outage(self.store.address, error, failed, self.leases.values(), now)
            outage.owners.update(lease.ask.owner for lease in failed)
            self._outage = outage
        if is_new:
            outage.log_beginning()
        elif log.isEnabledFor(logging.DEBUG):
            log.debug("%s: retrying (%s)", self.store.address, reason(error, self.store.address))

    def _log_recovery(self, answered: Sequence[Lease]) -> None:
        """Log that an outage is over, once, if it is by these answers."""
        if self._outage is None:
            return
        with self.mutex:
            outage = self._outage
            if outage is None or not outage.is_ended_by(lease.ask.owner for lease in answered):
                return
            self._outage = None
        outage.log_end(self.runtime.now())

    def _log_unreleased(self, lease: Lease, error: Exception) -> None:
        now = self.runtime.now()
        why = reason(error, self.store.address)
        if not self.store.capabilities.expiry:
            log.warning(
                "%s: could not release %r (%s): it is free once the server has ended its session",
                self.store.address,
                lease.ask.name,
                why,
            )
            return
        log.warning(
            "%s: could not release %r (%s): it expires in at most %.1f s",
            self.store.address,
            lease.ask.name,
            why,
            max(lease.dead_by - now, 0.0),
        )

    async def _renew(self, leases: Sequence[Lease]) -> None:
        sent = self.runtime.now()
        renewals = [lease.renewal(min(lease.ask.ttl, lease.renew_until - sent)) for lease in leases]
        timeout = min(REQUEST_TIMEOUT, min(map(Lease.duration, leases)) / 6)
        standings = await self.store.renew(renewals, timeout)
        with self.mutex:
            lost = [
                (lease, loss)
                for lease, renewal, standing in zip(leases, renewals, standings, strict=True)
                if (loss := self._apply(lease, sent, renewal.ttl, standing))
            ]
        for lease, loss in lost:
            self.mark_lost(lease, loss)
        self._schedule(min(map(Lease.wakes_keeper_at, leases)))
        if self._outage is not None:
            pairs = zip(leases, standings, strict=True)
            self._log_recovery([lease for lease, standing in pairs if standing != UNKNOWN])
        if answered := next((standing for standing in standings if standing.now), None):
            self._compare_clocks(sent, answered.now)

    def _compare_clocks(self, sent: float, theirs: float) -> None:
        """Log a step of the store's clock: forward, it may let another client in early, and only fences protect."""
        low, high = theirs - self.runtime.now(), theirs - sent
        if self._offset is not None:
            was_low, was_high = self._offset
            step = low - was_high if low > was_high else min(high - was_low, 0.0)
            if abs(step) > CLOCK_STEP_THRESHOLD:
                log.warning(
                    "%s: the store's clock stepped by %+.1f s: a lease may end early or late by that, and only fences "
                    "protect",
                    self.store.address,
                    step,
                )
        self._offset = low, high


def _loss_by(lease: Lease, sent: float, standing: Standing) -> str:
    """Return why the answer to a request sent then ends a lease that is held, or "" if it does not.

    A place that was granted is not found waiting afterwards, unless the grant was forged or a failover undid it.
    """
    if lease.state is not HELD:
        return ""
    if standing.state is PlaceState.GONE:
        return PLACE_GONE
    is_refuted = standing.state is PlaceState.WAITING and sent > lease.granted_at
    return REFUTED if is_refuted else ""


async def _keep(keeper: ref[Keeper], event: Event) -> None:
    """Run a keeper's loop while the keeper exists: asleep, the loop holds no reference to it."""
    while (running := keeper()) is not None:
        pause = await running.run(event)
        if pause is None:
            return
        del running
        if pause > 0:
            await event.wait(pause)
