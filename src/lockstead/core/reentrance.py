"""Re-entrance: the same thread or task acquires again what it holds, without waiting for itself.

It is counted locally, and adds no place to the line.
"""

from __future__ import annotations

from collections.abc import Hashable
from weakref import WeakValueDictionary

from lockstead.core.keeper import Keeper
from lockstead.core.lease import HELD, Claim, Lease
from lockstead.core.model import Ask, Refusal
from lockstead.core.refusals import Busy, held_by_itself, mismatch, unsupported_in_loop


class Reentrance:
    """The leases of one client that threads or tasks may re-enter."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._runtime = keeper.runtime
        self._mutex = keeper.mutex
        self._entered: WeakValueDictionary[tuple[Hashable, str], Lease] = WeakValueDictionary()

    def register(self, lease: Lease, claim: Claim) -> None:
        """Make a lease re-entrant for the running thread or task."""
        with self._mutex:
            lease.enter(self._runtime.context(), claim)
            assert lease.entered_as is not None
            self._entered[lease.entered_as] = lease

    def find(self, ask: Ask) -> Lease | Busy | None:
        """Find the lease that the running thread or task would re-enter; None if there is none.

        A writer may re-enter as a reader. A reader that requests the write side would wait for itself: Busy. Raises
        CapacityMismatchError, and UnsupportedError where it would let one task into the block of another.
        """
        if self._runtime.in_event_loop():
            raise unsupported_in_loop(ask)
        lease = self._entered.get((self._runtime.context(), ask.name))
        if lease is None:
            return None
        if lease.ask.capacity != ask.capacity:
            raise mismatch(ask, lease.ask.capacity)
        if lease.ask.weight < ask.weight:
            why = (
                "this thread or task already holds it with a smaller weight (as a reader, say), and would wait for "
                "itself: release it first"
            )
            return Busy(ask, Refusal(lease.ask.owner), 1, 0.0, why)
        return lease

    def check_wait(self, ask: Ask, holder: str, deadline: float) -> None:
        """Raise LockAcquisitionError if surely only the thread or task that waits could end the wait.

        Not promised: that every such wait is found. The owner at the head of the line is looked at, no other; and a
        handle, or a block that a generator opened, may be released by another thread or task.
        """
        held = self._keeper.leases.get(holder)
        if held is None or held.state is not HELD or held.ask.weight + ask.weight <= ask.capacity:
            return
        in_loop = self._runtime.in_event_loop()  # which even a short wait would block, and in it the holder
        ends_by_itself = (deadline <= held.trusted_until and not in_loop) or held.renew_until < deadline
        claim = held.claim() if held.claim is not None else None
        if claim is not None and not ends_by_itself and self._runtime.must_release(claim.opened_by):
            raise held_by_itself(ask, held.ask, in_loop=in_loop)

    def enter(self, lease: Lease, claim: Claim) -> bool:
        """Count one more claim; False if the lease has lost its first one."""
        with self._mutex:
            outer = lease.claim() if lease.claim is not None else None
            if outer is None:
                return False
            claim.outer = outer  # before it counts: an interrupt in between must find it
            lease.enter_again(claim)
        return True

    def leave(self, lease: Lease, claim: Claim) -> bool:
        """Subtract a claim, and return whether it was the last. Safe to repeat for the same claim."""
        with self._mutex:
            is_last = lease.exit(claim, self._keeper.claim_dropped)
            if is_last:
                self.drop(lease)
            return is_last

    def drop(self, lease: Lease) -> None:
        """Let no thread or task re-enter a lease, and let one release end it, whatever claims it has."""
        with self._mutex:
            if lease.entered_as is not None:
                self._entered.pop(lease.entered_as, None)
                lease.exit_all()
