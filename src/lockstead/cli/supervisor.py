"""What `lockstead run` and `lockstead elect` have in common: a command that never outlives the lease it runs under.

The command is stopped by this machine's clock, without an answer from the store: when no renewal succeeds, early
enough to be dead before the store could grant the lock to another client. Not promised: anything while this process
itself is stopped (SIGSTOP) and the command is not; then only the fence protects.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from signal import Signals, strsignal
from typing import NamedTuple

from lockstead.blocking import LockHandle
from lockstead.cli.child import Child
from lockstead.cli.outcome import SIGNALLED, Exit, Failure
from lockstead.cli.signals import ENDING, Interruption, SignalQueue
from lockstead.cli.text import format_duration
from lockstead.errors import LockLostError, StoreError

log = logging.getLogger("lockstead.cli")

MIN_TTL = 0.5
"""Seconds: the shortest lease within which a process can be stopped in time."""
MAX_DEFAULT_GRACE = 10.0
GRACE_AFTER_LOSS = 0.5
"""Seconds between SIGTERM and SIGKILL when another client may hold the lock already."""
MAX_SLEEP = 1.0
"""Seconds to sleep at most: while the machine is suspended a sleep does not advance, but the lease does."""


def resolve_grace(asked: float | None, ttl: float) -> float:
    """Choose how long before the lease's end the command gets SIGTERM. Raises Failure if that leaves it no time."""
    if not ttl >= MIN_TTL:
        msg = f"--ttl and --max-hold must be at least {MIN_TTL} s: a command cannot be stopped in less"
        raise Failure(Exit.BAD_INPUT, msg)
    if asked is None:
        return min(MAX_DEFAULT_GRACE, ttl / 4)
    if not 0 <= asked <= ttl / 2:
        msg = (
            f"--grace must be from 0 to half of the lease's {ttl:g} s, got {asked:g}: with more, a command would be "
            "stopped while renewals are still on time; raise --ttl (and --max-hold) to allow more grace"
        )
        raise Failure(Exit.BAD_INPUT, msg)
    return asked


class End(NamedTuple):
    """How a command ended."""

    status: int
    """Its exit code, or the negative number of the signal that ended it."""
    why_stopped: str
    """Empty if it was not stopped."""
    was_signalled_to_end: bool
    """Whether a signal that asks to end was sent to this process, and forwarded."""
    was_interrupted: bool
    """Whether Ctrl-C on the terminal ended it."""

    def describe(self) -> str:
        if self.status >= 0:
            return f"the command exited with {self.status}"
        return f"the command was ended by signal {-self.status} ({strsignal(-self.status)})"

    def exit_code(self) -> int:
        """Return the code to exit with. After Ctrl-C, first send SIGINT to the rest of our job: it got none."""
        if self.was_interrupted:
            os.killpg(os.getpgrp(), Signals.SIGINT)
        return self.status if self.status >= 0 else SIGNALLED - self.status


class Supervisor:
    """Stops a command before the lease it runs under can end."""

    def __init__(
        self, handle: LockHandle, signals: SignalQueue, grace: float, ttl: float, max_hold: float | None
    ) -> None:
        self._handle = handle
        self._signals = signals
        self._grace = grace
        self._ttl = ttl
        self._max_hold = max_hold
        self._slack = min(0.05 * ttl, 0.5)
        """Seconds reserved for the kernel to carry out a kill."""
        self._granted = time.monotonic()
        self._lease_length = 0.0

    def run(self, command: Sequence[str]) -> End:
        """Run a command to its end. Raises LockLostError if the lease ended before it, Failure if it cannot be run."""
        self._claim_ttl()
        with _start(command, self._handle, self.renew) as child:
            was_stopped = self.watch(child)
            was_interrupted = child.was_interrupted_from_terminal
        why_stopped = self.explain() if was_stopped else ""
        return End(child.status, why_stopped, child.was_forwarded(*ENDING), was_interrupted)

    def _claim_ttl(self) -> None:
        """Extend a lease that was granted while it waited: it may be trusted for less than the command is to have."""
        left = self._ttl - (time.monotonic() - self._granted)
        if self._handle.remaining < left / 2:
            with suppress(StoreError):
                self._handle.extend(left)

    def watch(self, child: Child) -> bool:
        """Forward signals until the command has ended, and return whether it was stopped.

        Once it got SIGTERM, it is stopped even if renewals succeed again. Nothing is printed or logged before its end:
        a full pipe on stderr must not keep it alive.
        """
        stopping, kill_at = False, inf
        while not child.has_ended():
            now, left = time.monotonic(), self._handle.remaining
            pause = left - self._grace - self._slack
            if pause <= 0 and not stopping:
                stopping, self._lease_length = True, now + left - self._granted
                child.signal_group(Signals.SIGTERM)
                child.signal_group(Signals.SIGCONT)
            if stopping:
                kill_at = min(kill_at, now + (left - self._slack if left else min(self._grace, GRACE_AFTER_LOSS)))
                pause = kill_at - now
                if pause <= 0:
                    child.signal_group(Signals.SIGKILL)
                    pause = MAX_SLEEP
            for number in self._signals.wait(min(pause, MAX_SLEEP)):
                child.forward(number)
        if stopping:
            child.signal_group(Signals.SIGKILL)
        return stopping

    def renew(self) -> bool:
        """Renew at once, unless --max-hold caps the lease, and return whether the lock is still held."""
        if self._max_hold is None:
            with suppress(LockLostError, StoreError):
                self._handle.extend(self._ttl)
        return self._handle.is_held

    def explain(self) -> str:
        """Say why the command was stopped."""
        name = self._handle.name
        # a quarter of the ttl less, because the grant may have arrived late, and renewals near the end gain little
        if self._max_hold is not None and self._lease_length >= self._max_hold - self._ttl / 4:
            return f"{name!r} may not be held for more than --max-hold ({format_duration(self._max_hold)})"
        try:
            self._handle.check()
        except LockLostError as error:
            return str(error)
        return f"{name!r} could not be renewed in time"


def _start(command: Sequence[str], handle: LockHandle, renew: Callable[[], bool]) -> Child:
    handle.check()
    environment = os.environ | {"LOCKSTEAD_NAME": handle.name, "LOCKSTEAD_FENCE": str(handle.fence)}
    try:
        return Child(command, environment, renew)
    except FileNotFoundError as error:
        raise Failure(Exit.NOT_FOUND, f"{command[0]}: command not found", name=handle.name) from error
    except OSError as error:
        raise Failure(Exit.NOT_EXECUTABLE, f"{command[0]}: {error.strerror}", name=handle.name) from error


def release(handle: LockHandle, end: End) -> None:
    """Release the lock. Raises Failure if the command did not hold it until its end."""
    why_stopped = end.why_stopped
    try:
        handle.release()
    except LockLostError as error:
        why_stopped = why_stopped or str(error)
    except StoreError as error:
        if not why_stopped:
            log.warning("could not release %r (%s): it expires after its ttl", handle.name, error)
    if why_stopped:
        msg = f"{why_stopped}; {end.describe()}"
        raise Failure(Exit.LEASE_LOST, msg, name=handle.name, fence=handle.fence, ending=end.status)


def ended_by(interruption: Interruption) -> int:
    """Return the code to exit with after a signal interrupted a wait."""
    if interruption.number == Signals.SIGINT:
        raise KeyboardInterrupt from None
    return SIGNALLED + interruption.number
