"""Detects calls that interrupted another call of the same thread: from a signal handler, or a finalizer."""

from __future__ import annotations

import threading
from _thread import LockType, allocate_lock

from lockstead.core.runtime import NESTED
from lockstead.errors import NestedCallError

_here = threading.local()


def step() -> LockType:
    """Return the thread's lock, to hold during a step that must not be interrupted by another step.

    One for all stores of a thread, so that a step of one never waits for that of another. The lock is written in C:
    no interrupt arrives between its acquisition and the block. Raises NestedCallError at once in the middle of a step.
    """
    lock: LockType
    try:  # as in `_of_this_thread`, whose call would take a fifth of the time
        lock = _here.step if type(_here) is threading.local else _of_this_thread()
    except AttributeError:
        lock = _of_this_thread()
    if lock.locked():
        raise NestedCallError(NESTED)
    return lock


def is_in_step() -> bool:
    return _of_this_thread().locked()


def _of_this_thread() -> LockType:
    global _here
    if type(_here) is not threading.local:  # gevent has patched it since: threads are greenlets now
        _here = threading.local()
    try:
        lock: LockType = _here.step
    except AttributeError:
        lock = _here.step = allocate_lock()
    return lock
