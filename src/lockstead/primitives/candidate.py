"""Callbacks of a leader, and candidates in the background: what is built on the primitive of an election.

A leader that resigns stops first: the lock is released after `on_lost` has ended.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Hashable, Mapping
from contextlib import suppress
from enum import Enum, auto
from functools import partial
from math import inf
from typing import Any, Generic, NamedTuple, TypeVar

from lockstead.core import lifecycle
from lockstead.core.checks import Seconds
from lockstead.core.engine import Engine
from lockstead.core.keeper import log
from lockstead.core.lease import INHERITED, Lease
from lockstead.core.outage import reason
from lockstead.core.refusals import Busy
from lockstead.core.runtime import Event, drive
from lockstead.errors import ClosedError, LockError, LockLostError, StoreError
from lockstead.primitives.election import BaseElection, Leading, plan_election
from lockstead.primitives.plans import Defaults, Plan

Running = set[Callable[[], Awaitable[None]]]
"""How to end each candidate in the background, and each term: of one client, which does so when it is closed."""


class Callbacks(NamedTuple):
    on_elected: Callable[[Any], Any] | None
    on_lost: Callable[[Any], Any] | None


class Work(Enum):
    """What became of `on_elected`. It is not called any more once it was refused."""

    NOT_BEGUN = auto()
    RUNNING = auto()
    ENDED = auto()
    FAILED = auto()
    REFUSED = auto()


class Term(Leading):
    """A leadership with callbacks: its lock is released only after they have ended.

    One thread or task runs the term, another one runs `on_elected`. A leadership by hand or for a block that has no
    callbacks has no term.
    """

    _callbacks: Callbacks
    _running: Running

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._has_begun = self._is_over = False
        self._failure: LockError | None = None
        self._ends_by = inf
        """Until when its end is waited for: one ttl from the first wait."""
        self._work = Work.NOT_BEGUN
        self._mutex = engine.runtime.mutex()
        self._changed = engine.runtime.event()
        """Set for what runs the term: it is lost or resigned, or `on_elected` has ended."""
        self._waiters: list[Event] = []
        """Set once the term is over."""
        self._callers: set[Hashable] = set()
        """The threads or tasks that run callbacks, which must not wait for the end of the term."""

    async def _acquire(self, plan: Plan, *, is_scoped: bool = False) -> Lease | Busy | None:
        """Wait to be elected; callbacks, if there are any, run in the background."""
        outcome = await super()._acquire(plan, is_scoped=is_scoped)
        if any(self._callbacks) and not isinstance(outcome, Busy):
            try:
                self._begin()
                self._engine.runtime.spawn(self._run, "lockstead-election", self._orphaned)
            except BaseException:  # no thread can be started, or an interrupt, maybe after one was started
                self._orphaned()
                raise
        return outcome

    def _begin(self) -> None:
        """From now on, whatever releases it has to resign."""
        self._has_begun = True
        self._claim.resign = self._resign_and_wait  # a cycle, until the term is over
        self._running.add(self._resign_and_wait)

    async def _run(self) -> None:
        """Call `on_elected`; call `on_lost` when leadership is lost or resigned; and only then release the lock."""
        self._callers.add(self._engine.runtime.context())
        interruption: BaseException | None = None
        for step in (self._lead, self._stop_leading):
            try:
                await step()
            except GeneratorExit:  # a closed generator must not await
                raise
            except BaseException as error:
                interruption = interruption or error
        try:
            await super()._release()
        except (LockLostError, StoreError) as failure:
            self._failure = failure
        finally:
            self._end()
        if interruption is not None:
            raise interruption

    async def _lead(self) -> None:
        """Have `on_elected` called, and return when leadership is lost or resigned."""
        self._watch(self._changed.set)
        on_elected = self._callbacks.on_elected
        if on_elected is None:
            self._work = Work.ENDED
        else:
            work, cancelled = partial(self._do_work, on_elected), partial(self._end_work, Work.ENDED)
            try:
                self._engine.runtime.spawn(work, "lockstead-elected", cancelled)
            except RuntimeError:  # no thread can be started
                address = self._engine.store.address
                log.exception("%s: could not call on_elected of the election %r: resigning", address, self.name)
                return
        while self.is_held:
            await self._changed.wait(inf)

    async def _do_work(self, on_elected: Callable[[Any], Any]) -> None:
        self._callers.add(self._engine.runtime.context())
        outcome = Work.FAILED
        try:
            if not self._begin_work() or await self._call(on_elected, "on_elected", "resigning"):
                outcome = Work.ENDED
        finally:
            self._end_work(outcome)
            self._callers.discard(self._engine.runtime.context())  # the thread may run other callbacks later

    async def _stop_leading(self) -> None:
        """Stop the work: call `on_lost`, and wait until `on_elected` has ended, for one ttl at most."""
        if self.is_held:
            self._resign()
        if self._stop_work():
            if self._callbacks.on_lost is not None:
                await self._call(self._callbacks.on_lost, "on_lost", "the lock is released as planned")
            await self._wait_for_work(self._leases[0].ask.ttl)

    async def _call(self, callback: Callable[[Any], Any], title: str, what_follows: str) -> bool:
        try:
            result = callback(self)
            if inspect.isawaitable(result):
                await result
        except Exception:
            address = self._engine.store.address
            log.exception("%s: %s of the election %r failed: %s", address, title, self.name, what_follows)
            return False
        return True

    def _begin_work(self) -> bool:
        """Return whether work may begin: not after leadership was lost, resigned or stopped."""
        with self._mutex:
            if self._work is Work.NOT_BEGUN and self.is_held:
                self._work = Work.RUNNING
            return self._work is Work.RUNNING

    def _stop_work(self) -> bool:
        """Let no work begin any more, and return whether it has begun."""
        with self._mutex:
            if self._work is Work.NOT_BEGUN:
                self._work = Work.REFUSED
            return self._work is not Work.REFUSED

    def _end_work(self, outcome: Work) -> None:
        with self._mutex:
            self._work = outcome if self._work is Work.RUNNING else self._work
        if self._work is Work.FAILED and self.is_held:
            self._resign()
        self._changed.set()

    async def _wait_for_work(self, timeout: float) -> None:
        until = self._engine.runtime.now() + timeout
        while self._work is Work.RUNNING and self._engine.runtime.now() < until:
            await self._changed.wait(until - self._engine.runtime.now())

    async def _release(self) -> None:
        if not self._has_begun or self._leases[0].state is INHERITED:
            await super()._release()
            return
        self._resign()
        await self._wait_for_end(inf)

    def _resign(self) -> None:
        """Stop leading, but hold the lock until the callbacks have ended, or for another ttl."""
        self._released = True
        self._engine.retire(self._leases[0])
        self._changed.set()

    async def _resign_and_wait(self, timeout: float = inf) -> None:
        """End the term, also one that is lost or was resigned already."""
        if self.is_held:
            self._resign()
        await self._wait_for_end(timeout)

    async def _wait_for_end(self, timeout: float) -> None:
        """Wait until the lock is released or has expired; a callback or a nested call does not wait."""
        lease = self._leases[0]
        if lease.state is INHERITED or self._engine.is_nested() or self._engine.runtime.context() in self._callers:
            return  # the thread that ends the term is the parent's, or waits for this one
        event = self._engine.runtime.event()
        self._waiters.append(event)
        self._ends_by = min(self._ends_by, self._engine.runtime.now() + lease.ask.ttl)
        if not self._is_over:  # `_end` sets this first: none that is appended later waits
            await event.wait(max(min(timeout, self._ends_by - self._engine.runtime.now()), 0.0))
        if not self._is_over:
            log.warning(
                "%s: the callbacks of the election %s have not ended after %.1f s: its lease expires %g s after the "
                "resignation, and another candidate may then be elected; make on_lost faster, or raise ttl",
                self._engine.store.address,
                self._title,
                min(timeout, lease.ask.ttl),
                lease.ask.ttl,
            )
            if lease.loss is not None:
                raise lease.error()
        if self._failure is not None:
            raise self._failure

    def _end(self) -> None:
        self._is_over = True
        self._claim.resign = None
        self._running.discard(self._resign_and_wait)
        for event in self._waiters:
            event.set()

    @property
    def _is_running(self) -> bool:
        return self._has_begun and not self._is_over

    def _abandon(self) -> None:
        if self._is_running:
            self._resign()
        else:
            super()._abandon()

    def _orphaned(self) -> None:
        """Release a leadership without a running term: its task was cancelled before it began, or was not started."""
        if self._is_running:
            self._released = True
            self._engine.release_in_background(self._leases[0])
            self._end()
        self._changed.set()


T = TypeVar("T", bound=Term)


class Candidate(Generic[T]):
    """A candidate in the background: it campaigns and leads, repeatedly, until it is stopped."""

    def __init__(self, engine: Engine, new: Callable[[Engine], T], plan: Plan) -> None:
        self._engine = engine
        self._new = new
        self._plan = plan
        self._name = plan.asks[0].name
        self._stopped = engine.runtime.event()
        self.is_active = True
        self.term: T | None = None
        """The latest: it campaigns for it, leads, or has led."""

    async def run(self) -> None:
        failures = 0
        try:
            while self.is_active:
                if await self._lead_once(logging.DEBUG if failures else logging.WARNING):
                    failures = 0
                else:
                    pause = self._plan.retry.pause(failures, self._engine.runtime.random())
                    failures += 1
                    await self._stopped.wait(pause)
        except ClosedError:
            log.debug("%s: candidacy for %r ends: its client was closed", self._engine.store.address, self._name)

    async def _lead_once(self, level: int) -> bool:
        """Campaign, and lead if elected; return False if it failed and the next attempt should wait."""
        self.term = term = self._new(self._engine)
        if not self.is_active:  # `stop` sets this before it reads the term: it has seen this one, or is seen here
            return True
        try:
            outcome = await Leading._acquire(term, self._plan)  # the term runs here, not in the background
        except ClosedError:
            term._abandon()
            raise
        except Exception as error:
            term._abandon()
            if self.is_active:
                address = self._engine.store.address
                log.log(level, "%s: campaign for %r failed (%s); retrying", address, self._name, reason(error, address))
            return False
        assert not isinstance(outcome, Busy)  # it waits without limit; a campaign that is withdrawn raises
        term._begin()
        if not self.is_active:
            term._resign()
        await term._run()
        await term._wait_for_work(inf)
        return term._work is Work.ENDED

    def stop(self) -> None:
        """Do not campaign again."""
        self.is_active = False
        self._stopped.set()

    async def wait(self, timeout: float) -> None:
        """Withdraw, or resign. When this returns, a leadership is released, or expires by itself."""
        term = self.term
        if term is None:
            return
        if not term._has_begun:
            await self._engine.withdraw(term._claim, timeout)
            return
        with suppress(LockLostError, StoreError):
            await term._resign_and_wait(timeout)


class CandidateElection(BaseElection[T]):
    """An election with callbacks, and with at most one candidate in the background."""

    def __init__(
        self,
        engine: Engine,
        new: Callable[[Engine], T],
        running: Running,
        name: str,
        defaults: Defaults,
        *,
        ttl: Seconds | None = None,
        grace: Seconds | None = None,
        metadata: Mapping[str, Any] | None = None,
        on_elected: Callable[[T], object] | None = None,
        on_lost: Callable[[T], object] | None = None,
        leave_at_exit: bool = False,
    ) -> None:
        for option, callback in (("on_elected", on_elected), ("on_lost", on_lost)):
            if callback is not None:
                defaults.check_callback(callback, option)

        def new_term(engine: Engine) -> T:
            term = new(engine)
            term._callbacks, term._running = Callbacks(on_elected, on_lost), running
            return term

        super().__init__(engine, new_term, plan_election(name, defaults, ttl, grace, metadata))
        self._running = running
        self._leave_at_exit = leave_at_exit
        self._reset()
        lifecycle.at_fork(self, in_child="_reset")

    def _reset(self) -> None:
        """Start without a candidate: at first, and in a forked child, in which no other thread exists."""
        self._mutex = self._engine.runtime.mutex()
        self._candidate: Candidate[T] | None = None

    def _start(self) -> None:
        self._engine.check_open(self.name)
        candidate = Candidate(self._engine, self._new, self._plan)
        try:
            with self._mutex:
                if self._candidate is not None:
                    return
                self._candidate = candidate
                self._running.add(self._stop)
                if self._leave_at_exit:
                    lifecycle.first_at_exit(self._exit)
            work = partial(self._run, candidate)
            self._engine.runtime.spawn(work, "lockstead-candidate", partial(self._forget, candidate))
        except BaseException:  # no thread can be started, or an interrupt
            candidate.stop()
            self._forget(candidate)
            raise

    async def _run(self, candidate: Candidate[T]) -> None:
        try:
            await candidate.run()
        finally:
            self._forget(candidate)

    async def _stop(self, timeout: float = inf) -> None:
        candidate = self._candidate
        if candidate is not None:
            candidate.stop()
            self._forget(candidate)
            await candidate.wait(timeout)

    def _forget(self, candidate: Candidate[T]) -> None:
        with self._mutex:
            if self._candidate is candidate:
                self._candidate = None
                self._running.discard(self._stop)
                lifecycle.not_at_exit(self._exit)

    def _exit(self) -> None:
        drive(self._stop(lifecycle.EXIT_BUDGET))
