# Generated from src/lockstead/asynchronous/election.py by `python tools/unasync.py`: edit that one.
"""Leader elections, for threads."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any

from lockstead.blocking.guard import LockGuard
from lockstead.blocking.handle import LockHandle
from lockstead.core.checks import Seconds
from lockstead.core.engine import Engine
from lockstead.core.runtime import drive
from lockstead.primitives.candidate import CandidateElection, Running, Term
from lockstead.primitives.election import NOT_SEEN_YET, Leader, Seen, check_interval, identify
from lockstead.primitives.plans import Defaults


class Leadership(Term, LockHandle):
    """A leader's handle. As a context manager it resigns at the end of its block."""

    def resign(self) -> None:
        """Resign: call `on_lost`, wait until it has ended, for one ttl at most, then release. Same as `release`.

        A call from a callback does not wait. Raises as `release` does.
        """
        self.release()


class _Lead(LockGuard[Leadership]):
    """A guard for a block that leads. A term that runs keeps a leadership alive after the block was left."""

    def __del__(self) -> None:
        """Resign the leadership of a block whose end did not begin because of an interrupt."""
        for _, leadership in self._entered:
            if leadership._is_running:
                leadership._resign()


class Election(CandidateElection[Leadership]):
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
        on_elected: Callable[[Leadership], object] | None = None,
        on_lost: Callable[[Leadership], object] | None = None,
    ) -> None:
        """See `DistributedLock.election` for the options."""
        super().__init__(
            engine,
            Leadership,
            running,
            name,
            defaults,
            ttl=ttl,
            grace=grace,
            metadata=metadata,
            on_elected=on_elected,
            on_lost=on_lost,
            leave_at_exit=True,
        )

    def lead(self, timeout: Seconds | None = None) -> LockGuard[Leadership]:
        """Campaign, lead for a block, and resign at its end: ``with election.lead():``.

        If leadership was lost meanwhile, the end of the block raises LockLostError.
        `timeout`: how long to wait; None waits without limit, 0 does not wait.
        """
        return _Lead(self._plan_within(timeout), (self.name,), self._engine, self._new)

    def campaign(self, timeout: Seconds | None = None) -> Leadership:
        """Wait to be elected, and return the leadership.

        `timeout`: how long to wait; None waits without limit, 0 does not wait. Raises LockAcquisitionError after that.
        """
        return drive(self._campaign(timeout))

    def start(self) -> None:
        """Campaign in the background until `stop`: campaign, lead until leadership is lost, and campaign again.

        Does nothing if it is running already.
        """
        self._start()

    def stop(self) -> None:
        """Stop campaigning. A leader resigns: `on_lost` has ended before another candidate can be elected.

        A call from a callback does not wait.
        """
        drive(self._stop())

    def leader(self) -> Leader | None:
        """Ask the store for the current leader; None if there is none."""
        return drive(self._leader())

    def observe(self, interval: Seconds = 1.0) -> Generator[Leader | None, None, None]:
        """Yield the leader, now and after every change; None while there is none.

        It polls the store every `interval` seconds, so it may miss a leader that led for less. During an outage it
        waits.
        """
        pause = check_interval(interval)
        seen: Seen = NOT_SEEN_YET
        while True:
            leader = drive(self._next_leader(seen, pause))
            yield leader
            seen = identify(leader)
