"""Wake-ups for the waiting places of one store object."""

from __future__ import annotations

from lockstead.core.runtime import Event, Runtime


class WaiterEvents:
    """Wake-ups for every place that may have to wait, registered before its join is sent.

    So a wake-up that arrives between the store's answer and the wait is kept, not lost. An event exists only while
    its place is waited for: most never are. Each change is one operation of a set or a dictionary: any thread may wake.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._places: set[str] = set()
        self._woken: set[str] = set()
        self._events: dict[str, Event] = {}

    def open(self, owner: str) -> None:
        self._places.add(owner)

    def close(self, owner: str) -> None:
        self._places.discard(owner)
        self._woken.discard(owner)

    def has_places(self) -> bool:
        return bool(self._places)

    def notify(self, owner: str) -> bool:
        """Wake the place's waiter; return whether it is one of ours."""
        if owner not in self._places:
            return False
        self._woken.add(owner)
        if owner not in self._places:  # closed meanwhile by another thread
            self._woken.discard(owner)
        if (event := self._events.get(owner)) is not None:
            event.set()
        return True

    async def wait(self, owner: str, timeout: float) -> bool:
        event = self._events[owner] = self._runtime.event()  # before the check: no later wake-up is missed
        try:
            if owner not in self._woken:
                await event.wait(timeout)
        finally:
            self._events.pop(owner, None)
        try:
            self._woken.remove(owner)
        except KeyError:
            return False
        return True
