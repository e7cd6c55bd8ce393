"""The keeper: one loop per client that looks after every place the client has in any line.

It renews what is held and what waits, in one batch; signals what is lost before anybody else can hold;
and gives up what was abandoned, until the store confirms it or the place must have expired.

Whoever handles a lease (its own thread or task, or this loop) takes in the store's answers through `note`,
so it does not matter who asked.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from weakref import WeakMethod, ref

from lockstead.core import lifecycle
from lockstead.core.lease import HELD, LEFT, LOST, PATIENCE, WAITING, Lease
from lockstead.core.model import Reservation, Standing
from lockstead.core.runtime import Event, drive
from lockstead.core.store import LATE_REQUEST_WINDOW, Reserving, Store, Watching
from lockstead.errors import StoreError

log = logging.getLogger("lockstead")

BATCH = 500
"""How many renewals go into one request."""
IDLE = 2.0
"""How long the keeper stays about with nothing to keep."""
LONGEST_NAP = 1.0
MIN_IDLE_SLEEP = 0.1
"""With nothing to keep it sleeps for so long at a time as leases of late would have let it: so that short holds,
one after another, need not wake it each."""
KEEPER_RESTART_DELAY = 0.1
"""How long the keeper lies low after it stumbled or was cancelled."""
GONE = "the store no longer knows it"
REFUTED = "the store answered that its place is waiting, not holding"
CLOCK_STEP_THRESHOLD = 0.25
"""How far the store's clock may get ahead of ours, or behind, between two renewals."""


class Keeper:
    def __init__(self, store: Store, *, leave_at_exit: bool) -> None:
        self.store = store
        self.runtime = store.runtime
        self.closing = False
        self._leave_at_exit = leave_at_exit
        self._offset: tuple[float, float] | None = None
        self.reset()
        if isinstance(store, Watching):
            doubt = WeakMethod(self.doubt)  # a store may outlive its clients
            store.watch(lambda owner: call(owner) if (call := doubt()) else None)

    def reset(self) -> None:
        """Know of no lease: at first, and in a forked child, where no other thread has come along."""
        self.mutex = self.runtime.mutex()
        self.leases: dict[str, Lease] = {}
        self._running = False
        self._bell: Event | None = None
        self._wakes_at = inf  # which also says: awake, or not there
        self._next_due_at = inf  # until then no lease needs anything
        self._idle_sleep = LONGEST_NAP
        self._pace = self.runtime.random()
        self._idle_since = -inf
        self._complained = False

    def register(self, lease: Lease) -> None:
        """Look after a lease from before its first request is sent."""
        self.leases[lease.ask.owner] = lease
        if self._leave_at_exit:
            lifecycle.at_exit.add(self)

    def forget(self, lease: Lease) -> None:
        """Stop looking after a lease whose place is surely gone."""
        with self.mutex:
            self.leases.pop(lease.ask.owner, None)
            lease.unwatch_claim()
            lease.leaving = True
            if lease.state is not LOST:
                lease.state = LEFT
            if not self.leases:
                lifecycle.at_exit.discard(self)

    def note(self, lease: Lease, sent: float, life: float, standing: Standing | None) -> None:
        """Take in the answer to a request for so long a life, sent then."""
        with self.mutex:
            loss = self._take_in(lease, sent, life, standing)
        if loss:
            self.lose(lease, loss)
        else:
            self._schedule(lease.wakes_keeper_at())

    def _take_in(self, lease: Lease, sent: float, life: float, standing: Standing | None) -> str:
        """Apply an answer, unless the lease is being given up, and say by what reason it is lost, if it is."""
        if lease.leaving or (lease.state is not WAITING and lease.state is not HELD):
            return ""
        if loss := _loss_by(lease, sent, standing):
            return loss
        if standing is None:
            lease.state, lease.due = LEFT, inf
        elif standing.held:
            if lease.state is WAITING:
                lease.grant(sent, standing.ticket, self.runtime.now())
            elif self.runtime.now() >= lease.trusted_until:  # its place may be another by now, that a late join made
                return ""
            lease.trust(sent, life, self._pace)
            if lease.suspected_at >= sent:  # the answer may be older than the doubt
                lease.due, lease.slack = self.runtime.now(), 0.0
        elif lease.state is HELD or not standing.ticket:  # unknown, or older than the grant
            if not lease.is_exhausted():
                lease.retry_soon(self.runtime.now())
        else:
            recheck_at = self.runtime.now() + standing.recheck
            lease.wait(sent, standing, recheck_at, self._pace)
        return ""

    def accept_grant(self, lease: Lease) -> bool:
        """Take the store's word that a place holds, without asking; False if it may have ended since.

        A place that holds goes on holding until it is given up or expires, which it does not before its last
        answered heartbeat is over. A lease that is not renewed buys its ttl at once, by asking; so does one whose
        heartbeat, less its grace, leaves too little time to buy it later. After a join that was not answered the word
        may be about a place that has expired, and not about the one that a repeated join was given.
        """
        now = self.runtime.now()
        with self.mutex:
            if lease.state is not WAITING or lease.leaving or lease.renew_for < lease.ask.ttl:
                return False
            if lease.unanswered or now >= lease.alive_until - lease.grace - lease.ask.heartbeat / 3:
                return False
            lease.grant(now, lease.ticket, now)
            lease.trust_heartbeat(now)
        self._schedule(lease.wakes_keeper_at())
        return True

    def check_window(self, lease: Lease) -> None:
        """Notice a closed window before anybody acts on it."""
        if lease.state is HELD and not lease.leaving:
            now = self.runtime.now()
            if now >= lease.trusted_until:
                self.lose(lease, "its time was up" if lease.is_exhausted() else "it could not be renewed in time")

    def doubt(self, owner: str) -> None:
        """Ask at once what has become of a place: the store has reason to think that it is gone."""
        now = self.runtime.now()
        with self.mutex:
            lease = self.leases.get(owner)
            if lease is None or lease.leaving or lease.state is not HELD:
                return
            lease.due, lease.slack, lease.suspected_at = now, 0.0, now
        self.runtime.call_in_owner(lambda: self._schedule(now))

    def lose(self, lease: Lease, reason: str) -> None:
        with self.mutex:
            if lease.state is not HELD or lease.leaving:
                return
            lease.state, lease.reason = LOST, reason
        self.runtime.call_in_owner(lambda: self._handle_loss(lease))

    def _handle_loss(self, lease: Lease) -> None:
        self.signal_loss(lease)
        self.release_in_background(lease, lease.grace)

    def signal_loss(self, lease: Lease) -> None:
        """Tell everybody who watches, once."""
        with self.mutex:
            watchers, lease.watchers = lease.watchers, ()
        for on_lost in watchers:
            try:
                on_lost()
            except Exception:
                log.exception("the loss of %r could not be signalled", lease.ask.name)
        log.warning("lost %r (fence %d): %s", lease.ask.name, lease.fence, lease.reason)

    def watch(self, lease: Lease, on_lost: Callable[[], None]) -> None:
        """Call `on_lost`, which must not block, once the lease is lost; at once if it is."""
        with self.mutex:
            if lease.state is not LOST:
                lease.watchers += (on_lost,)
                return
        on_lost()

    def unwatch(self, lease: Lease, on_lost: Callable[[], None]) -> None:
        with self.mutex:
            lease.watchers = tuple(watcher for watcher in lease.watchers if watcher != on_lost)

    async def leave(self, lease: Lease, timeout: float) -> bool:
        """Give the place up, for good once the store has answered; say whether it was still there."""
        ask = lease.ask
        tombstone = max(ask.ttl, LATE_REQUEST_WINDOW) if lease.unanswered else 0.0
        lease.leaves += 1
        left = lease.reserved_until - self.runtime.now()
        if left > 0 and isinstance(self.store, Reserving):
            try:
                was_there = await self.store.reserve(
                    Reservation(ask.name, ask.owner, left, lease.reserved_metadata, tombstone), timeout
                )
            except StoreError as error:
                if not error.transient:  # to ask for it again would be in vain, and in the way of others meanwhile
                    await self.store.leave(ask.name, ask.owner, timeout, tombstone)
                    log.warning("%r could not be left taken, and is free: %s", ask.name, error)
                    self.forget(lease)
                raise
        else:
            was_there = await self.store.leave(ask.name, ask.owner, timeout, tombstone)
        self.forget(lease)
        return was_there or lease.leaves > 1  # if not there, then because we ourselves gave it up elsewhere

    def release_in_background(self, lease: Lease, grace: float = 0.0) -> None:
        """Give the place up in the background, as often as it takes; but leave whoever held it his grace first."""
        now = self.runtime.now()
        lease.give_up(now, due=now + grace)
        self._schedule(now + grace)

    def watch_claim(self, lease: Lease) -> None:
        """Give the lease up at once should its claim be collected: it is for a block."""
        lease.watch_claim(self.claim_dropped)

    def claim_dropped(self, owner: str) -> None:
        """Give up what a block held that has been left without a release: an interrupt came before its end began.

        Called wherever the claim is collected, be that in the middle of anything.
        """
        lease = self.leases.get(owner)
        if lease is not None and not lease.leaving:
            with suppress(RuntimeError):  # no more threads to be had, or no loop: it ends after its ttl
                self.runtime.call_in_owner(lambda: self.release_in_background(lease))

    def stop(self) -> None:
        """End once nothing is left to keep."""
        with self.mutex:
            self.closing = True
        if self._bell is not None:
            self._bell.ring()

    async def leave_all(self, budget: float) -> None:
        """Give up every place there is, in any state, within `budget` seconds."""
        now = self.runtime.now()
        leases = list(self.leases.values())
        if self.runtime.is_nested(self.mutex):  # what was interrupted must end first
            for lease in leases:
                self.release_in_background(lease)
            return
        for lease in leases:
            lease.give_up(now, due=inf)
        for lease in leases:
            try:
                await self.leave(lease, max(now + budget - self.runtime.now(), 0.0))
            except Exception:
                log.warning("could not release %r: it ends by itself", lease.ask.name)
                self.forget(lease)
            except BaseException:
                for left in list(self.leases.values()):
                    self.release_in_background(left)
                raise

    def exit(self, budget: float) -> None:
        """Give everything up: the interpreter is about to end."""
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
                former = self._bell
                if starting:
                    event = self._bell = self.runtime.event()
                    self._idle_since = now
            if former is not None and (asleep or starting):  # a loop that we do not know to be running ends by that
                former.ring()
            if starting:
                self._start(event)
        except BaseException:  # no more threads to be had, or an interrupt, which may come after it has begun
            self._running = False
            raise

    def _start(self, event: Event) -> None:
        cancelled = WeakMethod(self._was_cancelled)
        work = partial(_keep, ref(self, lambda _: event.ring()), event)
        self.runtime.spawn(work, "lockstead-keeper", lambda: call() if (call := cancelled()) else None)

    async def run(self, event: Event) -> float | None:
        """Do what is due, and tell for how long to sleep until the bell rings; None ends the loop."""
        if self._bell is not event:  # another loop was started, as this one was not known to be running
            return None
        try:
            return await self._turn()
        except Exception:
            log.exception("the keeper stumbled; it goes on")
            with self.mutex:
                self._next_due_at = -inf  # for it may not have looked at all of them
            await self.runtime.sleep(KEEPER_RESTART_DELAY)
            return 0.0

    def _was_cancelled(self) -> None:
        """Come back: somebody has cancelled whatever runs in his loop, but goes on using it."""
        with self.mutex:
            self._running, self._wakes_at = False, inf
        self.runtime.later(KEEPER_RESTART_DELAY, self._restart)

    def _restart(self) -> None:
        if self.leases:
            self._schedule(self.runtime.now())

    async def _turn(self) -> float | None:
        """Do what is due, and tell for how long there will be nothing to do; None ends the loop."""
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
        elif self.closing or now > self._idle_since + IDLE:
            with self.mutex:
                self._running = bool(self.leases)
                return 0.0 if self._running else None
        with self.mutex:
            if self._next_due_at == inf:
                self._next_due_at = now + self._idle_sleep
            self._wakes_at = self._next_due_at
            return self._next_due_at - now

    def _scan(self, now: float) -> tuple[list[Lease], float]:
        """Look once at every lease: signal what is lost, find what is due, and when something else will be.

        With whatever is due goes what soon will be; but nothing goes before its time alone, or it would be ever less.
        """
        soon: list[Lease] = []
        ahead: list[float] = []
        for lease in list(self.leases.values()):
            if lease.state is HELD and not lease.leaving:
                if now >= lease.trusted_until:
                    self.check_window(lease)
                else:
                    ahead.append(lease.trusted_until)
            if lease.due > now + lease.slack:
                ahead.append(lease.due)
            elif self._is_dropped(lease):
                log.warning("%r was dropped without a release: it ends after its ttl", lease.ask.name)
                lease.stop_renewing()
            else:
                soon.append(lease)
        if any(lease.due <= now for lease in soon):
            return soon, min(ahead, default=inf)
        return [], min((*ahead, *(lease.due for lease in soon)), default=inf)

    def _is_dropped(self, lease: Lease) -> bool:
        return lease.claim() is None and lease.state is HELD and not lease.leaving and not lease.is_exhausted()

    async def _dispatch(self, due: Sequence[Lease]) -> None:
        """Have what is due served, apart from this loop."""
        with self.mutex:  # a lease that is just being released is neither renewed nor left
            renewing = [lease for lease in due if lease.due < inf and not lease.leaving]
            leaving = [lease for lease in due if lease.due < inf and lease.leaving]
            for lease in due:
                lease.due = inf
        work = partial(self._serve, renewing, leaving)
        try:
            self.runtime.spawn(work, "lockstead-renewal", lambda: self._repeat(renewing, leaving))
        except RuntimeError:  # no more threads to be had
            await work()

    async def _serve(self, renewing: Sequence[Lease], leaving: Sequence[Lease]) -> None:
        """Ask the store for what is due, apart from the loop: no slow answer may hold up the clock."""
        for start in range(0, len(renewing), BATCH):
            batch = renewing[start : start + BATCH]
            await self._attempt(self._renew(batch), renewing=batch)
        for lease in leaving:
            await self._attempt(self.leave(lease, PATIENCE), leaving=[lease])

    async def _attempt(
        self, request: Awaitable[object], renewing: Sequence[Lease] = (), leaving: Sequence[Lease] = ()
    ) -> None:
        """Await a request; where it fails, see to it that it is repeated while that can matter."""
        try:
            await request
        except Exception as error:
            if any(lease.ask.owner in self.leases for lease in (*renewing, *leaving)):  # else nobody minds
                self._complain(error)
            is_hopeless = self.closing and isinstance(error, StoreError) and not error.transient
            for lease in (*renewing, *leaving):
                if is_hopeless or self.runtime.now() >= lease.dead_by:
                    self.forget(lease)
            self._repeat(renewing, leaving)
        else:
            self._complained = False

    def _repeat(self, renewing: Sequence[Lease], leaving: Sequence[Lease]) -> None:
        """Have what is not done yet done again soon; but whoever releases a lease himself sees to that one."""
        now = self.runtime.now()
        with self.mutex:
            wanted = [*(lease for lease in renewing if not lease.leaving and not lease.is_exhausted()), *leaving]
            again = [lease for lease in wanted if lease.due == inf and lease.ask.owner in self.leases]
            for lease in again:
                lease.retry_soon(now)
        if again:
            self._schedule(min(lease.due for lease in again))

    def _complain(self, error: Exception) -> None:
        """Log an outage once, not at every attempt."""
        log.log(logging.DEBUG if self._complained else logging.WARNING, "no answer, trying again: %s", error)
        self._complained = True

    async def _renew(self, leases: Sequence[Lease]) -> None:
        sent = self.runtime.now()
        renewals = [lease.renewal(min(lease.ask.ttl, lease.renew_until - sent)) for lease in leases]
        patience = min(PATIENCE, min(map(Lease.life, leases)) / 6)
        standings = await self.store.renew(renewals, patience)
        with self.mutex:
            lost = [
                (lease, loss)
                for lease, renewal, standing in zip(leases, renewals, standings, strict=True)
                if (loss := self._take_in(lease, sent, renewal.ttl, standing))
            ]
        for lease, loss in lost:
            self.lose(lease, loss)
        self._schedule(min(map(Lease.wakes_keeper_at, leases)))
        if answered := next((standing for standing in standings if standing and standing.now), None):
            self._compare_clocks(sent, answered.now)

    def _compare_clocks(self, sent: float, theirs: float) -> None:
        """Report a step of the store's clock: forward, it may let somebody in early, and only fences protect."""
        low, high = theirs - self.runtime.now(), theirs - sent
        if self._offset is not None:
            was_low, was_high = self._offset
            step = low - was_high if low > was_high else min(high - was_low, 0.0)
            if abs(step) > CLOCK_STEP_THRESHOLD:
                log.warning("the store's clock stepped by %+.1f s", step)
        self._offset = low, high


def _loss_by(lease: Lease, sent: float, standing: Standing | None) -> str:
    """Say by what reason the answer to a request sent then is the end of a lease that is held, if it is.

    A place that was granted is not found waiting afterwards, unless the grant was forged or a fail-over has undone it.
    """
    if lease.state is not HELD:
        return ""
    if standing is None:
        return GONE
    is_refuted = standing.ticket and not standing.held and sent > lease.granted_at
    return REFUTED if is_refuted else ""


async def _keep(keeper: ref[Keeper], event: Event) -> None:
    """Run a keeper's loop for as long as the keeper is there: asleep, the loop does not keep it alive."""
    while (running := keeper()) is not None:
        pause = await running.run(event)
        if pause is None:
            return
        del running
        if pause > 0:
            await event.wait(pause)
