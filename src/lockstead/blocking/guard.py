"""Guards: locks for blocks, for decorated functions, and by hand, for threads."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from inspect import CO_GENERATOR
from types import TracebackType
from typing import Never, ParamSpec, TypeVar

from lockstead.blocking.handle import Held
from lockstead.core.checks import Seconds
from lockstead.core.refusals import Busy
from lockstead.core.runtime import drive
from lockstead.errors import LockError, LockLostError, StoreError
from lockstead.primitives.callables import check_plain, returned
from lockstead.primitives.guard import Entry, Guard
from lockstead.primitives.handle import acquired, acquired_unless_busy
from lockstead.primitives.options import unknown_option

P = ParamSpec("P")
T = TypeVar("T")
H = TypeVar("H", bound=Held)


class LockGuard(Guard[H]):
    """A lock to acquire: for a `with` block, around every call of a decorated function, or by `acquire` and `release`.

    Every block and every call acquires it anew; threads may share a guard.
    """

    def acquire(self, timeout: Seconds | None = None, **unknown: Never) -> H:
        """Acquire it, waiting in the queue while it is not free; return the handle.

        It is renewed until `release`, of the guard or of the handle. `timeout`: how long to wait, 0 does not wait; None
        uses the guard's. Raises LockAcquisitionError after that.
        """
        if unknown:
            raise unknown_option(self.acquire, unknown)
        plan = self._plan_within(timeout)
        self._forget_ended()
        entry: Entry[H] = (threading.get_ident(), self._new(self._engine))
        try:
            drive(acquired(entry[1], plan))
            self._acquired.append(entry)
        except BaseException:
            self._abandon(entry)
            raise
        return entry[1]

    def try_acquire(self) -> H | None:
        """Acquire it if it is free, else return None. Never waits for a holder."""
        plan = self._plan_within(0)
        self._forget_ended()
        entry: Entry[H] = (threading.get_ident(), self._new(self._engine))
        try:
            handle = drive(acquired_unless_busy(entry[1], plan))
            if handle is not None:
                self._acquired.append(entry)
        except BaseException:
            self._abandon(entry)
            raise
        return handle

    def release(self) -> None:
        """Release what was acquired last by `acquire` or `try_acquire`: by this thread or task, else by another.

        Raises InvalidLockError if nothing is held, and whatever the handle's `release` raises.
        """
        taken: list[H] = []
        try:
            self._take_acquired(threading.get_ident(), taken)
            taken[0].release()
        except LockError:
            raise
        except BaseException:  # an interrupt before the release had begun
            for handle in taken:
                handle._abandon()
            raise

    def _abandon(self, entry: Entry[H]) -> None:
        """Release what an interrupted call has acquired."""
        if entry in self._acquired:
            self._acquired.remove(entry)
        entry[1]._abandon()

    def __enter__(self) -> H:
        if self._names_calls:
            self._check_named()
        handle = self._new(self._engine)
        entry: Entry[H] = (threading.get_ident(), handle)
        try:
            outcome = drive(handle._acquire(self._plan, is_scoped=True))
            busy = outcome if isinstance(outcome, Busy) else None  # here: an interrupt may come after each call
            if busy is None:
                self._entered.append(entry)
                if not sys._getframe(1).f_code.co_flags & CO_GENERATOR:
                    handle._claim.opened_by = entry[0]
        except BaseException:  # for a block that was not entered, Python calls no exit
            if entry in self._entered:
                self._entered.remove(entry)
            handle._abandon()
            raise
        if busy is not None:
            raise busy.error(self._engine.holder_id)
        return handle

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        entry: Entry[H] | None = None
        try:
            entry = self._entered[-1] if self._entered else None
            if entry is None or entry[0] != threading.get_ident():
                entry = self._open_block(threading.get_ident())
            handle = entry[1]
            self._entered.remove(entry)
            if not handle._released:
                handle._released = True
                drive(handle._release())
        except (LockLostError, StoreError) as failure:
            if error is None:
                raise
            error.add_note(str(failure))
        except LockError:
            raise
        except BaseException:
            entry = entry or self._open_block(threading.get_ident())
            if entry in self._entered:
                self._entered.remove(entry)
            entry[1]._abandon()
            raise

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        """Hold it during every call. In a name, ``{parameter}`` stands for the argument of that call."""
        check_plain(function)
        plan_call = self._plan_calls(function)

        @functools.wraps(function)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
            with drive(acquired(self._new(self._engine), plan_call(*args, **kwargs), is_scoped=True)):
                return returned(function(*args, **kwargs))

        return guarded
