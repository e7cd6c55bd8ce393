"""Why an acquisition failed, as a value or as an error that explains it."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from lockstead.core.model import RESERVED, WHOLE, Ask, Capabilities, Refusal
from lockstead.core.quoting import command_for
from lockstead.errors import CapacityMismatchError, LockAcquisitionError, UnsupportedError

_USE_ASYNC = "in asyncio tasks, use AsyncDistributedLock"


class Busy(NamedTuple):
    """The name was held, or reserved, until the timeout. A value until a caller decides to raise it."""

    ask: Ask
    refusal: Refusal
    attempts: int
    waited: float
    why: str | None = None
    """The explanation, if it is not the holder alone."""

    def error(self, holder_id: str) -> LockAcquisitionError:
        """Explain it to the client of that id."""
        name, owner = self.ask.name, self.refusal.holder
        holder = owner.rpartition("/")[0] or owner
        if self.why is not None:
            why = self.why
        elif owner.endswith(RESERVED):
            recheck = self.refusal.recheck
            until = f" for another {recheck:.3g} s" if recheck < inf else ""
            why = (
                f"{holder} has released it, but reserved the name{until}; try again after that, or run "
                f"`{command_for(name, 'release', '--force')}`"
            )
        elif holder == holder_id:
            why = (
                f"this client holds it already ({holder}); release it first (or acquire a lock with reentrant=True; "
                f"{_USE_ASYNC})"
            )
        elif holder:
            why = f"held by {holder}; {how_to_wait(name)}"
        else:
            why = "another client held it until just now; try again"
        return not_acquired(self.ask, self.attempts, self.waited, why, holder)


class Missed(NamedTuple):
    """One attempt that gave nothing."""

    refusal: Refusal | None
    """None: a place was given, but is gone. It expired in line, or its grant arrived too late."""
    holder: str
    """The owner that was at the head of the line."""
    was_granted: bool
    """Whether its grant arrived too late."""

    def busy(self, ask: Ask, attempts: int, waited: float) -> Busy:
        """Return it as the outcome of the acquisition. Raises LockAcquisitionError if the store is too slow."""
        if self.was_granted:
            raise too_slow(ask, attempts, waited)
        return Busy(ask, self.refusal or Refusal(self.holder), attempts, waited)


def not_acquired(ask: Ask, attempts: int, waited: float, why: str, holder: str = "") -> LockAcquisitionError:
    """Report that the timeout has passed, and why nothing was acquired by then."""
    msg = f"{ask.name!r} was not acquired in {waited:.1f} s: {why}"
    return LockAcquisitionError(msg, name=ask.name, attempts=attempts, waited=waited, holder=holder)


def too_slow(ask: Ask, attempts: int, waited: float) -> LockAcquisitionError:
    """Explain that every grant arrived after its ttl."""
    why = f"the store takes longer to answer than the ttl of {ask.ttl:g} s lasts; raise the ttl"
    return not_acquired(ask, attempts, waited, why)


def held_by_itself(ask: Ask, held: Ask, *, in_loop: bool) -> LockAcquisitionError:
    """Explain that a thread or task would wait for its own release."""
    if in_loop:
        why = f"this thread holds it itself, and a wait would block its event loop, and the holder in it: {_USE_ASYNC}"
        return not_acquired(ask, 1, 0.0, why, held.owner.rpartition("/")[0])
    or_reenter = ", or acquire it both times with reentrant=True" if held.weight >= ask.weight else ""
    why = f"this thread or task holds it itself, and would wait for its own release: release it first{or_reenter}"
    return not_acquired(ask, 1, 0.0, why, held.owner.rpartition("/")[0])


def unsupported_in_loop(ask: Ask) -> UnsupportedError:
    """Explain that tasks of one event loop are one thread to a blocking client, which would let them all in."""
    msg = f"reentrant=True is refused inside a running event loop, whose tasks are all one thread: {_USE_ASYNC}"
    return UnsupportedError(msg, name=ask.name)


def overloaded(ask: Ask, attempts: int, waited: float) -> LockAcquisitionError:
    """Explain that the timeout passed while the store answered other requests; the place is released later."""
    why = (
        "the store had too many requests to answer before this one; raise the timeout, or send fewer requests at a time"
    )
    return not_acquired(ask, attempts, waited, why)


def mismatch(ask: Ask, stored: int) -> CapacityMismatchError:
    """Explain that the name is in use with another capacity."""
    return CapacityMismatchError(
        f"{ask.name!r} is in use as {_kind(stored)}, not as {_kind(ask.capacity)}: "
        "every client must use a name with the same capacity",
        name=ask.name,
        stored=stored,
        asked=ask.capacity,
    )


def unsupported(ask: Ask, can: Capabilities) -> UnsupportedError:
    """Explain that the store has no places of that kind."""
    kinds = "exclusive locks and read-write locks" if can.shared else "exclusive locks"
    advisory = "" if ask.capacity == WHOLE else " (not advisory)"
    msg = (
        f"this store supports {kinds} only, not {_kind(ask.capacity)}: use memory, SQLite, Redis (not Redlock) "
        f"or PostgreSQL{advisory}"
    )
    return UnsupportedError(msg, name=ask.name)


def how_to_wait(name: str) -> str:
    """Name what to do about a lock that was held for longer than the timeout."""
    return f"raise timeout, or see `{command_for(name, 'show')}`"


def _kind(capacity: int) -> str:
    """Name the primitive that uses a line of that capacity."""
    if capacity in {1, WHOLE}:
        return "a lock" if capacity == 1 else "a read-write lock"
    return f"a semaphore of {capacity} permits"
