"""What a thread holds."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

from lockstead.core.checks import Seconds, check_ttl
from lockstead.core.runtime import drive
from lockstead.errors import LockError, LockLostError, StoreError
from lockstead.primitives import info as _info
from lockstead.primitives.handle import Handle, Multiple, Single
from lockstead.primitives.info import LockInfo


class Held(Handle):
    """What is held by a thread. As a context manager it releases at the end of its block."""

    _lost: threading.Event | None = None

    @property
    def lost(self) -> threading.Event:
        """An event that is set once it is lost: before anybody else can hold."""
        if self._lost is None:
            self._lost = threading.Event()
            self._watch(self._lost.set)
        return self._lost

    def release(self) -> None:
        """Give it up. Once is enough, more do no harm; in a forked child it does nothing.

        A signal handler or a finalizer may call it. If that has interrupted another call of the same thread that must
        end first, it is given up in the background, a moment later.

        Raises LockLostError if it was lost before, StoreError if the store does not answer: it is then given
        up in the background, or expires.
        """
        try:
            drive(self._release())
        except LockError:
            raise
        except BaseException:  # an interrupt, before it had begun
            self._abandon()
            raise

    def extend(self, seconds: Seconds) -> None:
        """Hold it at least that long from now, `max_hold` or not. Never shortens it.

        Raises LockLostError if it is lost, InvalidLockError if it was released.
        """
        drive(self._extend(check_ttl(seconds, "an extension")))

    def __enter__(self) -> Self:
        self._enter_block()
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
    """One name you hold: a lock, a reader's or writer's side of one, or permits of a semaphore."""

    def info(self) -> LockInfo | None:
        """Ask the store who holds the name now."""
        line = drive(self._engine.find(self.name))
        return _info.describe(line) if line else None


class MultiLockHandle(Held, Multiple):
    """Several names you hold: while one of them is lost, the whole is."""
