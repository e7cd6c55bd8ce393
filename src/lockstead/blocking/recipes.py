"""What threads do only one at a time, or only once."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from lockstead.blocking.guard import check_plain, unless_busy
from lockstead.blocking.handle import LockHandle
from lockstead.core.engine import Engine
from lockstead.core.keeper import log
from lockstead.core.runtime import drive
from lockstead.errors import StoreError
from lockstead.primitives import once
from lockstead.primitives.guard import Guard
from lockstead.primitives.naming import Naming
from lockstead.primitives.once import Outcome
from lockstead.primitives.plans import Plan

P = ParamSpec("P")
T = TypeVar("T")


class Singleton(Guard[LockHandle]):
    """A job that many start and one runs: a decorator, or something to try by hand."""

    def try_acquire(self) -> LockHandle | None:
        """Take the job, or return None if somebody has it, or had it just now."""
        return unless_busy(self._acquire, self._plan_within(None))

    def __call__(self, function: Callable[P, T]) -> Callable[P, T | None]:
        """Run the function if nobody else does, or did just now; else return None at once."""
        check_plain(function)
        plan_call = self._plan_calls(function)

        @functools.wraps(function)
        def alone(*args: P.args, **kwargs: P.kwargs) -> T | None:
            handle = unless_busy(self._acquire, plan_call(*args, **kwargs))
            if handle is None:
                return None
            with handle:
                return function(*args, **kwargs)

        return alone


class Once(Guard[LockHandle]):
    """Something that is done once, and whose outcome is remembered for a period: a decorator, or by hand."""

    def __init__(
        self, plan: Plan, naming: Naming, engine: Engine, acquire: Callable[[Plan], Any], period: float
    ) -> None:
        super().__init__(plan, (naming,), acquire, engine.runtime)
        self._engine = engine
        self._period = period

    def run(self, function: Callable[[], T]) -> Outcome[T]:
        """Do it, or learn what came of it when it was done, waiting for whoever is at it.

        What raises is not done: the next to come does it. Raises LockAcquisitionError if the wait takes too long.
        """
        return self._run(self._plan_block(), function)

    def outcome(self) -> Outcome[Any] | None:
        """Look up what came of it; None if it is not done, or forgotten."""
        return drive(once.find(self._engine, self._plan_within(None).asks[0].name))

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        """Do what the function does once for every name, and return what it returned then."""
        check_plain(function)
        plan_call = self._plan_calls(function)

        @functools.wraps(function)
        def only_once(*args: P.args, **kwargs: P.kwargs) -> T:
            plan = plan_call(*args, **kwargs)
            return (self._run(plan, lambda: function(*args, **kwargs))).value

        return only_once

    def _run(self, plan: Plan, function: Callable[[], T]) -> Outcome[T]:
        handle = drive(once.begin(self._engine, self._begin, plan))
        if isinstance(handle, Outcome):
            return handle
        is_done = False
        try:
            with handle:
                value = function()
                is_done = True
                handle._reserve_name(self._period, json.dumps(once.UNKEPT))
                handle._reserve_name(self._period, once.encode(value, handle.name))
        except StoreError as error:
            if not is_done or not error.transient:
                raise
            log.warning("%r is done; the store has not said that it remembers it: %s", handle.name, error)
        return Outcome(value, True, None)

    async def _begin(self, plan: Plan) -> LockHandle:
        return self._acquire(plan)  # type: ignore[no-any-return]
