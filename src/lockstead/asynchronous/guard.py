"""Guards: locks for blocks and for decorated functions, for asyncio."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from lockstead.asynchronous.handle import AsyncHeld
from lockstead.core.checks import Seconds
from lockstead.errors import InvalidInputError, LockAcquisitionError
from lockstead.primitives.callables import check_decorated, makes_coroutines, title
from lockstead.primitives.guard import Guard
from lockstead.primitives.plans import Plan

P = ParamSpec("P")
T = TypeVar("T")
H = TypeVar("H", bound=AsyncHeld)


class AsyncLockGuard(Guard[H]):
    """A lock to acquire: for an `async with` block, around every call of a decorated function, or by hand.

    Every block and every call acquires it anew; tasks may share a guard.
    """

    async def acquire(self, timeout: Seconds | None = None) -> H:
        """Acquire it, waiting in the queue while it is not free; return the handle.

        `timeout`: how long to wait, 0 does not wait; None uses the guard's. Raises LockAcquisitionError after that.
        """
        return await self._acquire(self._plan_within(timeout))  # type: ignore[no-any-return]

    async def try_acquire(self) -> H | None:
        """Acquire it if it is free, else return None. Never waits for a holder."""
        return await unless_busy(self._acquire, self._plan_within(0))

    async def __aenter__(self) -> H:
        handle: H | None = None
        try:
            handle = await self._acquire(self._plan_block())
            self._enter(handle)
            return await handle.__aenter__()
        except BaseException as error:  # an interrupt: for a block that was not entered, Python calls no exit
            if handle is not None:
                self._remove(handle)
                await handle.__aexit__(type(error), error, error.__traceback__)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._leave([]).__aexit__(kind, error, trace)

    def __call__(self, function: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        """Hold it during every call. In a name, ``{parameter}`` stands for the argument of that call."""
        check_coroutine(function)
        plan_call = self._plan_calls(function)

        @functools.wraps(function)
        async def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
            async with await self._acquire(plan_call(*args, **kwargs)):
                return await function(*args, **kwargs)

        return guarded


def check_coroutine(function: Callable[..., object]) -> None:
    """Refuse a function that would block the loop, or whose work begins after the call has returned."""
    check_decorated(function)
    if not makes_coroutines(function):
        msg = f"{title(function)} is not a coroutine function: use DistributedLock"
        raise InvalidInputError(msg)


async def unless_busy(acquire: Callable[[Plan], Awaitable[H]], plan: Plan) -> H | None:
    """Acquire what is planned without waiting; None if it is held."""
    try:
        return await acquire(plan)
    except LockAcquisitionError as refusal:
        if not refusal.holder:
            raise
        return None
