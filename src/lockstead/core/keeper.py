"""The keeper: renews and releases every place that one client has in any line, in one loop (`core/loop.py`).

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
from lockstead.core.loop import RenewalLoop
from lockstead.core.model import PlaceState, Refusal, Reservation, Standing
from lockstead.core.outage import OutageLog, reason
from lockstead.core.runtime import drive
from lockstead.core.store import Reserving, Store, Watching
from lockstead.core.timing import BATCH, RENEWAL_TIMEOUT_SHARE, REQUEST_TIMEOUT
from lockstead.errors import StoreError

log = logging.getLogger("lockstead")


class Keeper(RenewalLoop):
    def __init__(self, store: Store, *, leave_at_exit: bool) -> None:
        super().__init__(store.runtime, store.address)
        self.store = store
        self.leave_at_exit = leave_at_exit
        self._clocks = ClockComparison(store.address)
        self.reset()
        self._watch_store()

    def _watch_store(self) -> None:
        store = self.store
        if isinstance(store, Watching):
            suspect = WeakMethod(self.suspect)  # weak: a store may outlive its clients
            store.watch(lambda owner: call(owner) if (call := suspect()) else None)

    def use_store(self, store: Store) -> None:
        """Continue on another store object: the event loop of the former one was closed, and this loop with it."""
        self.store = store
        self._watch_store()
        with self.mutex:
            self._running, self._wakes_at = False, inf
        leases = list(self.leases.values())
        self._reschedule(leases, leases)  # the requests that were out ended with the loop
        self._restart()

    def reset(self) -> None:
        """Start without leases: at first, and in a forked child, in which no other thread exists."""
        self.mutex = self.runtime.mutex()
        self.leases = {}
        self._reset_loop()
        self._pace = self.runtime.random()
        self._outages = OutageLog(self.store.address, self.mutex, self.leases)

    def forget(self, lease: Lease, *, is_answered: bool = False) -> None:
        """Stop keeping a lease whose place is surely gone, by the store's answer just now if `is_answered`."""
        if is_answered and self._outages.outage is not None:
            self._outages.add_answers([lease], self.runtime.now())
        with self.mutex:
            self.leases.pop(lease.ask.owner, None)
            lease.end()
            if self._outages.outage is not None:
                self._outages.forget(lease.ask.owner)
            if not self.leases:
                lifecycle.at_exit.discard(self)

    def apply_join(self, lease: Lease, answer: Standing | Refusal, sent: float) -> Refusal | None:
        """Apply the answer to a join sent then; return it if it is a refusal."""
        with self.mutex:
            if isinstance(answer, Refusal):
                lease.join_answered()
                return answer
            lease.apply(answer, sent, lease.ask.ttl, self.runtime.now(), self._pace, is_join=True)
            due = lease.due
        if due is None or due < self._wakes_at:
            self._schedule(lease.wakes_keeper_at())
        return None

    def apply(self, lease: Lease, standing: Standing, sent: float, duration: float) -> None:
        """Apply the answer to a renewal for that duration, sent then; a loss is signalled."""
        with self.mutex:
            loss = lease.apply(standing, sent, duration, self.runtime.now(), self._pace)
            due = lease.due  # here: the loop may take the request
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

    def begin_outage(self, error: StoreError, lease: Lease) -> None:
        """Log that an outage begins, unless it is known: a waiter's request failed, and will be repeated."""
        self._outages.add_failure(error, [lease], self.runtime.now())

    def end_outage(self, lease: Lease) -> None:
        """Log that an outage is over, if there is one that ends with an answer about this place."""
        if self._outages.outage is not None:
            self._outages.add_answers([lease], self.runtime.now())

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
        self.forget(lease, is_answered=True)
        return was_there

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
