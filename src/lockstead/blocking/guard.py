"""Guards: locks for blocks and for decorated functions, for threads."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import TracebackType
from typing import ParamSpec, TypeVar

from lockstead.blocking.handle import Held
from lockstead.core.checks import Seconds
from lockstead.errors import InvalidInputError, LockAcquisitionError, LockError
from lockstead.primitives.callables import check_decorated, makes_coroutines, title
from lockstead.primitives.guard import Guard
from lockstead.primitives.plans import Plan

P = ParamSpec("P")
T = TypeVar("T")
H = TypeVar("H", bound=Held)


class LockGuard(Guard[H]):
    """A lock to acquire: for a `with` block, around every call of a decorated function, or by hand.

    Every block and every call acquires it anew; threads may share a guard.
    """

    def acquire(self, timeout: Seconds | None = None) -> H:
        """Acquire it, waiting in the queue while it is not free; return the handle.

        `timeout`: how long to wait, 0 does not wait; None uses the guard's. Raises LockAcquisitionError after that.
        """
        return self._acquire(self._plan_within(timeout))  # type: ignore[no-any-return]

    def try_acquire(self) -> H | None:
        """Acquire it if it is free, else return None. Never waits for a holder."""
        return unless_busy(self._acquire, self._plan_within(0))

    def __enter__(self) -> H:
        handle: H | None = None
        try:
            handle = self._acquire(self._plan_block())
            self._enter(handle)
            return handle.__enter__()
        except BaseException as error:  # an interrupt: for a block that was not entered, Python calls no exit
            if handle is not None:
                self._remove(handle)
                handle.__exit__(type(error), error, error.__traceback__)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        leaving: list[H] = []
        try:
            self._leave(leaving).__exit__(kind, error, trace)
        except LockError:
            raise
        except BaseException:
            self._abandon(leaving[0] if leaving else self._leave(leaving))
            raise

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        """Hold it during every call. In a name, ``{parameter}`` stands for the argument of that call."""
        check_plain(function)
        plan_call = self._plan_calls(function)

        @functools.wraps(function)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
            with self._acquire(plan_call(*args, **kwargs)):
                return function(*args, **kwargs)

        return guarded


def check_plain(function: Callable[..., object]) -> None:
    """Refuse a function whose work begins after the call has returned."""
    check_decorated(function)
    check_callback(function)


def check_callback(function: Callable[..., object]) -> None:
    """Refuse a coroutine function: a blocking client cannot await it."""
    if makes_coroutines(function):
        msg = f"{title(function)} is a coroutine function: use AsyncDistributedLock"
        raise InvalidInputError(msg)


def unless_busy(acquire: Callable[[Plan], H], plan: Plan) -> H | None:
    """Acquire what is planned without waiting; None if it is held."""
    try:
        return acquire(plan)
    except LockAcquisitionError as refusal:
        if not refusal.holder:
            raise
        return None
