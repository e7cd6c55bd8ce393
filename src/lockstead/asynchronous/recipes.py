"""Singleton jobs and idempotency keys, for asyncio."""

from __future__ import annotations

import functools
import json
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from lockstead.asynchronous.handle import AsyncLockHandle
from lockstead.core.engine import Engine
from lockstead.core.keeper import log
from lockstead.core.outage import reason
from lockstead.errors import StoreError
from lockstead.primitives import once
from lockstead.primitives.callables import check_async_work, check_coroutine
from lockstead.primitives.guard import Guard
from lockstead.primitives.handle import acquired_unless_busy
from lockstead.primitives.naming import Naming
from lockstead.primitives.once import Outcome
from lockstead.primitives.plans import Plan

P = ParamSpec("P")
T = TypeVar("T")


class AsyncSingleton(Guard[AsyncLockHandle]):
    """A job that many processes start and one runs: a decorator, or `try_acquire` by hand."""

    async def try_acquire(self) -> AsyncLockHandle | None:
        """Acquire the job's name; None if it is held, or still reserved by `at_least`."""
        return await acquired_unless_busy(AsyncLockHandle(self._engine), self._plan_within(None))

    def __call__(self, function: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[Any, Any, T | None]]:
        """Run the function, or return None at once if the name is held, or still reserved by `at_least`."""
        check_coroutine(function)
        plan_call = self._plan_calls(function)

        @functools.wraps(function)
        async def alone(*args: P.args, **kwargs: P.kwargs) -> T | None:
            plan = plan_call(*args, **kwargs)
            handle = await acquired_unless_busy(AsyncLockHandle(self._engine), plan, is_scoped=True)
            if handle is None:
                return None
            async with handle:
                return await function(*args, **kwargs)

        return alone


class AsyncOnce(Guard[AsyncLockHandle]):
    """Work that runs once per key, and whose result is stored for a period: a decorator, or `run` by hand."""

    def __init__(self, plan: Plan, naming: Naming, engine: Engine, period: float) -> None:
        super().__init__(plan, (naming,), engine, AsyncLockHandle)
        self._period = period

    async def run(self, function: Callable[[], Awaitable[T]]) -> Outcome[T]:
        """Run `function`, or return the stored outcome; wait while another call is running it.

        If `function` raises, it is not done: the next call runs it. Raises LockAcquisitionError after `timeout`.
        """
        check_async_work(function)
        return await self._run(self._plan_within(None), function)

    async def outcome(self) -> Outcome[Any] | None:
        """Look up the stored outcome; None if it is not done, or expired."""
        return await once.find(self._engine, self._plan_within(None).asks[0].name)

    def __call__(self, function: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        """Run the function once for every key; other calls return its stored result."""
        check_coroutine(function)
        plan_call = self._plan_calls(function)

        @functools.wraps(function)
        async def only_once(*args: P.args, **kwargs: P.kwargs) -> T:
            plan = plan_call(*args, **kwargs)
            return (await self._run(plan, lambda: function(*args, **kwargs))).value

        return only_once

    async def _run(self, plan: Plan, function: Callable[[], Awaitable[T]]) -> Outcome[T]:
        handle = await once.begin(self._engine, self._new, plan)
        if isinstance(handle, Outcome):
            return handle
        is_done = False
        try:
            async with handle:
                value = await function()
                is_done = True
                handle._reserve_name(self._period, json.dumps(once.OUTCOME_NOT_STORED))
                handle._reserve_name(self._period, once.encode(value, handle.name))
        except StoreError as error:
            if not is_done or not error.transient:
                raise
            log.warning(
                "%s: %r is done, but the store has not confirmed its outcome (%s); retrying",
                self._engine.store.address,
                handle.name,
                reason(error, self._engine.store.address),
            )
        return Outcome(value, True, None)
