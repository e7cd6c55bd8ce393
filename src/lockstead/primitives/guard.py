"""What guards of both façades share: which handles of a guard are in use, and how decorated calls are named."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, TypeVar

from lockstead.core.checks import Seconds
from lockstead.core.engine import Engine
from lockstead.errors import InvalidInputError, InvalidLockError
from lockstead.primitives.handle import Handle
from lockstead.primitives.naming import Naming, is_per_call, name_for_calls
from lockstead.primitives.pickling import NotPickled
from lockstead.primitives.plans import Plan

H = TypeVar("H", bound=Handle)
Entry = tuple[Hashable, H]
"""The thread or task that acquired a handle, and the handle."""


class Guard(NotPickled, Generic[H]):
    """Acquires a plan for a block, around every call of a function, or by hand. Threads and tasks may share a guard."""

    def __init__(self, plan: Plan, namings: Sequence[Naming], engine: Engine, new: Callable[[Engine], H]) -> None:
        self._plan = plan
        self._namings = namings
        self._engine = engine
        self._new = new
        self._names_calls = any(map(callable, namings))
        self._entered: list[Entry[H]] = []
        """The blocks that are open."""
        self._acquired: list[Entry[H]] = []
        """What was acquired by hand: kept here, so that it is renewed until its release."""

    def _forget_ended(self) -> None:
        """Keep no handle that was released by itself, or is lost."""
        for entry in list(self._acquired):
            if not entry[1].is_held:
                _discard(self._acquired, entry)

    def _take_acquired(self, context: Hashable, taken: list[H]) -> None:
        """Take what this thread or task acquired by hand last; else what another acquired first, and still holds.

        It is added to `taken` before it is removed: an interrupt may come in between.
        Raises InvalidLockError if there is none.
        """
        while True:
            entries = [entry for entry in list(self._acquired) if not entry[1]._released]
            own = [entry for entry in entries if entry[0] == context]
            entry = own[-1] if own else next((entry for entry in entries if entry[1].is_held), None)
            if entry is None:
                msg = f"{self!r} is not held: acquire it first"
                raise InvalidLockError(msg, name=self._plan.asks[0].name)
            taken.append(entry[1])
            if _discard(self._acquired, entry):
                return
            taken.pop()  # another thread was first

    def _open_block(self, context: Hashable) -> Entry[H]:
        """Return the block of this thread or task that ends now.

        A generator's block may end in another thread or task than the one that began it. Then the oldest one is
        taken: all handles of a guard are of one kind, so as many stay held as blocks are open.
        """
        entry = _find(self._entered, context)
        if entry is None:
            msg = f"{self!r} was exited more often than it was entered"
            raise InvalidLockError(msg, name=self._plan.asks[0].name)
        return entry

    def _plan_within(self, timeout: Seconds | None) -> Plan:
        self._check_named()
        return self._plan if timeout is None else self._plan.within(timeout)

    def _check_named(self) -> None:
        if self._names_calls:
            msg = f"{self!r} takes its name from each call: use it as a decorator only"
            raise InvalidInputError(msg)

    def _plan_calls(self, function: Callable[..., Any]) -> Callable[..., Plan]:
        """Make a function that plans one call, from whose arguments the names may be made."""
        if not any(map(is_per_call, self._namings)):
            return lambda *_, **__: self._plan
        named = [name_for_calls(naming, function) for naming in self._namings]
        return lambda *args, **kwargs: self._plan.of(name(*args, **kwargs) for name in named)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {', '.join(ask.name for ask in self._plan.asks)}>"


def _find(entries: Sequence[Entry[H]], context: Hashable) -> Entry[H] | None:
    """Find the latest entry of this thread or task, else the oldest of any."""
    found = list(entries)  # other threads add and remove meanwhile
    own = next((entry for entry in reversed(found) if entry[0] == context), None)
    return own or next(iter(found), None)


def _discard(entries: list[Entry[H]], entry: Entry[H]) -> bool:
    """Remove an entry; False if another thread has done so."""
    try:
        entries.remove(entry)
    except ValueError:
        return False
    return True
