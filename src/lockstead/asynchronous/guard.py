"""Guards: locks for blocks and for decorated functions, for asyncio."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any, Never, ParamSpec, TypeVar

from lockstead.asynchronous.handle import AsyncHeld
from lockstead.core.checks import Seconds
from lockstead.core.refusals import Busy
from lockstead.primitives.callables import check_coroutine
from lockstead.primitives.guard import Guard
from lockstead.primitives.handle import acquired, acquired_unless_busy
from lockstead.primitives.options import unknown_option

P = ParamSpec("P")
T = TypeVar("T")
H = TypeVar("H", bound=AsyncHeld)


class AsyncLockGuard(Guard[H]):
    """A lock to acquire: for an `async with` block, around every call of a decorated function, or by hand.

    Every block and every call acquires it anew; tasks may share a guard.
    """

    async def acquire(self, timeout: Seconds | None = None, **unknown: Never) -> H:
        """Acquire it, waiting in the queue while it is not free; return the handle.

        It is renewed until `release`, of the guard or of the handle. `timeout`: how long to wait, 0 does not wait; None
        uses the guard's. Raises LockAcquisitionError after that.
        """
        if unknown:
            raise unknown_option(self.acquire, unknown)
        plan = self._plan_within(timeout)
        self._forget_ended()
        handle = await acquired(self._new(self._engine), plan)
        self._acquired.append((asyncio.current_task(), handle))
        return handle

    async def try_acquire(self) -> H | None:
        """Acquire it if it is free, else return None. Never waits for a holder."""
        plan = self._plan_within(0)
        self._forget_ended()
        handle = await acquired_unless_busy(self._new(self._engine), plan)
        if handle is not None:
            self._acquired.append((asyncio.current_task(), handle))
        return handle

    async def release(self) -> None:
        """Release what was acquired last by `acquire` or `try_acquire`: by this thread or task, else by another.

        Raises InvalidLockError if nothing is held, and whatever the handle's `release` raises.
        """
        taken: list[H] = []
        self._take_acquired(asyncio.current_task(), taken)
        await taken[0].release()

    async def __aenter__(self) -> H:
        if self._names_calls:
            self._check_named()
        handle = self._new(self._engine)
        try:
            outcome = await handle._acquire(self._plan, is_scoped=True)
            if not isinstance(outcome, Busy):
                self._entered.append((asyncio.current_task(), handle))
                handle._enter_body()
        except BaseException:  # for a block that was not entered, Python calls no exit
            self._entered = [entry for entry in self._entered if entry[1] is not handle]
            handle._abandon()
            raise
        if isinstance(outcome, Busy):
            raise outcome.error(self._engine.holder_id)
        return handle

    def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Coroutine[Any, Any, None]:
        entry = self._open_block(asyncio.current_task())
        self._entered.remove(entry)
        return entry[1].__aexit__(kind, error, trace)

    def __call__(self, function: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        """Hold it during every call. In a name, ``{parameter}`` stands for the argument of that call."""
        check_coroutine(function)
        plan_call = self._plan_calls(function)

        @functools.wraps(function)
        async def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
            async with await acquired(self._new(self._engine), plan_call(*args, **kwargs), is_scoped=True):
                return await function(*args, **kwargs)

        return guarded
