"""Handles of what a thread holds."""

from __future__ import annotations

import sys
import threading
from inspect import CO_GENERATOR
from types import TracebackType
from typing import Self

from lockstead.core import inspection
from lockstead.core.checks import Seconds, check_ttl
from lockstead.core.runtime import drive
from lockstead.errors import LockError, LockLostError, StoreError
from lockstead.primitives import info
from lockstead.primitives.handle import Handle, Multiple, Single
from lockstead.primitives.info import LockInfo


class Held(Handle):
    """A handle for threads. As a context manager it releases at the end of its block."""

    _lost: threading.Event | None = None

    @property
    def lost(self) -> threading.Event:
        """An event that is set when the lock is lost, before another client can hold it."""
        if self._lost is None:
            self._lost = threading.Event()
            self._watch(self._lost.set)
        return self._lost

    def release(self) -> None:
        """Release the lock. A second call does nothing; nor does a call in a forked child.

        A signal handler or a finalizer may call it. If that interrupted another call of the same thread that must end
        first, the lock is released in the background, a moment later.

        Raises LockLostError if it was lost before, StoreError if the store does not answer: it is then released in the
        background, or expires.
        """
        try:
            drive(self._release_once())
        except LockError:
            raise
        except BaseException:  # an interrupt before the release had begun
            self._abandon()
            raise

    def extend(self, seconds: Seconds) -> None:
        """Extend the lease to at least that many seconds from now, regardless of `max_hold`. Never shortens it.

        Raises LockLostError if the lock is lost, InvalidLockError if it was released.
        """
        drive(self._extend(check_ttl(seconds, "an extension")))

    def __enter__(self) -> Self:
        self._enter_block()
        if not sys._getframe(1).f_code.co_flags & CO_GENERATOR:
            self._claim.opened_by = threading.get_ident()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.release()
        except (LockLostError, StoreError) as failure:
            if error is None:
                raise
            error.add_note(str(failure))
        except BaseException:
            self._abandon()
            raise


class LockHandle(Held, Single):
    """The handle of one name: a lock, one side of a read-write lock, or permits of a semaphore."""

    def info(self) -> LockInfo | None:
        """Ask the store for the current holders of the name; None if it is free."""
        line = drive(inspection.find(self._engine, self.name))
        return info.describe(line) if line else None


class MultiLockHandle(Held, Multiple):
    """The handle of several names: if one of them is lost, `is_held` is False for all."""
