"""`leasehold run NAME -- CMD`: hold a lock while a command runs, and never let the command outlive the lease.

The command is stopped by this machine's clock, not by the store's notice: when no renewal succeeds, early enough to be
dead before the store could let anybody else in. Not promised: anything while this process itself is stopped (SIGSTOP)
and the command is not; then only the fence protects.
"""

from __future__ import annotations

import json
import logging
import os
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from signal import Signals, strsignal
from typing import Any

from leasehold.blocking import DistributedLock, LockHandle
from leasehold.cli.child import Child
from leasehold.cli.client import open_client
from leasehold.cli.inspection import held_for
from leasehold.cli.outcome import SIGNALLED, Exit, Failure
from leasehold.cli.signals import Interruption, SignalQueue
from leasehold.cli.text import humane
from leasehold.errors import LockAcquisitionError, LockLostError, StoreError

log = logging.getLogger("leasehold.cli")

LEAST_LIFE = 0.5
"""The shortest lease within which a process can be stopped in time."""
LONGEST_DEFAULT_GRACE = 10.0
LAST_MOMENT = 0.5
"""How long a command has after SIGTERM when somebody else may hold already."""
LONGEST_NAP = 1.0
"""How long to sleep at most: while the machine is suspended a sleep stands still, but the lease goes on."""


def run(arguments: Namespace) -> int:
    """Acquire, run the command, release; return the code to exit with."""
    life = min(arguments.ttl, inf if arguments.max_hold is None else arguments.max_hold)
    grace = fitting_grace(arguments.grace, life)
    metadata = parse_metadata(arguments.metadata)
    with SignalQueue() as signals, open_client(arguments.url, arguments.ttl) as locks:
        try:
            with signals.raised():
                handle = locks.acquire(
                    arguments.name,
                    timeout=arguments.timeout,
                    metadata=metadata,
                    max_hold=arguments.max_hold,
                    at_least=arguments.at_least,
                    on_lost=lambda _: signals.wake(),
                )
        except Interruption as interruption:
            if interruption.number == Signals.SIGINT:
                raise KeyboardInterrupt from None
            return SIGNALLED + interruption.number
        except LockAcquisitionError as error:
            raise _busy(locks, error) from error
        guard = Guard(handle, signals, grace, life, arguments.max_hold)
        with _start(arguments.command_line, handle, guard.renew) as child:
            was_stopped = guard.watch(child)
            was_interrupted = child.was_interrupted_from_terminal
        why_stopped = guard.explain() if was_stopped else ""
        _release(handle, child.ending, why_stopped)
    if was_interrupted:
        os.killpg(os.getpgrp(), Signals.SIGINT)  # the rest of our job, and we, would have had it too without `run`
    return child.ending if child.ending >= 0 else SIGNALLED - child.ending


def fitting_grace(asked: float | None, life: float) -> float:
    """Choose how long before the lease's end the command is told to stop. Raises Failure if that leaves it no time."""
    if not life >= LEAST_LIFE:
        msg = f"--ttl and --max-hold must be at least {LEAST_LIFE} s: a command is not stopped in less"
        raise Failure(Exit.BAD_INPUT, msg)
    if asked is None:
        return min(LONGEST_DEFAULT_GRACE, life / 4)
    if not 0 <= asked <= life / 2:
        msg = (
            f"--grace must be from 0 to half of the lease's {life:g} s, got {asked:g}: with more, a command would be "
            "stopped while renewals are still on time; raise --ttl (and --max-hold) to have more grace"
        )
        raise Failure(Exit.BAD_INPUT, msg)
    return asked


def parse_metadata(texts: Sequence[str]) -> dict[str, Any]:
    """Read KEY=VALUE pairs, whose values are strings, and JSON objects; a later one wins."""
    metadata: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if text.lstrip().startswith("{"):
            try:
                metadata |= json.loads(text)
            except (ValueError, RecursionError) as error:
                raise Failure(Exit.BAD_INPUT, f"--metadata {text!r} is no JSON object: {error}") from error
        elif equals and key:
            metadata[key] = value
        else:
            raise Failure(Exit.BAD_INPUT, f"--metadata takes KEY=VALUE or a JSON object, got {text!r}")
    return metadata


class Guard:
    """Stops a command before the lease it works under can end."""

    def __init__(
        self, handle: LockHandle, signals: SignalQueue, grace: float, life: float, max_hold: float | None
    ) -> None:
        self._handle = handle
        self._signals = signals
        self._grace = grace
        self._life = life
        self._max_hold = max_hold
        self._slack = min(0.05 * life, 0.5)
        """What is kept in hand for the kernel to carry a kill out."""
        self._granted = time.monotonic()
        self._lease_length = 0.0

    def watch(self, child: Child) -> bool:
        """Forward signals until the command has ended, and say whether it was stopped.

        Once told to stop, it must, even if renewals succeed again. Nothing is printed or logged before its end: a
        full pipe on stderr must not keep it alive.
        """
        stopping, kill_at = False, inf
        while not child.has_ended():
            now, left = time.monotonic(), self._handle.remaining
            nap = left - self._grace - self._slack
            if nap <= 0 and not stopping:
                stopping, self._lease_length = True, now + left - self._granted
                child.signal_group(Signals.SIGTERM)
                child.signal_group(Signals.SIGCONT)
            if stopping:
                kill_at = min(kill_at, now + (left - self._slack if left else min(self._grace, LAST_MOMENT)))
                nap = kill_at - now
                if nap <= 0:
                    child.signal_group(Signals.SIGKILL)
                    nap = LONGEST_NAP
            for number in self._signals.wait(min(nap, LONGEST_NAP)):
                child.forward(number)
        if stopping:
            child.signal_group(Signals.SIGKILL)
        return stopping

    def renew(self) -> bool:
        """Renew out of turn, which --max-hold does not allow for, and say whether the lock is still ours."""
        if self._max_hold is None:
            with suppress(LockLostError, StoreError):
                self._handle.extend(self._life)
        return self._handle.is_held

    def explain(self) -> str:
        """Tell why the command was stopped."""
        name = self._handle.name
        # a quarter, because the grant may have reached us late, and renewals near the end gain little
        if self._max_hold is not None and self._lease_length >= self._max_hold - self._life / 4:
            return f"{name!r} may not be held for more than --max-hold ({humane(self._max_hold)})"
        try:
            self._handle.check()
        except LockLostError as error:
            return str(error)
        return f"{name!r} could not be renewed in time"


def _start(command: Sequence[str], handle: LockHandle, renew: Callable[[], bool]) -> Child:
    handle.check()
    environment = os.environ | {"LEASEHOLD_NAME": handle.name, "LEASEHOLD_FENCE": str(handle.fence)}
    try:
        return Child(command, environment, renew)
    except FileNotFoundError as error:
        raise Failure(Exit.NOT_FOUND, f"{command[0]}: command not found", name=handle.name) from error
    except OSError as error:
        raise Failure(Exit.NOT_EXECUTABLE, f"{command[0]}: {error.strerror}", name=handle.name) from error


def _release(handle: LockHandle, ending: int, why_stopped: str) -> None:
    """Release, and raise Failure if the command did not have the lock until its end."""
    try:
        handle.release()
    except LockLostError as error:
        why_stopped = why_stopped or str(error)
    except StoreError as error:
        if not why_stopped:
            log.warning("%r could not be released, it ends by itself: %s", handle.name, error)
    if why_stopped:
        ended = f"exited with {ending}" if ending >= 0 else f"was ended by signal {-ending} ({strsignal(-ending)})"
        msg = f"{why_stopped}; the command {ended}"
        raise Failure(Exit.LEASE_LOST, msg, name=handle.name, fence=handle.fence, ending=ending)


def _busy(locks: DistributedLock, error: LockAcquisitionError) -> Failure:
    """Add to a refusal what an inspection tells about the holder."""
    try:
        info = locks.info(error.name)
    except StoreError:
        info = None
    message = str(error)
    if info is not None and info.holder_id == error.holder and not info.holders[0].lingers:
        message += f", for {humane(held_for(info))} now"
        if info.waiting:
            message += f", with {info.waiting} waiting"
    return Failure(Exit.BUSY, message, name=error.name, holder=info and info.as_json())
