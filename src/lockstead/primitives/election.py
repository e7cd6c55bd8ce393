"""Leader election: the holder of a name's lock is the leader.

A leader's trust window ends `grace` seconds before its lease does. So the loss is signalled that long before another
candidate can be elected, and the leader has time to stop. A leader that resigns stops first: the lock is released after
`on_lost` has ended.

Not promised: anything while a process is paused (SIGSTOP, a frozen machine). It detects the loss as soon as it resumes,
but may first complete what it was about to do; then only the fence protects. The same holds if the store's clock steps
forward.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from math import inf
from typing import Any, Generic, NamedTuple, TypeVar

from lockstead.core import lifecycle
from lockstead.core.checks import Seconds, check_seconds
from lockstead.core.engine import Engine
from lockstead.core.keeper import log
from lockstead.core.lease import INHERITED, Lease
from lockstead.core.outage import reason
from lockstead.core.refusals import Busy
from lockstead.core.runtime import Event, Runtime
from lockstead.errors import ClosedError, InvalidInputError, LockError, LockLostError, StoreError
from lockstead.primitives import info
from lockstead.primitives.handle import Single
from lockstead.primitives.plans import Defaults, Plan, plan

Seen = tuple[str, int] | None
"""Distinguishes one term from another; None if there is no leader."""
NOT_SEEN_YET: Seen = ("", -1)
"""Differs from every leader, and from none."""
DEFAULT_GRACE = 1 / 5
"""The default grace, as a fraction of the ttl: how long a leader has to stop."""
MAX_GRACE = 1 / 2
"""The largest grace, as a fraction of the ttl: with more, a leader would stop while renewals are still on time."""


@dataclass(frozen=True, slots=True)
class Leader:
    """The leader at the moment of the request. By the time you read it, it may be outdated."""

    holder_id: str
    """The client that leads: host:pid:random."""
    since: datetime
    """When it was elected, on this machine's wall clock."""
    fence: int
    """The fencing token; 0 if only the leader can read it, as with advisory locks."""
    metadata: dict[str, Any]
    is_me: bool
    """Whether the leader is the client that made this request."""


class OneShotEvent:
    """An event that is set once, for any number of waiters."""

    def __init__(self, runtime: Runtime) -> None:
        self._new_event = runtime.event
        self._mutex = runtime.mutex()
        self._events: list[Event] = []
        self.is_set = False

    def set(self) -> None:
        with self._mutex:
            self.is_set = True
        for event in self._events:
            event.set()

    async def wait(self, timeout: float = inf) -> bool:
        """Return whether it was set in time."""
        with self._mutex:
            if self.is_set:
                return True
            event = self._new_event()
            self._events.append(event)
        await event.wait(timeout)
        return self.is_set


class Term:
    """The term of one leadership: until its callbacks have ended and the lock is released."""

    def __init__(self, runtime: Runtime) -> None:
        self._mutex = runtime.mutex()
        self._work_began = self._is_stopping = False
        self.changed = runtime.event()
        """Set when the leadership is lost or resigned."""
        self.work_done = OneShotEvent(runtime)
        """Set when `on_elected` has ended."""
        self.work_failed = False
        self.ended = OneShotEvent(runtime)
        """Set when the callbacks have ended and the lock is released, or left to expire."""
        self.callers: set[Hashable] = set()
        """The threads or tasks that run callbacks, which must not wait for the end of the term."""
        self.failure: LockError | None = None

    def begin_work(self) -> bool:
        """Return whether work may begin: not after it was stopped."""
        with self._mutex:
            self._work_began = not self._is_stopping
            return self._work_began

    def stop_work(self) -> bool:
        """Let no work begin any more, and return whether it has begun."""
        with self._mutex:
            self._is_stopping = True
            return self._work_began


class Leading(Single):
    """A leader's handle: its lock is released only after the callbacks have ended."""

    since: datetime
    """When it was elected, on this machine's wall clock."""
    _term: Term | None = None
    _contest: Contest[Any] | None = None
    """The election whose callbacks are called once this is elected by hand."""

    @property
    def is_leader(self) -> bool:
        """Whether this client is surely still the leader, judged by the local clock alone: no round trip."""
        return self.is_held

    @property
    def _owner(self) -> str:
        return self._leases[0].ask.owner

    async def _acquire(self, plan: Plan, *, is_scoped: bool = False) -> Lease | Busy | None:
        """Wait to be elected; callbacks, if there are any, run in the background."""
        outcome = await super()._acquire(plan, is_scoped=is_scoped)
        if not isinstance(outcome, Busy):
            self.since = datetime.now(UTC)
            if self._contest is not None:
                self._contest._begin_term(self)
        return outcome

    async def _release(self) -> None:
        if self._term is None or not self._leases or self._leases[0].state is INHERITED:
            await super()._release()
            return
        self._resign()
        await self._wait_for_end(inf)

    def _resign(self) -> None:
        """Stop leading, but hold the lock until the callbacks have ended, or for another ttl."""
        assert self._term is not None
        self._released = True
        self._engine.retire(self._leases[0])
        self._term.changed.set()

    async def _wait_for_end(self, timeout: float) -> None:
        """Wait until the lock is released or has expired; a callback or a nested call does not wait."""
        term, lease = self._term, self._leases[0]
        assert term is not None
        runtime = self._engine.runtime
        if runtime.context() in term.callers or self._engine.is_nested():
            return  # the thread that ends the term waits for this one
        if not await term.ended.wait(min(timeout, lease.ask.ttl)):
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
        if term.failure is not None:
            raise term.failure

    async def _release_leases(self) -> None:
        try:
            await super()._release_leases()
        finally:
            if self._leases[0].loss is not None:  # the leader has stopped: do not wait for the rest of its grace
                self._engine.release_in_background(self._leases[0])

    def _abandon(self) -> None:
        if self._term is None or self._term.ended.is_set:
            super()._abandon()
        else:
            self._resign()

    def _orphaned(self) -> None:
        """Release a leadership without a running term: its task was cancelled before it began, or was not started."""
        if self._term is not None and not self._term.ended.is_set:
            self._released = True
            self._engine.leaders.pop(self._owner, None)
            self._engine.release_in_background(self._leases[0])
            self._term.ended.set()


L = TypeVar("L", bound=Leading)


class Candidacy(Generic[L]):
    """A background candidate, from `start` to `stop`."""

    def __init__(self, runtime: Runtime) -> None:
        self._mutex = runtime.mutex()
        self.changed = runtime.event()
        self.is_active = True
        self.leadership: L | None = None
        """The current one, elected or not yet."""

    def nominate(self, leadership: L) -> bool:
        """Register the leadership to campaign for; False if the candidacy has ended."""
        with self._mutex:
            self.leadership = leadership if self.is_active else None
            return self.is_active

    def elect(self, leadership: L, term: Term) -> bool:
        """Begin a term; False if the candidacy has ended."""
        with self._mutex:
            leadership._term = term if self.is_active else None
            return self.is_active

    def end(self) -> L | None:
        """End the candidacy, and return the leadership to release, if any."""
        with self._mutex:
            self.is_active = False
        self.changed.set()
        return self.leadership


class Callbacks(NamedTuple):
    on_elected: Callable[[Any], Any] | None
    on_lost: Callable[[Any], Any] | None


class Contest(Generic[L]):
    """An election from the view of one client."""

    def __init__(
        self,
        engine: Engine,
        new: Callable[[Engine], L],
        name: str,
        defaults: Defaults,
        *,
        ttl: Seconds | None = None,
        grace: Seconds | None = None,
        metadata: Mapping[str, Any] | None = None,
        on_elected: Callable[[L], object] | None = None,
        on_lost: Callable[[L], object] | None = None,
    ) -> None:
        self._engine = engine
        self._runtime = engine.runtime
        self._new = new
        for option, callback in (("on_elected", on_elected), ("on_lost", on_lost)):
            if callback is not None:
                defaults.check_callback(callback, option)
        self._callbacks = Callbacks(on_elected, on_lost)
        self._plan = _plan(name, defaults, ttl, grace, metadata)
        self._reset()
        lifecycle.at_fork(self, in_child="_reset")

    @property
    def name(self) -> str:
        return self._plan.asks[0].name

    def _reset(self) -> None:
        """Start without a candidacy: at first, and in a forked child, in which no other thread exists."""
        self._mutex = self._runtime.mutex()
        self._candidacy: Candidacy[L] | None = None

    def _plan_within(self, timeout: Seconds | None) -> Plan:
        return self._plan if timeout is None else self._plan.within(timeout)

    def _nominate(self, engine: Engine) -> L:
        """Make the leadership to campaign for by hand, or for a block."""
        leadership = self._new(engine)
        if any(self._callbacks):
            leadership._contest = self
        return leadership

    def _begin_term(self, leadership: L) -> None:
        """Run the callbacks of one that was elected in the background."""
        term = Term(self._runtime)
        try:
            leadership._term = term
            self._engine.leaders[leadership._owner] = leadership._release_once
            work = partial(self._run_term, leadership, term)
            self._runtime.spawn(work, "lockstead-election", leadership._orphaned)
        except BaseException:  # no thread can be started, or an interrupt, maybe after one was started
            leadership._orphaned()
            term.changed.set()
            raise

    def _start(self) -> None:
        self._engine.check_open(self.name)
        candidacy: Candidacy[L] = Candidacy(self._runtime)
        try:
            with self._mutex:
                if self._candidacy is not None:
                    return
                self._candidacy = candidacy
            self._engine.candidates.add(self._stop)
            work = partial(self._run_candidacy, candidacy)
            self._runtime.spawn(work, "lockstead-candidate", lambda: self._ended(candidacy))
        except BaseException:  # no thread can be started, or an interrupt
            candidacy.end()
            self._ended(candidacy)
            raise

    async def _stop(self, timeout: float = inf) -> None:
        """End the candidacy. When this returns, a leadership is released, or expires by itself."""
        candidacy = self._candidacy
        if candidacy is None:
            return
        leadership = candidacy.end()
        self._ended(candidacy)
        if leadership is None:
            return
        if leadership._term is not None:
            if leadership.is_held:
                leadership._resign()
            with suppress(LockLostError, StoreError):
                await leadership._wait_for_end(timeout)
        else:
            await self._engine.withdraw(leadership._claim)

    def _ended(self, candidacy: Candidacy[L]) -> None:
        with self._mutex:
            if self._candidacy is candidacy:
                self._candidacy = None
                self._engine.candidates.discard(self._stop)

    async def _run_candidacy(self, candidacy: Candidacy[L]) -> None:
        """Campaign and lead, repeatedly, until the candidacy ends."""
        failures = 0
        try:
            while candidacy.is_active:
                if await self._campaign_once(candidacy, logging.DEBUG if failures else logging.WARNING):
                    failures = 0
                else:
                    pause = self._plan.retry.pause(failures, self._runtime.random())
                    failures += 1
                    await candidacy.changed.wait(pause)
        except ClosedError:
            log.debug("%s: candidacy for %r ends: its client was closed", self._engine.store.address, self.name)
        finally:
            self._ended(candidacy)

    async def _campaign_once(self, candidacy: Candidacy[L], level: int) -> bool:
        """Campaign, and lead if elected; return False if it failed and the next attempt should wait."""
        term = Term(self._runtime)
        leadership = self._new(self._engine)
        if not candidacy.nominate(leadership):
            return True
        try:
            await leadership._acquire(self._plan)
        except ClosedError:
            leadership._abandon()
            raise
        except Exception as error:
            leadership._abandon()
            if candidacy.is_active:
                address = self._engine.store.address
                log.log(level, "%s: campaign for %r failed (%s); retrying", address, self.name, reason(error, address))
            return False
        if not candidacy.elect(leadership, term):
            with suppress(LockLostError, StoreError):
                await leadership._release_once()
            return True
        self._engine.leaders[leadership._owner] = leadership._release_once
        await self._run_term(leadership, term)
        await term.work_done.wait()
        return not term.work_failed

    async def _run_term(self, leadership: L, term: Term) -> None:
        """Call `on_elected`; call `on_lost` when leadership is lost or resigned; and only then release the lock."""
        term.callers.add(self._runtime.context())
        interruption: BaseException | None = None
        for step in (self._lead, self._end_term):
            try:
                await step(leadership, term)
            except GeneratorExit:  # a closed generator must not await
                raise
            except BaseException as error:
                interruption = interruption or error
        try:
            await leadership._release_leases()
        except (LockLostError, StoreError) as failure:
            term.failure = failure
        finally:
            self._engine.leaders.pop(leadership._owner, None)
            term.ended.set()
        if interruption is not None:
            raise interruption

    async def _lead(self, leadership: L, term: Term) -> None:
        leadership._watch(term.changed.set)
        if self._callbacks.on_elected is None:
            term.begin_work()
            term.work_done.set()
        else:
            work = partial(self._work, self._callbacks.on_elected, leadership, term)
            try:
                self._runtime.spawn(work, "lockstead-elected", term.work_done.set)
            except RuntimeError:  # no thread can be started
                log.exception(
                    "%s: could not call on_elected of the election %r: resigning", self._engine.store.address, self.name
                )
                term.work_failed = True
                term.work_done.set()
                return
        while leadership.is_held:
            await term.changed.wait(inf)

    async def _work(self, on_elected: Callable[[L], Any], leadership: L, term: Term) -> None:
        term.callers.add(self._runtime.context())
        try:
            if leadership.is_held and term.begin_work():
                term.work_failed = True
                term.work_failed = not await self._call(on_elected, leadership, "on_elected", "resigning")
        finally:
            if term.work_failed and leadership.is_held:
                leadership._resign()
            term.work_done.set()

    async def _end_term(self, leadership: L, term: Term) -> None:
        """Stop the work: call `on_lost`, and wait until `on_elected` has ended, for one ttl at most."""
        if leadership.is_held:
            leadership._resign()
        has_begun = term.stop_work()
        if self._callbacks.on_lost is not None and has_begun:
            await self._call(self._callbacks.on_lost, leadership, "on_lost", "the lock is released as planned")
        if has_begun:
            await term.work_done.wait(self._plan.asks[0].ttl)

    async def _call(self, callback: Callable[[L], Any], leadership: L, title: str, what_follows: str) -> bool:
        try:
            result = callback(leadership)
            if inspect.isawaitable(result):
                await result
        except Exception:
            log.exception(
                "%s: %s of the election %r failed: %s", self._engine.store.address, title, self.name, what_follows
            )
            return False
        return True

    async def _leader(self) -> Leader | None:
        line = await self._engine.find(self.name)
        holders = () if line is None else info.describe(line).holders
        if not holders or holders[0].reserved:
            return None
        head = holders[0]
        is_me = head.holder_id == self._engine.holder_id
        return Leader(head.holder_id, head.acquired_at, head.fence, head.metadata, is_me)

    async def _change(self, seen: Seen, interval: float) -> Leader | None:
        """Poll every `interval` seconds until the leader differs from the one seen last."""
        while True:
            try:
                leader = await self._leader()
            except StoreError as error:
                if not error.transient:
                    raise
            else:
                if identify(leader) != seen:
                    return leader
            await self._runtime.sleep(interval)


def identify(leader: Leader | None) -> Seen:
    """Return what distinguishes one term from another; where fences are not shown, one leader from another."""
    return None if leader is None else (leader.holder_id, leader.fence)


def check_interval(interval: Seconds) -> float:
    """Accept a polling interval that is positive and finite."""
    seconds = check_seconds(interval, "interval")
    if not 0 < seconds < inf:
        msg = f"interval must be above 0 and finite, got {seconds:g}"
        raise InvalidInputError(msg)
    return seconds


def _plan(
    name: str, defaults: Defaults, ttl: Seconds | None, grace: Seconds | None, metadata: Mapping[str, Any] | None
) -> Plan:
    planned = plan(name, defaults, ttl=ttl, metadata=metadata)
    lease_ttl = planned.asks[0].ttl
    seconds = lease_ttl * DEFAULT_GRACE if grace is None else check_seconds(grace, "grace")
    if seconds > lease_ttl * MAX_GRACE:
        msg = (
            f"grace must be at most half of the ttl of {lease_ttl:g} s, got {seconds:g} s: with more, a leader would "
            "stop while renewals are still on time; raise the ttl to have more grace"
        )
        raise InvalidInputError(msg, name=name)
    return planned._replace(grace=seconds)
