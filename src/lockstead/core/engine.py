"""Acquire, extend, release: written once for every store and every runtime.

A lease is registered with the keeper before its first request is sent, so that whatever happens in between (a
cancellation, an interrupt, a lost reply) the keeper has a record of the place that may have to be released.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Iterable
from contextlib import suppress
from functools import partial
from itertools import count
from math import inf
from typing import TypeVar

from lockstead.core import lifecycle
from lockstead.core.keeper import GONE_AT_RELEASE, Keeper, log
from lockstead.core.lease import HELD, INHERITED, LOST, WAITING, Claim, Lease
from lockstead.core.model import RESERVED, WHOLE, Ask, Finding, Line, PlaceState, Refusal, Standing, Wake
from lockstead.core.quoting import command_for
from lockstead.core.retry import RetryPolicy
from lockstead.core.runtime import NESTED
from lockstead.core.store import Examinable, Repairable, Store
from lockstead.core.timing import EXTEND_RETRY_DELAYS, MIN_REQUEST_TIMEOUT, POLLING, REQUEST_TIMEOUT
from lockstead.errors import (
    CapacityMismatchError,
    ClosedError,
    LockAcquisitionError,
    LockLostError,
    NestedCallError,
    StoreError,
    UnsupportedError,
)

A = TypeVar("A")
T = TypeVar("T")


class Engine:
    """Acquires, extends and releases the leases of one client on one store."""

    def __init__(self, store: Store, identify: Callable[[], str], *, leave_at_exit: bool = False) -> None:
        self.store = store
        self.runtime = store.runtime
        self.keeper = Keeper(store, leave_at_exit=leave_at_exit)
        self.holder_id = identify()
        self._identify = identify
        self._sequence = count(1)
        self._entered: dict[tuple[Hashable, str], Lease] = {}
        self.candidates: set[Callable[[], Awaitable[None]]] = set()
        """Stops one election each, of those that run in the background."""
        self.leaders: dict[str, Callable[[], Awaitable[None]]] = {}
        """By owner, how to release a lease that must be held until its callbacks have ended."""
        lifecycle.at_fork(self, in_child="_forked")

    async def acquire(
        self,
        ask: Ask,
        claim: Claim,
        *,
        timeout: float = inf,
        renew_for: float = inf,
        grace: float = 0.0,
        retry: RetryPolicy,
        since: float | None = None,
    ) -> Lease:
        """Wait in line until the place holds; poll a store that has no line.

        Raises LockAcquisitionError after `timeout`, and at once if `ask.queue` is not set and the name is held; its
        `waited` is counted from `since`, if given. Whatever it raises, and however it is cancelled, no place stays
        behind.
        """
        self._check_call(ask.name)
        began = self.runtime.now()
        deadline = began + (timeout if ask.queue else REQUEST_TIMEOUT)
        started = began if since is None else since
        ask, must_poll = self.adapt(ask)
        attempts = late_grants = 0
        while True:
            attempts += 1
            lease = self.track(ask, claim, renew_for, grace)
            try:
                refusal = await self._wait_in_line(lease, deadline, retry)
            except StoreError as error:
                self.drop(lease, error)
                self.check_open(ask.name)
                now = self.runtime.now()
                if (ask.queue or must_poll) and self.is_late(error, deadline, retry):
                    raise self.too_busy(ask, attempts, now - started) from error
                raise
            except BaseException as interruption:
                await self.abandon(lease, interruption)
                raise
            now = self.runtime.now()
            if lease.is_held(now):
                if not self.keeper.closing:
                    return lease
                await self.abandon(lease)  # granted while `close` was releasing the held leases
                self.check_open(ask.name)
            late_grants += lease.fence != 0
            if refusal is not None and not ask.queue and not lease.joins_in_doubt:
                self.keeper.forget(lease)
            else:
                await self.abandon(lease)
            if refusal is not None and must_poll and not refusal.capacity and now < deadline:
                pause = retry.pause(attempts - 1, self.runtime.random())
                await self.runtime.sleep(min(pause, refusal.recheck, deadline - now))
            elif refusal is not None or late_grants > retry.max_retries or now >= deadline:
                self.check_open(ask.name)  # closed meanwhile: ClosedError, not a refusal
                known = refusal or (Refusal(lease.holder) if lease.holder else None)
                raise self.not_acquired(ask, known, attempts, now - started)
            claim.leases.remove(lease)

    async def withdraw(self, claim: Claim) -> None:
        """End an acquisition that still waits with LockAcquisitionError, and release its place at once."""
        claim.withdrawn = True
        for lease in list(self.keeper.leases.values()):
            if lease.claim() is claim and lease.state is WAITING:
                await self.abandon(lease)

    async def reenter(self, ask: Ask, claim: Claim) -> Lease | None:
        """Re-enter a lease that this thread or task holds already: count it and extend it. None if there is none.

        A writer may re-enter as a reader. A reader that requests the write side would wait for itself: it is refused.
        """
        with self.keeper.mutex:
            lease = self._entered.get((self.runtime.context(), ask.name))
            outer = lease.claim() if lease is not None else None
            if lease is None or outer is None:
                return None
            if lease.ask.capacity != ask.capacity:
                raise self.not_acquired(ask, Refusal(lease.ask.owner, capacity=lease.ask.capacity), 1, 0.0)
            if lease.ask.weight < ask.weight:
                msg = (
                    f"this thread or task already holds {ask.name!r} with a smaller weight (as a reader, say), and "
                    "would wait for itself: release it first"
                )
                raise LockAcquisitionError(msg, name=ask.name, attempts=1, holder=self.holder_id)
        try:
            with self.keeper.mutex:
                lease.depth, claim.outer = lease.depth + 1, outer
            await self.extend(lease, ask.ttl)
        except BaseException:
            if claim.outer is not None:
                self.give_up([lease], claim)
            raise
        return lease

    def enter(self, lease: Lease) -> None:
        """Make the lease re-entrant for this thread or task."""
        with self.keeper.mutex:
            lease.entered_as = (self.runtime.context(), lease.ask.name)
            self._entered[lease.entered_as] = lease

    def _decrement(self, lease: Lease, claim: Claim | None) -> bool:
        """Subtract one acquisition from the depth, with the mutex held, and return whether it was the last.

        Safe to repeat for the same claim: the interrupted call may have subtracted it already. A multi-lock is never
        re-entered.
        """
        is_counted_once = claim is not None and len(claim.leases) <= 1
        lease.depth -= 1 if claim is None else claim.counts
        if claim is not None and is_counted_once:
            claim.counts = 0
        if lease.depth <= 0 and lease.entered_as is not None:
            self._entered.pop(lease.entered_as, None)
        return lease.depth <= 0

    def give_up(self, leases: Iterable[Lease], claim: Claim) -> None:
        """Release leases in the background: the call that held or awaited them under this claim was interrupted."""
        for lease in leases:
            with self.keeper.mutex:
                is_last = self._decrement(lease, claim)
            if is_last and lease.ask.owner in self.keeper.leases:
                self.keeper.release_in_background(lease)

    async def extend(self, lease: Lease, seconds: float) -> None:
        """Extend the lease to at least `seconds` from now; never shortens it."""
        self._check_call(lease.ask.name, also_open=False)
        self.check(lease)
        sent = self.runtime.now()
        lease.longest = max(lease.longest, sent + seconds)
        for pause in (*EXTEND_RETRY_DELAYS, None):
            (standing,) = await self.store.renew([lease.renewal(seconds)], REQUEST_TIMEOUT)
            self.keeper.apply(lease, sent, seconds, standing)
            self.check(lease)
            if standing.state in {PlaceState.HELD, PlaceState.GONE}:
                return
            if pause is not None:
                await self.runtime.sleep(pause)
        msg = f"the store did not confirm the extension of {lease.ask.name!r}: it is held as before; try again"
        raise StoreError(msg, name=lease.ask.name, transient=True)

    async def release(self, lease: Lease, claim: Claim | None = None) -> None:
        """Release the lease; harmless to repeat, and in a forked child.

        Raises LockLostError if it was lost before. After StoreError the keeper retries in the background; it also
        does, without an error, if this call interrupted another one of its thread that has to end first.
        """
        self.keeper.check_trust_window(lease)
        is_ours = False
        try:
            is_nested = self.runtime.is_nested(self.keeper.mutex)
            with self.keeper.mutex:
                is_last = self._decrement(lease, claim)
                if lease.state is LOST:
                    raise lease.error()  # noqa: TRY301 (with the mutex held)
                if lease.state is not HELD or lease.leaving or not is_last:
                    return
                is_ours = True
                lease.give_up(self.runtime.now(), due=inf)
            if is_nested:
                self.keeper.release_in_background(lease)
                return
            was_there = await self.keeper.leave(lease, REQUEST_TIMEOUT)
        except StoreError:
            self.keeper.release_in_background(lease)
            raise
        except BaseException as interruption:
            if is_ours:
                await self.abandon(lease, interruption)
            raise
        # A lease that expired while it was being released is not lost.
        is_over = self.keeper.closing or self.runtime.now() >= lease.trusted_until
        if not was_there and not is_over:
            lease.state, lease.reason = LOST, GONE_AT_RELEASE
            self.keeper.signal_loss(lease)
            raise lease.error()

    async def release_all(self) -> int:
        """Release all held leases and return their number; a failure is raised after all were tried."""
        held = [lease for lease in list(self.keeper.leases.values()) if lease.is_held(self.runtime.now())]
        failure: StoreError | None = None
        for lease in held:
            with self.keeper.mutex:
                lease.depth = 1
            try:
                await self.leaders.get(lease.ask.owner, partial(self.release, lease))()
            except StoreError as error:
                failure = error
            except LockLostError:
                log.warning(
                    "%s: %r (fence %d) was lost before it was released: what it protected may have another holder",
                    self.store.address,
                    lease.ask.name,
                    lease.fence,
                )
        if failure is not None:
            raise failure
        return len(held)

    async def close(self) -> None:
        """Release everything and refuse new acquisitions."""
        self.keeper.closing = True  # from here on, `acquire` releases what it is granted
        try:
            for stop in (*self.candidates, *self.leaders.values()):
                with suppress(LockLostError, StoreError):  # the keeper retries
                    await stop()
            await self.release_all()
        finally:
            self.keeper.stop()
            await self.keeper.leave_all(REQUEST_TIMEOUT)

    async def find(self, name: str) -> Line | None:
        """Read one line; None if it is empty. Raises DamagedError if it cannot be read."""
        line = await self._read(name)
        if line is not None and line.damage is not None and not line.places:
            raise line.damage
        return line

    async def inspect(self, prefix: str) -> list[Line]:
        """Read every line whose name starts with `prefix`."""
        self._check_call()
        return await self.store.inspect(prefix)

    async def examine(self) -> list[Finding]:
        """Check the store for problems that could cost locks. Raises StoreError if it does not answer."""
        self.check_open()
        if isinstance(self.store, Examinable):
            return await self.store.examine()
        await self.store.inspect("lockstead:doctor", exact=True)
        return [Finding("ok", "store", "it answers requests")]

    async def force_release(self, name: str) -> Line | None:
        """Remove the places of the holders, and return the line as it was; clear a line that cannot be read."""
        line = await self._read(name)
        if line is not None:
            if line.damage is not None:
                if not isinstance(self.store, Repairable):
                    raise line.damage
                await self.store.repair(name, REQUEST_TIMEOUT)
            for place in line.places:
                if place.acquired_at is not None:
                    await self.store.leave(name, place.owner, REQUEST_TIMEOUT)
        return line

    async def _read(self, name: str) -> Line | None:
        self._check_call(name)
        lines = await self.store.inspect(name, exact=True)
        return lines[0] if lines else None

    def check(self, lease: Lease) -> None:
        """Raise unless the lease is held and trusted now."""
        self.keeper.check_trust_window(lease)
        if lease.state is not HELD or lease.leaving:
            raise lease.error()

    def adapt(self, ask: Ask) -> tuple[Ask, bool]:
        """Adapt a request to what the store supports, and return whether the client must poll as there is no line."""
        can = self.store.capabilities
        if not can.supports(ask.capacity, ask.weight):
            kinds = "exclusive locks and read-write locks" if can.shared else "exclusive locks"
            advisory = "" if ask.capacity == WHOLE else " (not advisory)"
            msg = (
                f"this store supports {kinds} only, not {_kind(ask.capacity)}: use memory, SQLite, Redis (not Redlock) "
                f"or PostgreSQL{advisory}"
            )
            raise UnsupportedError(msg, name=ask.name)
        if ask.queue and not can.fifo:
            return ask._replace(queue=False), True
        return ask, False

    def track(self, ask: Ask, claim: Claim, renew_for: float, grace: float = 0.0) -> Lease:
        """Register an acquisition under an owner of its own, before anything is sent."""
        owner = f"{self.holder_id}/{next(self._sequence)}"
        lease = Lease(Ask(ask.name, owner, *ask[2:]), claim, renew_for, grace)
        if claim.is_scoped:
            self.keeper.watch_claim(lease)
        claim.leases.append(lease)
        with self.keeper.mutex:
            self.check_open(ask.name)
            self.keeper.register(lease)
        return lease

    async def _wait_in_line(self, lease: Lease, deadline: float, retry: RetryPolicy) -> Refusal | None:
        """Join and wait until the lease holds or its place is gone (None), or the place is refused."""
        ask = lease.ask
        outcome, sent = await self.with_retries(self._join, lease, deadline, retry)
        if isinstance(outcome, Refusal):
            return outcome
        self.keeper.apply(lease, sent, ask.ttl, outcome)
        polls = 0
        while lease.state is WAITING:
            self._check_wanted(lease)
            now = self.runtime.now()
            if now >= deadline:
                return Refusal(lease.holder)
            until = min(deadline, lease.recheck_at, now + ask.heartbeat / 2)
            if not self.store.capabilities.push:
                until = min(until, now + POLLING.pause(polls, self.runtime.random()))
                polls += 1
            wake = await self.store.wait(ask.name, ask.owner, until - now)
            if wake is Wake.GRANT and self.keeper.accept_grant(lease):
                return None
            should_ask = wake or polls or self.runtime.now() >= min(deadline, lease.recheck_at)
            if should_ask and lease.state is WAITING:
                standing, sent = await self.with_retries(self._recheck, lease, deadline, retry)
                self.keeper.apply(lease, sent, ask.ttl, standing)
        return None

    async def _join(self, lease: Lease, timeout: float) -> Standing | Refusal:
        self._check_wanted(lease)
        lease.joins_in_doubt += 1
        answer = await self.store.join(lease.ask, timeout)
        lease.joins_in_doubt -= 1
        return answer

    async def _recheck(self, lease: Lease, timeout: float) -> Standing:
        (standing,) = await self.store.renew([lease.renewal(lease.ask.ttl)], timeout)
        return standing

    async def with_retries(
        self, send: Callable[[A, float], Awaitable[T]], what: A, deadline: float, retry: RetryPolicy
    ) -> tuple[T, float]:
        """Repeat a request until it is answered; return the answer and when that request was sent."""
        retries = 0
        while True:
            sent = self.runtime.now()
            try:
                return await send(what, max(min(REQUEST_TIMEOUT, deadline - sent), MIN_REQUEST_TIMEOUT)), sent
            except StoreError as error:
                pause = retry.pause(retries, self.runtime.random())
                if not error.transient or retries >= retry.max_retries or self.runtime.now() + pause >= deadline:
                    raise
            retries += 1
            await self.runtime.sleep(pause)

    def drop(self, lease: Lease, error: StoreError) -> None:
        """Release a place in the background that may exist; one that the store refused does not."""
        if error.transient or lease.joins_in_doubt != 1:
            self.keeper.release_in_background(lease)
        else:
            self.keeper.forget(lease)

    async def abandon(self, lease: Lease, interruption: BaseException | None = None) -> None:
        """Release the place before returning, also while an interruption is being handled."""
        if lease.state is INHERITED:  # gevent's greenlets run on in a forked child, but the place is the parent's
            return
        now = self.runtime.now()
        if isinstance(interruption, GeneratorExit):  # a closed generator must not await
            lease.give_up(now, due=now)
            return
        lease.give_up(now, due=inf)
        try:
            await self.runtime.shield(self.keeper.leave(lease, REQUEST_TIMEOUT))
        except StoreError:
            self.keeper.release_in_background(lease)
        except BaseException:
            self.keeper.release_in_background(lease)
            raise

    def not_acquired(self, ask: Ask, refusal: Refusal | None, attempts: int, waited: float) -> Exception:
        """Explain a refusal; None means that every grant arrived after its ttl."""
        if refusal is not None and refusal.capacity:
            return CapacityMismatchError(
                f"{ask.name!r} is in use as {_kind(refusal.capacity)}, not as {_kind(ask.capacity)}: "
                "every client must use a name with the same capacity",
                name=ask.name,
                stored=refusal.capacity,
                asked=ask.capacity,
            )
        owner = "" if refusal is None else refusal.holder
        holder = owner.rpartition("/")[0] or owner
        if refusal is None:
            why = f"the store takes longer to answer than the ttl of {ask.ttl:g} s lasts; raise the ttl"
        elif owner.endswith(RESERVED):
            until = f" for another {refusal.recheck:.3g} s" if refusal.recheck < inf else ""
            why = (
                f"{holder} has released it, but reserved the name{until}; try again after that, or run "
                f"`{command_for(ask.name, 'release', '--force')}`"
            )
        elif holder == self.holder_id:
            why = f"this client holds it already ({holder}); release it first (or acquire a lock with reentrant=True)"
        elif holder:
            why = f"held by {holder}; {how_to_wait(ask.name)}"
        else:
            why = "another client held it until just now; try again"
        return LockAcquisitionError(
            f"{ask.name!r} was not acquired in {waited:.1f} s: {why}",
            name=ask.name,
            attempts=attempts,
            waited=waited,
            holder=holder,
        )

    def is_late(self, error: StoreError, deadline: float, retry: RetryPolicy) -> bool:
        """Return whether the caller's timeout was too short for a store that is overloaded, but answers."""
        return error.overloaded and self.runtime.now() + retry.max_delay >= deadline

    def too_busy(self, ask: Ask, attempts: int, waited: float) -> LockAcquisitionError:
        """Explain that the timeout passed while the store answered other requests; the place is released later."""
        msg = (
            f"{ask.name!r} was not acquired in {waited:.1f} s: the store had too many requests to answer before this "
            "one; raise the timeout, or send fewer requests at a time"
        )
        return LockAcquisitionError(msg, name=ask.name, attempts=attempts, waited=waited)

    def check_open(self, name: str = "") -> None:
        """Raise ClosedError once the client is closed, and LockError where its runtime cannot be used."""
        self.runtime.bind()
        if self.keeper.closing:
            msg = "this client is closed: create a new one"
            raise ClosedError(msg, name=name)

    def _check_call(self, name: str = "", *, also_open: bool = True) -> None:
        """Raise ClosedError once the client is closed, and NestedCallError where a request could wait for itself.

        A thread inside the mutex is in the middle of a change, and must not wait for a store before it is complete.
        """
        if also_open:
            self.check_open(name)
        if self.runtime.is_nested(self.keeper.mutex):
            raise NestedCallError(NESTED, name=name)

    def _check_wanted(self, lease: Lease) -> None:
        if self.keeper.closing:
            self.check_open(lease.ask.name)
        claim = lease.claim()
        if claim is not None and claim.withdrawn:
            msg = f"the acquisition of {lease.ask.name!r} was withdrawn"
            raise LockAcquisitionError(msg, name=lease.ask.name)

    def _forked(self) -> None:
        for lease in self.keeper.leases.values():
            lease.state = INHERITED
        self.keeper.reset()
        self.holder_id = self._identify()
        self._entered.clear()
        self.candidates.clear()
        self.leaders.clear()


def how_to_wait(name: str) -> str:
    """Name what to do about a lock that was held for longer than the timeout."""
    return f"raise timeout, or see `{command_for(name, 'show')}`"


def _kind(capacity: int) -> str:
    """Name the primitive that uses a line of that capacity."""
    if capacity in {1, WHOLE}:
        return "a lock" if capacity == 1 else "a read-write lock"
    return f"a semaphore of {capacity} permits"
