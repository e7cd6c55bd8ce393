"""Elections, for threads."""

from __future__ import annotations

import atexit
from collections.abc import Generator
from typing import Unpack

from lockstead.blocking.guard import LockGuard, check_callback
from lockstead.blocking.handle import LockHandle
from lockstead.core import lifecycle
from lockstead.core.checks import Seconds
from lockstead.core.engine import Engine
from lockstead.core.runtime import drive
from lockstead.primitives.election import (
    NOT_SEEN_YET,
    Candidacy,
    Contest,
    ElectionOptions,
    Leader,
    Leading,
    Seen,
    check_interval,
    identify,
)
from lockstead.primitives.plans import Defaults


class Leadership(Leading, LockHandle):
    """The lead, once you have it. As a context manager it resigns at the end of its block."""

    def resign(self) -> None:
        """Give the lead up: `on_lost` is called and has ended first, for which there is one ttl. Same as `release`.

        Called by a callback it does not wait. Raises as `release` does.
        """
        self.release()


class _Lead(LockGuard[Leadership]):
    """Something to lead for. The thread of its callbacks keeps a leadership alive, whatever becomes of the block."""

    def __del__(self) -> None:
        """Resign what an interrupt has left entered: it came before the end of the block had begun."""
        for leaderships in self._entered.values():
            for leadership in leaderships:
                leadership._abandon()


class Election(Contest[Leadership]):
    """Who leads of all who stand under one name: stand by hand, for a block or in the background, or watch."""

    def __init__(self, engine: Engine, name: str, defaults: Defaults, **options: Unpack[ElectionOptions]) -> None:
        super().__init__(engine, Leadership, name, defaults, **options)
        for callback in filter(None, self._callbacks):
            check_callback(callback)

    def lead(self, timeout: Seconds | None = None) -> LockGuard[Leadership]:
        """Campaign, lead for a block, and resign at its end, which raises LockLostError if the lead was lost."""
        return _Lead(self._plan_within(timeout), (self.name,), lambda plan: drive(self._campaign(plan)), self._runtime)

    def campaign(self, timeout: Seconds | None = None) -> Leadership:
        """Wait to be elected. Raises LockAcquisitionError after `timeout`, if given."""
        return drive(self._campaign(self._plan_within(timeout)))

    def start(self) -> None:
        """Stand in the background until stopped: campaign, lead until that is lost, and campaign again.

        While it does, this does nothing.
        """
        try:
            atexit.register(self._exit)
            self._start()
        except BaseException:
            if self._candidacy is None:
                atexit.unregister(self._exit)
            raise

    def stop(self) -> None:
        """Stand no more. Whoever leads resigns: `on_lost` has ended before somebody else is let in.

        Called by a callback it does not wait.
        """
        drive(self._stop())

    def leader(self) -> Leader | None:
        """Ask the store who leads; None if nobody does."""
        return drive(self._leader())

    def watch(self, interval: Seconds = 1.0) -> Generator[Leader | None, None, None]:
        """Tell who leads, now and whenever that has changed; None is for nobody.

        It asks the store every `interval` seconds, so it may miss who led for less. An outage is waited out.
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
