"""Leader elections, for threads."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Generator, Mapping
from typing import Any

from lockstead.blocking.guard import LockGuard
from lockstead.blocking.handle import LockHandle
from lockstead.core import lifecycle
from lockstead.core.checks import Seconds
from lockstead.core.engine import Engine
from lockstead.core.runtime import drive
from lockstead.primitives.election import (
    NOT_SEEN_YET,
    Candidacy,
    Contest,
    Leader,
    Leading,
    Seen,
    check_interval,
    identify,
)
from lockstead.primitives.handle import acquired
from lockstead.primitives.plans import Defaults


class Leadership(Leading, LockHandle):
    """A leader's handle. As a context manager it resigns at the end of its block."""

    def resign(self) -> None:
        """Resign: call `on_lost`, wait until it has ended, for one ttl at most, then release. Same as `release`.

        A call from a callback does not wait. Raises as `release` does.
        """
        self.release()


class _Lead(LockGuard[Leadership]):
    """A guard for a block that leads. The thread of its callbacks keeps a leadership alive after the block was left."""

    def __del__(self) -> None:
        """Resign the leadership of a block whose `__exit__` did not begin because of an interrupt."""
        for _, leadership in self._entered:
            leadership._abandon()


class Election(Contest[Leadership]):
    """An election: campaign by hand, for a block or in the background, or watch for changes of the leader."""

    def __init__(
        self,
        engine: Engine,
        name: str,
        defaults: Defaults,
        *,
        ttl: Seconds | None = None,
        grace: Seconds | None = None,
        metadata: Mapping[str, Any] | None = None,
        on_elected: Callable[[Leadership], object] | None = None,
        on_lost: Callable[[Leadership], object] | None = None,
    ) -> None:
        """See `DistributedLock.election` for the options."""
        super().__init__(
            engine,
            Leadership,
            name,
            defaults,
            ttl=ttl,
            grace=grace,
            metadata=metadata,
            on_elected=on_elected,
            on_lost=on_lost,
        )

    def lead(self, timeout: Seconds | None = None) -> LockGuard[Leadership]:
        """Campaign, lead for a block, and resign at its end: ``with election.lead():``.

        If leadership was lost meanwhile, the end of the block raises LockLostError.
        `timeout`: how long to wait; None waits without limit, 0 does not wait.
        """
        return _Lead(self._plan_within(timeout), (self.name,), self._engine, self._nominate)

    def campaign(self, timeout: Seconds | None = None) -> Leadership:
        """Wait to be elected, and return the leadership.

        `timeout`: how long to wait; None waits without limit, 0 does not wait. Raises LockAcquisitionError after that.
        """
        return drive(acquired(self._nominate(self._engine), self._plan_within(timeout)))

    def start(self) -> None:
        """Campaign in the background until `stop`: campaign, lead until leadership is lost, and campaign again.

        Does nothing if it is running already.
        """
        try:
            atexit.register(self._exit)
            self._start()
        except BaseException:
            if self._candidacy is None:
                atexit.unregister(self._exit)
            raise

    def stop(self) -> None:
        """Stop campaigning. A leader resigns: `on_lost` has ended before another candidate can be elected.

        A call from a callback does not wait.
        """
        drive(self._stop())

    def leader(self) -> Leader | None:
        """Ask the store for the current leader; None if there is none."""
        return drive(self._leader())

    def watch(self, interval: Seconds = 1.0) -> Generator[Leader | None, None, None]:
        """Yield the leader, now and after every change; None while there is none.

        It polls the store every `interval` seconds, so it may miss a leader that led for less. During an outage it
        waits.
        """
        pause = check_interval(interval)
        seen: Seen = NOT_SEEN_YET
        while True:
            leader = drive(self._change(seen, pause))
            yield leader
            seen = identify(leader)

    def _ended(self, candidacy: Candidacy[Leadership]) -> None:
        super()._ended(candidacy)
        if self._candidacy is None:
            atexit.unregister(self._exit)

    def _exit(self) -> None:
        drive(self._stop(lifecycle.EXIT_BUDGET))
