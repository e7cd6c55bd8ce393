"""Wake-ups for the waiting places of one store object."""

from __future__ import annotations

from lockstead.core.runtime import Event, Runtime


class WaiterEvents:
    """An event for every place that may have to wait, created before its join is sent.

    So a wake-up that arrives between the store's answer and the wait is kept, not lost.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._events: dict[str, Event] = {}

    def open(self, owner: str) -> None:
        self._events[owner] = self._runtime.event()

    def close(self, owner: str) -> None:
        self._events.pop(owner, None)

    def notify(self, owner: str) -> bool:
        """Wake the place's waiter; return whether it is one of ours."""
        event = self._events.get(owner)
        if event is None:
            return False
        event.set()
        return True

    def notify_all(self) -> None:
        """Wake every waiter: a wake-up may have been missed."""
        for event in list(self._events.values()):
            event.set()

    async def wait(self, owner: str, timeout: float) -> bool:
        event = self._events.get(owner)
        if event is None:
            await self._runtime.sleep(timeout)
            return False
        return await event.wait(timeout)
