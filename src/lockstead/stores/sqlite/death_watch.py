"""While places wait, look whether the process of a place ahead of them has died."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from lockstead.core.runtime import Runtime
from lockstead.errors import StoreError

LOOK_EVERY = 0.04
"""Seconds between two looks. Each costs a system call per process that is waited for, however many wait for it."""


class DeathWatch:
    """One loop for all waiters of a store object. It runs only while one of them waits for another process."""

    def __init__(
        self, runtime: Runtime, is_dead: Callable[[str], bool], remove_dead: Callable[[str], Awaitable[None]]
    ) -> None:
        """`remove_dead` removes the places of dead processes from the line of that name."""
        self._runtime = runtime
        self._is_dead = is_dead
        self._remove_dead = remove_dead
        self._mutex = runtime.mutex()
        self._waiters: dict[str, dict[str, str]] = {}
        """By the address of a process: the owners that wait for it, and each one's name."""
        self._is_running = False

    def add(self, name: str, owner: str, addresses: Sequence[str]) -> None:
        """Watch these processes until `discard`."""
        with self._mutex:
            for address in addresses:
                self._waiters.setdefault(address, {})[owner] = name
            if not self._waiters or self._is_running:
                return
            self._is_running = True
        try:
            self._runtime.spawn(self._run, "lockstead-deaths", self._ended)
        except BaseException as error:
            self._ended()
            if not isinstance(error, RuntimeError):  # no thread can be started: the places expire
                raise

    def discard(self, owner: str, addresses: Sequence[str]) -> None:
        with self._mutex:
            for address in addresses:
                waiters = self._waiters.get(address, {})
                waiters.pop(owner, None)
                if not waiters:
                    self._waiters.pop(address, None)

    def clear(self) -> None:
        """Watch nothing any more: in a forked child, in which greenlets go on."""
        self._waiters = {}

    async def _run(self) -> None:
        try:
            while self._goes_on():
                await self._runtime.sleep(LOOK_EVERY)
                for address in tuple(self._waiters):
                    if self._is_dead(address):
                        await self._report(address)
        except BaseException:
            self._ended()
            raise

    async def _report(self, address: str) -> None:
        """Have the dead process's places removed; after an error, at the next look."""
        waiters = self._waiters.get(address, {})
        with suppress(StoreError):
            for name in set(waiters.values()):
                await self._remove_dead(name)
            for owner in tuple(waiters):
                self.discard(owner, [address])

    def _goes_on(self) -> bool:
        with self._mutex:
            self._is_running = bool(self._waiters)
            return self._is_running

    def _ended(self) -> None:
        self._is_running = False
