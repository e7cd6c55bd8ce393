"""What both kinds of guard share: the plan to acquire, and the handles of entered blocks."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, TypeVar

from lockstead.core.checks import Seconds
from lockstead.core.runtime import Runtime
from lockstead.errors import InvalidInputError, InvalidLockError
from lockstead.primitives.handle import Handle
from lockstead.primitives.naming import Naming, is_per_call, name_for_calls
from lockstead.primitives.plans import Plan

H = TypeVar("H", bound=Handle)


class Guard(Generic[H]):
    """Acquires a plan for a block, around every call of a function, or by hand. Threads and tasks may share a guard."""

    def __init__(self, plan: Plan, namings: Sequence[Naming], acquire: Callable[[Plan], Any], runtime: Runtime) -> None:
        self._plan = plan
        self._block_plan = plan._replace(is_scoped=True)
        self._namings = namings
        self._acquire = acquire
        self._context = runtime.context
        self._mutex = runtime.mutex()
        self._names_calls = any(map(callable, namings))
        self._entered: dict[Hashable, list[H]] = {}

    def _enter(self, handle: H) -> H:
        with self._mutex:
            self._entered.setdefault(self._context(), []).append(handle)
        return handle

    def _leave(self, leaving: list[H]) -> H:
        """Remove and return the handle of the block that ends; it is added to `leaving` before it is removed.

        A generator's block may end in another thread or task than the one that began it. Then the oldest handle is
        taken: all handles of a guard are of one kind, so as many stay held as blocks are open.
        """
        with self._mutex:
            own = self._context()
            key = own if own in self._entered else next(iter(self._entered), None)
            if key is None:
                msg = f"{self!r} was exited more often than it was entered"
                raise InvalidLockError(msg)
            handle = self._entered[key][-1 if key == own else 0]
            leaving.append(handle)
            self._remove(handle)
        return handle

    def _remove(self, handle: H) -> None:
        with self._mutex:
            for key, handles in list(self._entered.items()):
                if handle in handles:
                    handles.remove(handle)
                if not handles:
                    del self._entered[key]

    def _abandon(self, handle: H) -> None:
        """Release a block's handle in the background: an interrupt came before `__exit__` was complete."""
        self._remove(handle)
        handle._abandon()

    def _plan_within(self, timeout: Seconds | None) -> Plan:
        self._check_named()
        return self._plan if timeout is None else self._plan.within(timeout)

    def _plan_block(self) -> Plan:
        self._check_named()
        return self._block_plan

    def _check_named(self) -> None:
        if self._names_calls:
            msg = f"{self!r} takes its name from each call: use it as a decorator only"
            raise InvalidInputError(msg)

    def _plan_calls(self, function: Callable[..., Any]) -> Callable[..., Plan]:
        """Make a function that plans one call, from whose arguments the names may be made."""
        if not any(map(is_per_call, self._namings)):
            return lambda *_, **__: self._block_plan
        named = [name_for_calls(naming, function) for naming in self._namings]
        return lambda *args, **kwargs: self._block_plan.of(name(*args, **kwargs) for name in named)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {', '.join(ask.name for ask in self._plan.asks)}>"
