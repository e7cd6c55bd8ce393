"""The keeper: one loop per client that renews and releases every place the client has in any line.

It renews held leases and waiting places in one batch, signals a loss before another client can hold, and releases
abandoned places in the background until the store confirms it or the place must have expired.

The engine adds a lease to it, asks it to `apply` an answer of the store, to `release` a place now or in the background,
to `watch` for a loss, and to `close`. What a store answers about a place goes through `Lease.apply`, whether the
acquiring thread or task has asked, or the loop.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from weakref import WeakMethod, ref

from lockstead.core import lifecycle
from lockstead.core.clock_step import ClockComparison
from lockstead.core.lease import EXPIRED, HELD, JOINING, NOT_RENEWED, RELEASING, WAITING, Claim, Lease
from lockstead.core.model import PlaceState, Reservation, Standing
from lockstead.core.outage import OutageLog, reason
from lockstead.core.runtime import Event, drive
from lockstead.core.store import Reserving, Store, Watching
from lockstead.core.timing import (
    BATCH,
    KEEPER_IDLE_TIMEOUT,
    KEEPER_RESTART_DELAY,
    MAX_IDLE_SLEEP,
    MIN_IDLE_SLEEP,
    RENEWAL_TIMEOUT_SHARE,
    REQUEST_TIMEOUT,
)
from lockstead.errors import StoreError

log = logging.getLogger("lockstead")


class Keeper:
    def __init__(self, store: Store, *, leave_at_exit: bool) -> None:
        self.store = store
        self.runtime = store.runtime
        self.closing = False
        self.leave_at_exit = leave_at_exit
        self._clocks = ClockComparison(store.address)
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
        self._outages = OutageLog(self.store.address, self.mutex, self.leases)

    def forget(self, lease: Lease) -> None:
        """Stop keeping a lease whose place is surely gone."""
        with self.mutex:
            self.leases.pop(lease.ask.owner, None)
            lease.end()
            if self._outages.outage is not None:
                self._outages.forget(lease.ask.owner)
            if not self.leases:
                lifecycle.at_exit.discard(self)

    def apply(self, lease: Lease, standing: Standing, sent: float, duration: float, *, is_join: bool = False) -> None:
        """Apply the answer to a request for that duration, sent then; a loss is signalled."""
        with self.mutex:
            loss = lease.apply(standing, sent, duration, self.runtime.now(), self._pace, is_join=is_join)
            due = lease.due
        if loss is not None:
            self.lose(lease, loss)
        elif due is None or due < self._wakes_at:
            self._schedule(lease.wakes_keeper_at())

    def accept_push(self, lease: Lease) -> bool:
        """Hold by the store's message that a place holds, without a request; False if that is not enough."""
        with self.mutex:
            is_held = lease.accept_push(self.runtime.now())
        if is_held:
            self._schedule(lease.wakes_keeper_at())
        return is_held

    def check_trust_window(self, lease: Lease) -> None:
        """Mark a lease lost whose trust window has closed, before any caller relies on it."""
        if lease.state is HELD and self.runtime.now() >= lease.trusted_until:
            self.lose(lease, EXPIRED if lease.is_exhausted() else NOT_RENEWED)

    def suspect(self, owner: str) -> None:
        """Renew a lease at once: its store reported that the place may be gone."""
        now = self.runtime.now()
        with self.mutex:
            lease = self.leases.get(owner)
            if lease is None or not lease.suspect(now):
                return
        self.runtime.call_in_owner(lambda: self._schedule(now))

    def lose(self, lease: Lease, why: str) -> None:
        """Signal a loss, then release what may be left of the place, after the holder's grace."""
        with self.mutex:
            if not lease.lose(why):
                return
        self.runtime.call_in_owner(lambda: self._handle_loss(lease))

    def _handle_loss(self, lease: Lease) -> None:
        self.signal_loss(lease)
        self.release_in_background(lease, lease.grace)

    def signal_loss(self, lease: Lease) -> None:
        """Call every watcher, once, and log the loss."""
        name, address = lease.ask.name, self.store.address
        with self.mutex:
            watchers = lease.take_watchers()
        for on_lost in watchers:
            try:
                on_lost()
            except Exception:
                log.exception(
                    "%s: could not signal the loss of %r to one of its watchers: code that watches it may go on; "
                    "handle.is_held is False",
                    address,
                    name,
                )
        log.warning("%s: lost %r (fence %d): %s; the holder must stop", address, name, lease.fence, lease.loss)

    def watch(self, lease: Lease, on_lost: Callable[[], None]) -> None:
        """Call `on_lost`, which must not block, once when the lease is lost; immediately if it is lost already."""
        with self.mutex:
            is_watched = lease.watch(on_lost)
        if not is_watched:
            on_lost()

    def unwatch(self, lease: Lease, on_lost: Callable[[], None]) -> None:
        with self.mutex:
            lease.unwatch(on_lost)

    async def release(self, lease: Lease, timeout: float) -> bool:
        """Release the place, or turn it into a reservation; return whether it was still there.

        The lease is forgotten only once the store has answered.
        """
        ask = lease.ask
        reservation = lease.reservation(self.runtime.now()) if lease.is_reserving else None
        if reservation is not None and isinstance(self.store, Reserving):
            was_there = await self._reserve(self.store, lease, reservation, timeout)
        else:
            was_there = await self.store.leave(
                ask.name, ask.owner, timeout, lease.tombstone() if lease.joins_in_doubt else 0.0
            )
        self.confirm_release(lease)
        return was_there

    def confirm_release(self, lease: Lease) -> None:
        """Forget a lease: the store has answered its release."""
        if self._outages.outage is not None:
            self._outages.add_answers([lease], self.runtime.now())
        self.forget(lease)

    async def _reserve(self, store: Reserving, lease: Lease, reservation: Reservation, timeout: float) -> bool:
        try:
            return await store.reserve(reservation, timeout)
        except StoreError as error:
            if not error.transient:  # a retry would fail again, and would keep the name held meanwhile
                name, owner, address = lease.ask.name, lease.ask.owner, self.store.address
                await self.store.leave(name, owner, timeout, reservation.tombstone)
                log.warning(
                    "%s: could not reserve %r after its release (%s): the name is free",
                    address,
                    name,
                    reason(error, address),
                )
                self.forget(lease)
            raise

    def release_in_background(self, lease: Lease, grace: float = 0.0) -> None:
        """Release the place in the background, with retries, `grace` seconds from now: the holder's time to stop."""
        now = self.runtime.now()
        with self.mutex:
            lease.release(now, due=now + grace)
        self._schedule(lease.wakes_keeper_at())

    def claim_dropped(self, claim: ref[Claim]) -> None:
        """Release the lease of a block that was left without a release: an interrupt came before `__exit__` began.

        Called wherever the claim is collected, which may be in the middle of any other call.
        """
        for lease in list(self.leases.values()):
            if lease.claim is claim and lease.state in {JOINING, WAITING, HELD}:
                with suppress(RuntimeError):  # no thread can be started, or no loop: the lease expires after its ttl
                    self.runtime.call_in_owner(partial(self.release_in_background, lease))

    def stop(self) -> None:
        """End the loop once no lease is left to keep."""
        with self.mutex:
            self.closing = True
        if self._event is not None:
            self._event.set()

    async def close(self, budget: float) -> None:
        """Release every place, in any state, within `budget` seconds, and end the loop."""
        self.stop()
        now = self.runtime.now()
        leases = list(self.leases.values())
        if self.runtime.is_nested(self.mutex):  # the interrupted call must end first
            for lease in leases:
                self.release_in_background(lease)
            return
        with self.mutex:
            for lease in leases:
                lease.release(now)
        for lease in leases:
            try:
                await self.release(lease, max(now + budget - self.runtime.now(), 0.0))
            except Exception as error:
                self._log_unreleased(lease, error)
                self.forget(lease)
            except BaseException:
                for left in list(self.leases.values()):
                    self.release_in_background(left)
                raise

    def exit(self, budget: float) -> None:
        """Release everything: the interpreter is about to exit."""
        drive(self.close(budget))

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
        first_due = next_at = inf
        for lease in list(self.leases.values()):
            due = lease.due
            # Most of thousands that are held. This branch alone takes a third of the time that the rest takes.
            if due is not None and now + lease.slack < due <= lease.trusted_until:
                if due < next_at:  # noqa: PLR1730 (`min` is a call)
                    next_at = due
                continue
            if lease.state is HELD:
                if now >= lease.trusted_until:
                    self.check_trust_window(lease)
                elif lease.trusted_until < next_at:
                    next_at = lease.trusted_until
            due = lease.due  # a lease that was just lost is not due
            if due is None:
                continue
            if due > now + lease.slack:
                next_at = min(next_at, due)
            elif self._is_dropped(lease):
                self._stop_renewing(lease)
            else:
                soon.append(lease)
                first_due = min(first_due, due)
        return (soon, next_at) if first_due <= now else ([], min(first_due, next_at))

    def _is_dropped(self, lease: Lease) -> bool:
        return lease.claim is not None and lease.claim() is None and lease.state is HELD and lease.needs_renewal()

    def _stop_renewing(self, lease: Lease) -> None:
        log.warning(
            "%s: the handle of %r was dropped without a release: it expires after its ttl",
            self.store.address,
            lease.ask.name,
        )
        with self.mutex:
            lease.stop_renewing()

    async def _dispatch(self, due: Sequence[Lease]) -> None:
        """Send the requests that are due, apart from the loop: no slow answer may delay the signal of a loss."""
        with self.mutex:  # the caller that is releasing a lease sends its request itself
            renewing, releasing = Lease.take_requests(due)
        work = partial(self._send_requests, renewing, releasing)
        try:
            self.runtime.spawn(work, "lockstead-renewal", lambda: self._reschedule(renewing, releasing))
        except RuntimeError:  # no thread can be started
            await work()
        except BaseException:
            self._reschedule(renewing, releasing)
            raise

    async def _send_requests(self, renewing: Sequence[Lease], releasing: Sequence[Lease]) -> None:
        for start in range(0, len(renewing), BATCH):
            batch = renewing[start : start + BATCH]
            await self._attempt(self._renew(batch), renewing=batch)
        for lease in releasing:
            await self._attempt(self.release(lease, REQUEST_TIMEOUT), releasing=[lease])

    async def _attempt(
        self, request: Awaitable[object], renewing: Sequence[Lease] = (), releasing: Sequence[Lease] = ()
    ) -> None:
        """Await a request; if it fails, schedule it again while the place may still exist."""
        try:
            await request
        except Exception as error:
            now, leases = self.runtime.now(), (*renewing, *releasing)
            self._outages.add_failure(error, leases, now)
            is_hopeless = self.closing and isinstance(error, StoreError) and not error.transient
            for lease in leases:
                if is_hopeless or now >= lease.gone_by:
                    self.forget(lease)
            self._reschedule(renewing, releasing)

    def _reschedule(self, renewing: Sequence[Lease], releasing: Sequence[Lease]) -> None:
        """Retry soon what is not done yet, except for a lease that its caller is releasing."""
        now = self.runtime.now()
        with self.mutex:
            again = [lease for lease in renewing if lease.needs_renewal()]
            again += [lease for lease in releasing if lease.state is RELEASING]
            for lease in again:
                if lease.due is None:
                    lease.retry_soon(now)
        for lease in again:
            self._schedule(lease.wakes_keeper_at())

    def _log_unreleased(self, lease: Lease, error: Exception) -> None:
        name, address = lease.ask.name, self.store.address
        if self.store.capabilities.expiry:
            left = max(lease.gone_by - self.runtime.now(), 0.0)
            follows = f"it expires in at most {left:.1f} s"
        else:
            follows = "it is free once the server has ended its session"
        log.warning("%s: could not release %r (%s): %s", address, name, reason(error, address), follows)

    async def _renew(self, leases: Sequence[Lease]) -> None:
        sent = self.runtime.now()
        renewals = Lease.renewals(leases, sent)
        timeout = min(REQUEST_TIMEOUT, min(map(Lease.duration, leases)) * RENEWAL_TIMEOUT_SHARE)
        standings = await self.store.renew(renewals, timeout)
        now = self.runtime.now()
        with self.mutex:
            lost, wakes_at = Lease.apply_all(leases, renewals, standings, sent=sent, now=now, pace=self._pace)
        for lease, loss in lost:
            self.lose(lease, loss)
        self._schedule(wakes_at)
        if self._outages.outage is not None:
            pairs = zip(leases, standings, strict=True)
            answered = [lease for lease, standing in pairs if standing.state is not PlaceState.UNKNOWN]
            self._outages.add_answers(answered, now)
        theirs = next((standing.now for standing in standings if standing.now), None)
        if theirs is not None:
            self._clocks.compare(sent, now, theirs)


async def _keep(keeper: ref[Keeper], event: Event) -> None:
    """Run a keeper's loop while the keeper exists: asleep, the loop holds no reference to it."""
    while (running := keeper()) is not None:
        pause = await running.run(event)
        if pause is None:
            return
        del running
        if pause > 0:
            await event.wait(pause)
