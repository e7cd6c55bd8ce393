"""When the keeper works: one loop per client, which sleeps while no lease is due and ends while there is none.

What is due, and what is done about it, is the `Keeper`'s own.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from math import inf
from typing import Any
from weakref import WeakMethod, ref

from lockstead.core.lease import Lease
from lockstead.core.runtime import Event, Runtime
from lockstead.core.timing import KEEPER_IDLE_TIMEOUT, KEEPER_RESTART_DELAY, MAX_IDLE_SLEEP, MIN_IDLE_SLEEP

log = logging.getLogger("lockstead")


class RenewalLoop:
    """The loop of a keeper, its base class: a loop of its own would form a cycle with it, and outlive its client."""

    mutex: AbstractContextManager[Any]
    leases: dict[str, Lease]

    def __init__(self, runtime: Runtime, address: str) -> None:
        self.runtime = runtime
        self.closing = False
        self._address = address

    def _scan(self, now: float) -> tuple[list[Lease], float]:
        """Return the leases that are due, and when the next one will be."""
        raise NotImplementedError

    async def _dispatch(self, due: Sequence[Lease]) -> None:
        """Send the requests that are due."""
        raise NotImplementedError

    def _reset_loop(self) -> None:
        """Have no loop: at first, and in a forked child."""
        self._running = False
        self._event: Event | None = None
        self._wakes_at = inf  # infinite also while the loop is awake, or not running
        self._next_due_at = inf  # no lease needs a request or a check before then
        self._idle_sleep = MAX_IDLE_SLEEP
        self._idle_since = -inf

    def stop(self) -> None:
        """End the loop once no lease is left to keep."""
        with self.mutex:
            self.closing = True
        if self._event is not None:
            self._event.set()

    def _schedule(self, moment: float) -> None:
        if moment >= self._wakes_at:
            return
        try:
            now = self.runtime.now()
            with self.mutex:
                starting, self._running = not self._running, True
                asleep = self._wakes_at < inf
                self._next_due_at = min(self._next_due_at, moment)
                if moment > now + MIN_IDLE_SLEEP:
                    self._idle_sleep = min(self._idle_sleep, moment - now)
                former = self._event
                if starting:
                    event = self._event = self.runtime.event()
                    self._idle_since = now
            if former is not None and (asleep or starting):  # also ends an older loop that may still be running
                former.set()
            if starting:
                self._start(event)
        except BaseException:  # no thread can be started, or an interrupt, maybe after the loop was started
            self._running = False
            raise

    def _start(self, event: Event) -> None:
        cancelled = WeakMethod(self._was_cancelled)
        work = partial(_keep, ref(self, lambda _: event.set()), event)
        self.runtime.spawn(work, "lockstead-keeper", lambda: call() if (call := cancelled()) else None)

    async def run(self, event: Event) -> float | None:
        """Do what is due, and return how long to wait for the event; None ends the loop."""
        if self._event is not event:  # another loop was started, because this one was not known to be running
            return None
        try:
            return await self._tick()
        except Exception:
            log.exception("%s: renewal loop failed; retrying in %g s", self._address, KEEPER_RESTART_DELAY)
            with self.mutex:
                self._next_due_at = -inf  # the scan may not have reached every lease
            await self.runtime.sleep(KEEPER_RESTART_DELAY)
            return 0.0

    def _was_cancelled(self) -> None:
        """Restart soon: all tasks of the loop were cancelled, but the loop is still in use."""
        with self.mutex:
            self._running, self._wakes_at = False, inf
        self.runtime.call_later(KEEPER_RESTART_DELAY, self._restart)

    def _restart(self) -> None:
        if self.leases:
            self._schedule(self.runtime.now())

    async def _tick(self) -> float | None:
        """Do what is due, and return the seconds until something else is; None ends the loop."""
        with self.mutex:
            self._wakes_at = inf
        now = self.runtime.now()
        if now >= self._next_due_at:
            with self.mutex:
                self._next_due_at = inf
            due, next_at = self._scan(now)
            with self.mutex:
                self._next_due_at = min(self._next_due_at, next_at)
            if due:
                await self._dispatch(due)
                return 0.0
        if self.leases:
            self._idle_since = now
        elif self.closing or now > self._idle_since + KEEPER_IDLE_TIMEOUT:
            with self.mutex:
                self._running = bool(self.leases)
                return 0.0 if self._running else None
        with self.mutex:
            if self._next_due_at == inf:
                self._next_due_at = now + self._idle_sleep
            self._wakes_at = self._next_due_at
            return self._next_due_at - now


async def _keep(keeper: ref[RenewalLoop], event: Event) -> None:
    """Run a keeper's loop while the keeper exists: asleep, the loop holds no reference to it."""
    while (running := keeper()) is not None:
        pause = await running.run(event)
        if pause is None:
            return
        del running
        if pause > 0:
            await event.wait(pause)
