"""Calls that have interrupted another of the same thread: from a signal handler, or a finalizer."""

from __future__ import annotations

import threading
from _thread import LockType, allocate_lock

from leasehold._runtime import NESTED
from leasehold.errors import NestedCallError


class _Here(threading.local):
    def __init__(self) -> None:
        self.step = allocate_lock()


_here = _Here()


def step() -> LockType:
    """Give what a thread has to enter, and stay in, for a step that must not be interrupted by another.

    One for all stores of a thread, so that a step of one never waits for that of another. It is a lock written in C:
    no interrupt comes between its being locked and the block. Raises NestedCallError, at once, in the middle of a step.
    """
    lock = _here.step
    if lock.locked():
        raise NestedCallError(NESTED)
    return lock


def is_in_step() -> bool:
    return _here.step.locked()
