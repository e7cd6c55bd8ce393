"""Wake-ups for the waiting places of one store object."""

from __future__ import annotations

from lockstead.core.runtime import Bell, Runtime


class WaiterEvents:
    """A bell for every place that may have to wait, hung up before the place is asked for.

    So a wake-up that arrives between the store's answer and the wait is kept, not lost.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._bells: dict[str, Bell] = {}

    def open(self, owner: str) -> None:
        self._bells[owner] = self._runtime.bell()

    def close(self, owner: str) -> None:
        self._bells.pop(owner, None)

    def ring(self, owner: str) -> bool:
        """Wake the place's waiter and say whether it is one of ours."""
        bell = self._bells.get(owner)
        if bell is None:
            return False
        bell.ring()
        return True

    def ring_all(self) -> None:
        """Wake everybody: something may have been missed."""
        for bell in list(self._bells.values()):
            bell.ring()

    async def wait(self, owner: str, timeout: float) -> bool:
        bell = self._bells.get(owner)
        if bell is None:
            await self._runtime.sleep(timeout)
            return False
        return await bell.wait(timeout)
