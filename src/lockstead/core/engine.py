"""Acquire, extend, release: written once for every store and every runtime.

A lease is tracked by the keeper before its first request is sent, so that whatever happens in between (a cancellation,
an interrupt, a lost reply) the keeper has a record of the place that may have to be released.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from itertools import count
from math import inf
from typing import TypeVar
from weakref import ref

from lockstead.core import lifecycle
from lockstead.core.keeper import Keeper, log
from lockstead.core.lease import HELD, INHERITED, JOINING, WAITING, Claim, Lease
from lockstead.core.model import Ask, PlaceState, Refusal, Standing, Wake
from lockstead.core.reentrance import Reentrance
from lockstead.core.refusals import Busy, Missed, mismatch, overloaded, unsupported
from lockstead.core.retry import RetryPolicy
from lockstead.core.store import Store
from lockstead.core.timing import (
    EXTEND_RETRY_DELAYS,
    MIN_REQUEST_TIMEOUT,
    POLLING,
    REQUEST_TIMEOUT,
    request_timeout,
)
from lockstead.errors import ClosedError, LockAcquisitionError, LockLostError, StoreError

_new_tuple = tuple.__new__
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
        self._has_line = store.capabilities.fifo
        self._was_answered = False
        self.reentrance = Reentrance(self.keeper)
        lifecycle.at_fork(self, in_child="_forked")

    async def acquire(  # noqa: C901 (each branch but the two returns is a call of what is named for it)
        self,
        ask: Ask,
        claim: Claim,
        *,
        timeout: float = inf,
        renew_for: float = inf,
        grace: float = 0.0,
        retry: RetryPolicy,
        waited: float = 0.0,
    ) -> Lease | Busy:
        """Join the line; granted: return. Wait; granted: return. Busy: the name was held until the timeout.

        Whatever it raises, and however it is interrupted, no place stays behind. `waited`: for how long the caller
        has waited before. One coroutine: each one more that is suspended is an object that the garbage collector scans.
        """
        keeper, now = self.keeper, self.runtime.now
        self.runtime.check(keeper.mutex)
        is_patient = ask.queue  # otherwise nothing is waited for but the answer
        began = sent = now()
        deadline = began + (timeout if is_patient else REQUEST_TIMEOUT)
        if ask.capacity != 1 or not self._has_line:
            ask = self._adapt(ask)
        attempts = late_grants = 0
        while True:
            attempts += 1
            lease = self.track(ask, claim, renew_for, grace)
            pause = refusal = None
            try:
                try:
                    answer = await self.store.join(lease.ask, request_timeout(deadline - sent))
                except StoreError as error:
                    lease.join_failed(error)
                    pause = self._pause_after(error, 0, deadline, retry, lease if is_patient else None)
                    if pause is None:
                        raise
                if pause is not None:  # not above: an exception that is being handled keeps the caller's handle alive
                    answer, sent = await self._join_again(lease, pause, deadline, retry, is_patient=is_patient)
                self._was_answered = True
                refusal = keeper.apply_join(lease, answer, sent)
                if lease.state is WAITING:
                    refusal = await self._wait_in_line(lease, deadline, retry)
            except BaseException as error:
                await self._undo(lease, error)
                if is_patient and self.is_late(error, deadline, retry):
                    raise overloaded(ask, attempts, now() - began + waited) from error
                raise
            if lease.state is HELD and now() < lease.trusted_until and not keeper.closing:
                return lease
            missed = await self._clear(lease, claim, refusal)
            late_grants += missed.was_granted
            can_wait = is_patient and late_grants <= retry.max_retries
            if not can_wait or not await self._may_try_again(ask, missed, attempts, deadline, retry):
                return missed.busy(ask, attempts, now() - began + waited)
            sent = now()

    async def _wait_in_line(self, lease: Lease, deadline: float, retry: RetryPolicy) -> Refusal | None:
        """Wait until the place holds or is gone (None), or the deadline has passed."""
        ask = lease.ask
        polls = 0
        self.reentrance.check_wait(ask, lease.holder, deadline)
        while lease.state is WAITING:
            self._check_wanted(lease)
            now = self.runtime.now()
            if now >= deadline:
                return Refusal(lease.holder)
            until = min(deadline, lease.recheck_at, now + ask.heartbeat / 2)
            if not self.store.capabilities.push:  # which may change: a pooler may keep a store from listening
                until = min(until, now + POLLING.pause(polls, self.runtime.random()))
                polls += 1
            wake = await self.store.wait(ask.name, ask.owner, until - now)
            if wake is Wake.GRANT and self.keeper.accept_push(lease):
                return None
            should_ask = wake or polls or self.runtime.now() >= min(deadline, lease.recheck_at)
            if should_ask and lease.state is WAITING:
                standing, sent = await self.with_retries(self._recheck, lease, deadline, retry, waiting=lease)
                self.keeper.apply(lease, standing, sent, ask.ttl)
        return None

    async def _join_again(
        self, lease: Lease, pause: float, deadline: float, retry: RetryPolicy, *, is_patient: bool
    ) -> tuple[Standing | Refusal, float]:
        """Repeat a join that was not answered; return the answer and when that request was sent."""
        await self.runtime.sleep(pause)
        waiting = lease if is_patient else None
        return await self.with_retries(self._send_join_again, lease, deadline, retry, retries=1, waiting=waiting)

    async def _send_join_again(self, lease: Lease, timeout: float) -> Standing | Refusal:
        self._check_wanted(lease)
        lease.send_join_again()
        try:
            return await self.store.join(lease.ask, timeout)
        except StoreError as error:
            lease.join_failed(error)
            raise

    async def _recheck(self, lease: Lease, timeout: float) -> Standing:
        self._check_wanted(lease)
        (standing,) = await self.store.renew([lease.renewal(lease.ask.ttl)], timeout)
        return standing

    async def with_retries(
        self,
        send: Callable[[A, float], Awaitable[T]],
        what: A,
        deadline: float,
        retry: RetryPolicy,
        *,
        retries: int = 0,
        waiting: Lease | None = None,
    ) -> tuple[T, float]:
        """Repeat a request until it is answered; return the answer and when that request was sent.

        `waiting`: the place that the request is about, if it is a waiter's; see `_pause_after`.
        """
        while True:
            sent = self.runtime.now()
            try:
                answer = await send(what, request_timeout(deadline - sent))
            except StoreError as error:
                pause = self._pause_after(error, retries, deadline, retry, waiting)
                if pause is None:
                    raise
            else:
                self._was_answered = True
                if waiting is not None:
                    self.keeper.end_outage(waiting)
                return answer, sent
            retries += 1
            await self.runtime.sleep(pause)

    def _pause_after(
        self, error: StoreError, retries: int, deadline: float, retry: RetryPolicy, waiting: Lease | None
    ) -> float | None:
        """Return how long to pause before a request is repeated; None if it must not be, or cannot be in time.

        A waiter outlasts an outage, for as long as its deadline allows: its last request is sent just before that.
        Unless the store has never answered: its address may be wrong; or its locks do not expire. A single failure,
        such as that of a connection that was idle for long, is no outage.
        """
        if not error.transient:
            return None
        pause, left = retry.pause(retries, self.runtime.random()), deadline - self.runtime.now()
        if waiting is None or not self._was_answered or not self.store.capabilities.expiry:
            return None if retries >= retry.max_retries or pause >= left else pause
        if retries:
            self.keeper.begin_outage(error, waiting)
        return min(pause, left - MIN_REQUEST_TIMEOUT) if left > MIN_REQUEST_TIMEOUT else None

    async def _undo(self, lease: Lease, error: BaseException) -> None:
        """Leave nothing of an attempt that was interrupted or failed. Raises ClosedError if the client was closed."""
        if isinstance(error, StoreError):
            self.drop(lease)
            self.check_open(lease.ask.name)
        else:
            await self.abandon(lease, error)

    async def _clear(self, lease: Lease, claim: Claim, refusal: Refusal | None) -> Missed:
        """Leave nothing of an attempt by which nothing is held, and return why.

        Raises CapacityMismatchError for a line of another capacity, ClosedError if the client was closed meanwhile.
        """
        if refusal is not None and not lease.ask.queue and not lease.joins_in_doubt:
            self.keeper.forget(lease)
        else:
            await self.abandon(lease)
        claim.leases = claim.leases[:-1]
        self.check_open(lease.ask.name)
        if refusal is not None and refusal.capacity:
            raise mismatch(lease.ask, refusal.capacity)
        return Missed(refusal, lease.holder, was_granted=refusal is None and lease.granted_at is not None)

    async def _may_try_again(
        self, ask: Ask, missed: Missed, attempts: int, deadline: float, retry: RetryPolicy
    ) -> bool:
        """Return whether to join once more, after a pause on a store that has no line to wait in."""
        left = deadline - self.runtime.now()
        if missed.refusal is None:
            return left > 0
        if self._has_line or left <= 0:
            return False
        self.reentrance.check_wait(ask, missed.refusal.holder, deadline)
        await self.runtime.sleep(min(retry.pause(attempts - 1, self.runtime.random()), missed.refusal.recheck, left))
        return True

    async def withdraw(self, claim: Claim, timeout: float) -> None:
        """End an acquisition that still waits with LockAcquisitionError, and release its place at once."""
        claim.withdrawn = True
        for lease in claim.leases:
            if lease.state is JOINING or lease.state is WAITING:
                await self.abandon(lease, timeout=min(timeout, REQUEST_TIMEOUT))

    async def reenter(self, ask: Ask, claim: Claim) -> Lease | Busy | None:
        """Re-enter a lease that this thread or task holds already: count it and extend it. None if there is none."""
        lease = self.reentrance.find(ask)
        if not isinstance(lease, Lease):
            return lease
        claim.leases = (lease,)  # before it counts: whatever interrupts this, the claim can be subtracted again
        if self.reentrance.enter(lease, claim):
            await self.extend(lease, ask.ttl)
            return lease
        claim.leases = ()
        return None

    def give_up(self, claim: Claim) -> None:
        """Release in the background what is held or awaited under a claim: the call that did so was interrupted."""
        for lease in claim.leases:
            if self.reentrance.leave(lease, claim) and lease.ask.owner in self.keeper.leases:
                self.keeper.release_in_background(lease)

    async def extend(self, lease: Lease, seconds: float) -> None:
        """Extend the lease to at least `seconds` from now; never shortens it."""
        self.runtime.check(self.keeper.mutex)
        self.check(lease)
        sent = self.runtime.now()
        with self.keeper.mutex:
            lease.extend(sent, seconds)
        for pause in (*EXTEND_RETRY_DELAYS, None):
            (standing,) = await self.store.renew([lease.renewal(seconds)], REQUEST_TIMEOUT)
            self.keeper.apply(lease, standing, sent, seconds)
            self.check(lease)
            if standing.state is PlaceState.HELD:
                return
            if pause is not None:
                await self.runtime.sleep(pause)
        msg = f"the store did not confirm the extension of {lease.ask.name!r}: it is held as before; try again"
        raise StoreError(msg, name=lease.ask.name, transient=True)

    async def release(self, lease: Lease, claim: Claim | None = None) -> None:
        """Release the lease: with `claim`, once no other claim holds it. Harmless to repeat, and in a forked child.

        Raises LockLostError if it was lost before. After StoreError the keeper retries in the background; it also
        does, without an error, if this call interrupted another one of its thread that has to end first.
        """
        keeper, now = self.keeper, self.runtime.now()
        if lease.state is INHERITED:
            return
        if now >= lease.trusted_until:
            keeper.check_trust_window(lease)
        is_nested = self.runtime.is_nested(keeper.mutex)
        with keeper.mutex:
            is_last = claim is None or not lease.entries or self.reentrance.leave(lease, claim)
            if lease.loss is not None:
                raise lease.error()
            if lease.state is not HELD or not is_last:
                return
            lease.release(now)
        if is_nested:
            keeper.release_in_background(lease)
            return
        try:
            if lease.is_reserving or lease.joins_in_doubt:
                was_there = await keeper.release(lease, REQUEST_TIMEOUT)
            else:  # the same, without a coroutine of its own
                was_there = await self.store.leave(lease.ask.name, lease.ask.owner, REQUEST_TIMEOUT)
                keeper.forget(lease, is_answered=True)
        except StoreError:
            keeper.release_in_background(lease)
            raise
        except BaseException as interruption:
            await self.abandon(lease, interruption)
            raise
        # A lease that expired while it was being released is not lost.
        if not was_there and not keeper.closing and self.runtime.now() < lease.trusted_until:
            with keeper.mutex:
                lease.find_gone()
            keeper.signal_loss(lease)
            raise lease.error()

    def retire(self, lease: Lease) -> None:
        """Renew for one more ttl at most: a holder that is slow to stop must not hold for ever."""
        with self.keeper.mutex:
            lease.retire(self.runtime.now())

    def is_nested(self) -> bool:
        """Return whether this call interrupted another of its thread, and must not wait."""
        return self.runtime.is_nested(self.keeper.mutex)

    def release_in_background(self, lease: Lease) -> None:
        """Release a lease with retries, whatever its state."""
        self.keeper.release_in_background(lease)

    def reserve(self, leases: Iterable[Lease], until: float, metadata: str | None = None) -> None:
        """Keep the names reserved until then, however early they are released; `metadata` is what is shown then."""
        with self.keeper.mutex:
            for lease in leases:
                lease.reserve(until, metadata)

    def scope(self, claim: Claim) -> None:
        """Release the leases of a claim at once if it is collected: it belongs to a block."""
        if not claim.is_scoped:
            claim.is_scoped = True
            for lease in claim.leases:
                lease.scope(self.keeper.claim_dropped)

    def watch(self, lease: Lease, on_lost: Callable[[], None]) -> None:
        """Call `on_lost`, which must not block, once when the lease is lost; immediately if it is lost already."""
        self.keeper.watch(lease, on_lost)

    def unwatch(self, lease: Lease, on_lost: Callable[[], None]) -> None:
        self.keeper.unwatch(lease, on_lost)

    async def release_all(self) -> int:
        """Release all held leases and return their number; a failure is raised after all were tried."""
        held = [lease for lease in list(self.keeper.leases.values()) if lease.is_held(self.runtime.now())]
        failure: StoreError | None = None
        for lease in held:
            self.reentrance.drop(lease)
            claim = lease.claim() if lease.claim is not None else None
            resign = None if claim is None else claim.resign  # read once: its term may end meanwhile
            try:
                await (self.release(lease) if resign is None else resign())
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

    async def end(self, budget: float) -> None:
        """Refuse new acquisitions, and release everything within `budget` seconds: the process is about to end."""
        await self.keeper.close(budget)

    async def disconnect(self) -> None:
        """Close all connections, at the end of a loop; until `use_store`, the store may refuse all but releases."""
        with suppress(StoreError):
            await self.store.close()

    def use_store(self, store: Store) -> None:
        """Continue on another store object of the same store."""
        self.store = store
        self.keeper.use_store(store)

    async def close(self, first: Iterable[Callable[[], Awaitable[None]]] = ()) -> None:
        """Refuse new acquisitions, await what has to end first, and release everything."""
        self.keeper.closing = True  # from here on, `acquire` releases what it is granted
        try:
            for end in tuple(first):
                with suppress(LockLostError, StoreError):  # the keeper retries
                    await end()
            await self.release_all()
        finally:
            await self.keeper.close(REQUEST_TIMEOUT)

    def check(self, lease: Lease) -> None:
        """Raise unless the lease is held and trusted now."""
        self.keeper.check_trust_window(lease)
        if lease.state is not HELD:
            raise lease.error()

    def track(self, ask: Ask, claim: Claim, renew_for: float, grace: float = 0.0) -> Lease:
        """Record an acquisition under an owner of its own, before anything is sent."""
        keeper = self.keeper
        owner = f"{self.holder_id}/{next(self._sequence)}"
        claimed = ref(claim, keeper.claim_dropped) if claim.is_scoped else ref(claim)
        # As `ask._replace(owner=owner)`, which takes 1 µs more.
        lease = Lease(_new_tuple(Ask, (ask[0], owner, *ask[2:])), claimed, renew_for, grace)
        claim.leases += (lease,)
        with keeper.mutex:
            if keeper.closing or claim.withdrawn:
                self._check_wanted(lease)
            keeper.leases[owner] = lease
            if keeper.leave_at_exit:
                lifecycle.at_exit.add(keeper)
        return lease

    def drop(self, lease: Lease) -> None:
        """Release a place in the background that may exist; one that was refused, or never requested, does not."""
        if lease.joins_in_doubt or lease.state is not JOINING:
            self.keeper.release_in_background(lease)
        else:
            self.keeper.forget(lease)

    async def abandon(
        self, lease: Lease, interruption: BaseException | None = None, timeout: float = REQUEST_TIMEOUT
    ) -> None:
        """Release the place before returning, also while an interruption is being handled."""
        if lease.state is INHERITED:  # gevent's greenlets run on in a forked child, but the place is the parent's
            return
        if isinstance(interruption, GeneratorExit):  # a closed generator must not await
            self.keeper.release_in_background(lease)
            return
        with self.keeper.mutex:
            lease.release(self.runtime.now())
        try:
            await self.runtime.shield(self.keeper.release(lease, timeout))
        except StoreError:
            self.keeper.release_in_background(lease)
        except BaseException:
            self.keeper.release_in_background(lease)
            raise

    def is_late(self, error: BaseException, deadline: float, retry: RetryPolicy) -> bool:
        """Return whether the caller's timeout was too short for a store that is overloaded, but answers."""
        return isinstance(error, StoreError) and error.overloaded and self.runtime.now() + retry.max_delay >= deadline

    @property
    def is_closed(self) -> bool:
        return self.keeper.closing

    def check_open(self, name: str = "") -> None:
        """Raise ClosedError once the client is closed, and LockError where its runtime cannot be used."""
        self.runtime.bind()
        if self.keeper.closing:
            msg = "this client is closed: create a new one"
            raise ClosedError(msg, name=name)

    def _adapt(self, ask: Ask) -> Ask:
        """Adapt a request to what the store supports: one that has no line is polled. Raises UnsupportedError."""
        if ask.capacity != 1 and not self.store.capabilities.supports(ask.capacity, ask.weight):
            raise unsupported(ask, self.store.capabilities)
        return ask if self._has_line or not ask.queue else ask._replace(queue=False)

    def check_call(self, name: str = "") -> None:
        """Raise ClosedError once the client is closed, and NestedCallError where a request could wait for itself."""
        self.check_open(name)
        self.runtime.check(self.keeper.mutex)

    def _check_wanted(self, lease: Lease) -> None:
        if self.keeper.closing:
            self.check_open(lease.ask.name)
        claim = lease.claim() if lease.claim is not None else None
        if claim is not None and claim.withdrawn:
            msg = f"the acquisition of {lease.ask.name!r} was withdrawn"
            raise LockAcquisitionError(msg, name=lease.ask.name)

    def _forked(self) -> None:
        for lease in self.keeper.leases.values():
            lease.inherit()
        self.keeper.reset()
        self.holder_id = self._identify()
        self.reentrance = Reentrance(self.keeper)
