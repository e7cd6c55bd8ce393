# Generated from src/lockstead/asynchronous/recipes.py by `python tools/unasync.py`: edit that one.
"""Singleton jobs and idempotency keys, for threads."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from lockstead.blocking.handle import LockHandle
from lockstead.core.engine import Engine
from lockstead.core.keeper import log
from lockstead.core.outage import reason
from lockstead.core.runtime import drive
from lockstead.errors import StoreError
from lockstead.primitives import once
from lockstead.primitives.callables import check_plain, check_work, returned
from lockstead.primitives.guard import Guard
from lockstead.primitives.handle import acquired_unless_busy
from lockstead.primitives.naming import Naming
from lockstead.primitives.once import Outcome
from lockstead.primitives.plans import Plan

P = ParamSpec("P")
T = TypeVar("T")


class Singleton(Guard[LockHandle]):
    """A job that many processes start and one runs: a decorator, or `try_acquire` by hand."""

    def try_acquire(self) -> LockHandle | None:
        """Acquire the job's name; None if it is held, or still reserved by `at_least`."""
        return drive(acquired_unless_busy(LockHandle(self._engine), self._plan_within(None)))

    def __call__(self, function: Callable[P, T]) -> Callable[P, T | None]:
        """Run the function, or return None at once if the name is held, or still reserved by `at_least`."""
        check_plain(function)
        plan_call = self._plan_calls(function)

        @functools.wraps(function)
        def alone(*args: P.args, **kwargs: P.kwargs) -> T | None:
            plan = plan_call(*args, **kwargs)
            handle = drive(acquired_unless_busy(LockHandle(self._engine), plan, is_scoped=True))
            if handle is None:
                return None
            with handle:
                return returned(function(*args, **kwargs))

        return alone


class Once(Guard[LockHandle]):
    """Work that runs once per key, and whose result is stored for a period: a decorator, or `run` by hand."""

    def __init__(self, plan: Plan, naming: Naming, engine: Engine, period: float) -> None:
        super().__init__(plan, (naming,), engine, LockHandle)
        self._period = period

    def run(self, function: Callable[[], T]) -> Outcome[T]:
        """Run `function`, or return the stored outcome; wait while another call is running it.

        If `function` raises, it is not done: the next call runs it. Raises LockAcquisitionError after `timeout`.
        """
        check_work(function)
        return self._run(self._plan_within(None), function)

    def outcome(self) -> Outcome[Any] | None:
        """Look up the stored outcome; None if it is not done, or expired."""
        return drive(once.find(self._engine, self._plan_within(None).asks[0].name))

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        """Run the function once for every key; other calls return its stored result."""
        check_plain(function)
        plan_call = self._plan_calls(function)

        @functools.wraps(function)
        def only_once(*args: P.args, **kwargs: P.kwargs) -> T:
            plan = plan_call(*args, **kwargs)
            return (self._run(plan, lambda: function(*args, **kwargs))).value

        return only_once

    def _run(self, plan: Plan, function: Callable[[], T]) -> Outcome[T]:
        handle = drive(once.begin(self._engine, self._new, plan))
        if isinstance(handle, Outcome):
            return handle
        is_done = False
        try:
            with handle:
                value = returned(function())
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
