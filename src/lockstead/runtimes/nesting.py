"""Calls that have interrupted another of the same thread: from a signal handler, or a finalizer."""

from __future__ import annotations

import threading
from _thread import LockType, allocate_lock

from lockstead.core.runtime import NESTED
from lockstead.errors import NestedCallError

_here = threading.local()


def step() -> LockType:
    """Give what a thread has to enter, and stay in, for a step that must not be interrupted by another.

    One for all stores of a thread, so that a step of one never waits for that of another. It is a lock written in C:
    no interrupt comes between its being locked and the block. Raises NestedCallError, at once, in the middle of a step.
    """
    lock = _of_this_thread()
    if lock.locked():
        raise NestedCallError(NESTED)
    return lock


def is_in_step() -> bool:
    return _of_this_thread().locked()


def _of_this_thread() -> LockType:
    global _here
    if type(_here) is not threading.local:  # gevent has patched it since, and threads are greenlets by now
        _here = threading.local()
    try:
        lock: LockType = _here.step
    except AttributeError:
        lock = _here.step = allocate_lock()
    return lock
