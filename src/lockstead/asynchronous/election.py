"""Elections, for tasks."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Unpack

from lockstead.asynchronous.guard import AsyncLockGuard
from lockstead.asynchronous.handle import AsyncLockHandle
from lockstead.core.checks import Seconds
from lockstead.core.engine import Engine
from lockstead.primitives.election import (
    NOT_SEEN_YET,
    Contest,
    ElectionOptions,
    Leader,
    Leading,
    Seen,
    check_interval,
    identify,
)
from lockstead.primitives.plans import Defaults


class AsyncLeadership(Leading, AsyncLockHandle):
    """The lead, once you have it. As a context manager it resigns at its block's end, and cancels the block if lost."""

    async def resign(self) -> None:
        """Give the lead up: `on_lost` is called and has ended first, for which there is one ttl. Same as `release`.

        Called by a callback it does not wait. Raises as `release` does.
        """
        await self.release()


class AsyncElection(Contest[AsyncLeadership]):
    """Who leads of all who stand under one name: stand by hand, for a block or in the background, or watch."""

    def __init__(self, engine: Engine, name: str, defaults: Defaults, **options: Unpack[ElectionOptions]) -> None:
        super().__init__(engine, AsyncLeadership, name, defaults, **options)

    def lead(self, timeout: Seconds | None = None) -> AsyncLockGuard[AsyncLeadership]:
        """Campaign, lead for a block, and resign at its end; lost, the block is cancelled, and raises LockLostError."""
        return AsyncLockGuard(self._plan_within(timeout), (self.name,), self._campaign, self._runtime)

    async def campaign(self, timeout: Seconds | None = None) -> AsyncLeadership:
        """Wait to be elected. Raises LockAcquisitionError after `timeout`, if given."""
        return await self._campaign(self._plan_within(timeout))

    def start(self) -> None:
        """Stand in the background until stopped: campaign, lead until that is lost, and campaign again.

        While it does, this does nothing.
        """
        self._start()

    async def stop(self) -> None:
        """Stand no more. Whoever leads resigns: `on_lost` has ended before somebody else is let in.

        Called by a callback it does not wait.
        """
        await self._stop()

    async def leader(self) -> Leader | None:
        """Ask the store who leads; None if nobody does."""
        return await self._leader()

    async def watch(self, interval: Seconds = 1.0) -> AsyncGenerator[Leader | None, None]:
        """Tell who leads, now and whenever that has changed; None is for nobody.

        It asks the store every `interval` seconds, so it may miss who led for less. An outage is waited out.
        """
        pause = check_interval(interval)
        seen: Seen = NOT_SEEN_YET
        while True:
            leader = await self._change(seen, pause)
            yield leader
            seen = identify(leader)
