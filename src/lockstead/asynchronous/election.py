"""Leader elections, for asyncio."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

from lockstead.asynchronous.guard import AsyncLockGuard
from lockstead.asynchronous.handle import AsyncLockHandle
from lockstead.core.checks import Seconds
from lockstead.core.engine import Engine
from lockstead.primitives.candidate import CandidateElection, Running, Term
from lockstead.primitives.election import NOT_SEEN_YET, Leader, Seen, check_interval, identify
from lockstead.primitives.plans import Defaults


class AsyncLeadership(Term, AsyncLockHandle):
    """A leader's handle. As a context manager it resigns at the end of its block, and cancels the block if lost."""

    async def resign(self) -> None:
        """Resign: call `on_lost`, wait until it has ended, for one ttl at most, then release. Same as `release`.

        A call from a callback does not wait. Raises as `release` does.
        """
        await self.release()


class _AsyncLead(AsyncLockGuard[AsyncLeadership]):
    """A guard for a block that leads. A term that runs keeps a leadership alive after the block was left."""

    def __del__(self) -> None:
        """Resign the leadership of a block whose end did not begin because of an interrupt."""
        for _, leadership in self._entered:
            if leadership._is_running:
                leadership._resign()


class AsyncElection(CandidateElection[AsyncLeadership]):
    """An election: campaign by hand, for a block or in the background, or observe who leads."""

    def __init__(
        self,
        engine: Engine,
        running: Running,
        name: str,
        defaults: Defaults,
        *,
        ttl: Seconds | None = None,
        grace: Seconds | None = None,
        metadata: Mapping[str, Any] | None = None,
        on_elected: Callable[[AsyncLeadership], object] | None = None,
        on_lost: Callable[[AsyncLeadership], object] | None = None,
    ) -> None:
        """See `AsyncDistributedLock.election` for the options."""
        super().__init__(
            engine,
            AsyncLeadership,
            running,
            name,
            defaults,
            ttl=ttl,
            grace=grace,
            metadata=metadata,
            on_elected=on_elected,
            on_lost=on_lost,
            leave_at_exit=False,
        )

    def lead(self, timeout: Seconds | None = None) -> AsyncLockGuard[AsyncLeadership]:
        """Campaign, lead for a block, and resign at its end: ``async with election.lead():``.

        If leadership is lost, the block is cancelled and raises LockLostError.
        `timeout`: how long to wait; None waits without limit, 0 does not wait.
        """
        return _AsyncLead(self._plan_within(timeout), (self.name,), self._engine, self._new)

    async def campaign(self, timeout: Seconds | None = None) -> AsyncLeadership:
        """Wait to be elected, and return the leadership.

        `timeout`: how long to wait; None waits without limit, 0 does not wait. Raises LockAcquisitionError after that.
        """
        return await self._campaign(timeout)

    def start(self) -> None:
        """Campaign in the background until `stop`: campaign, lead until leadership is lost, and campaign again.

        Does nothing if it is running already.
        """
        self._start()

    async def stop(self) -> None:
        """Stop campaigning. A leader resigns: `on_lost` has ended before another candidate can be elected.

        A call from a callback does not wait.
        """
        await self._stop()

    async def leader(self) -> Leader | None:
        """Ask the store for the current leader; None if there is none."""
        return await self._leader()

    async def observe(self, interval: Seconds = 1.0) -> AsyncGenerator[Leader | None, None]:
        """Yield the leader, now and after every change; None while there is none.

        It polls the store every `interval` seconds, so it may miss a leader that led for less. During an outage it
        waits.
        """
        pause = check_interval(interval)
        seen: Seen = NOT_SEEN_YET
        while True:
            leader = await self._next_leader(seen, pause)
            yield leader
            seen = identify(leader)
