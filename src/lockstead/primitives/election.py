"""Elections: whoever holds the lock of a name leads.

A leader's lease is trusted `grace` seconds less than it lives. So he learns that he leads no more that long before
anybody else can, and has the time to stop. Whoever gives the lead up has stopped first: the lock goes after `on_lost`
has ended.

Not promised: anything while a process is paused (SIGSTOP, a frozen machine). It finds out as soon as it goes on, but
what it was about to do it may do first; then only the fence protects. Nor is it if the store's clock steps forward.
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
from typing import Any, Generic, NamedTuple, TypedDict, TypeVar, Unpack

from lockstead.core import lifecycle
from lockstead.core.checks import Seconds, check_seconds
from lockstead.core.engine import Engine
from lockstead.core.keeper import log
from lockstead.core.lease import INHERITED, LOST
from lockstead.core.runtime import Event, Runtime
from lockstead.errors import ClosedError, InvalidInputError, LockError, LockLostError, StoreError
from lockstead.primitives import info
from lockstead.primitives.handle import Single
from lockstead.primitives.plans import Defaults, Plan, plan

Seen = tuple[str, int] | None
"""By what one time of leading is told from another; None is for nobody's."""
NOT_SEEN_YET: Seen = ("", -1)
"""What differs from whatever can be seen."""
GRACE = 1 / 5
"""The part of the ttl that a leader has to stop in, if nothing else is said."""
MAX_GRACE = 1 / 2
"""With more of the ttl, a leader would have to stop while renewals are still on time."""


class ElectionOptions(TypedDict, total=False):
    """How to stand for election."""

    ttl: Seconds
    """How long a leader that died leads on; renewed while it lives. The client's default if not given."""
    grace: Seconds | None
    """How long before its lease could end a leader is told to stop: by default a fifth of the ttl, at most a half."""
    metadata: Mapping[str, Any] | None
    """JSON shown to whoever asks who leads."""
    on_elected: Callable[[Any], Any] | None
    """Called with the leadership once elected, in a thread or task of its own. If it raises, it has resigned."""
    on_lost: Callable[[Any], Any] | None
    """Called once with the leadership when it is lost, and when it is given up, before it is. Never without an
    election before it; `on_elected` may still be at work, and is to be stopped by this."""


@dataclass(frozen=True, slots=True)
class Leader:
    """Who led at the moment it was looked at. By the time you read it, it may be history."""

    holder_id: str
    """The client that leads: host:pid:random."""
    since: datetime
    fence: int
    """0 if only the leader knows it, as with advisory locks."""
    metadata: dict[str, Any]
    is_me: bool
    """Whether it is the client that was asked."""


class OneShotEvent:
    """The end of something, for any number to wait for."""

    def __init__(self, runtime: Runtime) -> None:
        self._new_event = runtime.event
        self._mutex = runtime.mutex()
        self._events: list[Event] = []
        self.is_set = False

    def come(self) -> None:
        with self._mutex:
            self.is_set = True
        for event in self._events:
            event.ring()

    async def wait(self, timeout: float = inf) -> bool:
        """Say whether it came in time."""
        with self._mutex:
            if self.is_set:
                return True
            event = self._new_event()
            self._events.append(event)
        await event.wait(timeout)
        return self.is_set


class Term:
    """The time that one leadership lasts: until its callbacks have ended and the lock is given up."""

    def __init__(self, runtime: Runtime) -> None:
        self._mutex = runtime.mutex()
        self._began = self._is_stopping = False
        self.changed = runtime.event()
        """Rung when it is lost or resigned."""
        self.work = OneShotEvent(runtime)
        """That of on_elected."""
        self.work_failed = False
        self.whole = OneShotEvent(runtime)
        self.callers: set[Hashable] = set()
        """The threads or tasks that run callbacks, which cannot wait for their own end."""
        self.failure: LockError | None = None

    def begin_work(self) -> bool:
        """Say whether there is still time to: nothing may be started after it was stopped."""
        with self._mutex:
            self._began = not self._is_stopping
            return self._began

    def stop_work(self) -> bool:
        """Let no work begin any more, and say whether it has."""
        with self._mutex:
            self._is_stopping = True
            return self._began


class Leading(Single):
    """What a leader holds: a lock that is given up only after its callbacks have ended."""

    since: datetime
    """When it was elected, by this machine's wall clock."""
    _term: Term | None = None

    @property
    def is_leader(self) -> bool:
        """Whether nobody else can lead, for sure, judged by the clock alone: no round trip."""
        return self.is_held

    @property
    def _owner(self) -> str:
        return self._leases[0].ask.owner

    async def _release(self) -> None:
        if self._released or self._term is None or self._leases[0].state is INHERITED:
            await super()._release()
            return
        self._resign()
        await self._wait_for_end(inf)

    def _resign(self) -> None:
        """Lead no more, but hold until the callbacks have ended, or for another ttl."""
        assert self._term is not None
        self._released = True
        with self._engine.keeper.mutex:
            self._leases[0].retire(self._engine.runtime.now())
        self._term.changed.ring()

    async def _wait_for_end(self, patience: float) -> None:
        """Wait until the lock is given up, or must have ended; from a callback or a nested call not at all."""
        term, lease = self._term, self._leases[0]
        assert term is not None
        runtime = self._engine.runtime
        if runtime.context() in term.callers or runtime.is_nested(self._engine.keeper.mutex):
            return  # the thread that ends it would wait for this one
        if not await term.whole.wait(min(patience, lease.ask.ttl)):
            log.warning("the callbacks of %s take long: it ends before they do", self._title)
            if lease.state is LOST:
                raise lease.error()
        if term.failure is not None:
            raise term.failure

    async def _release_leases(self) -> None:
        try:
            await super()._release_leases()
        finally:
            if self._leases[0].state is LOST:  # leave the rest of the grace to the next
                self._engine.keeper.release_in_background(self._leases[0])

    def _abandon(self) -> None:
        if self._term is None or self._term.whole.is_set:
            super()._abandon()
        else:
            self._resign()

    def _orphaned(self) -> None:
        """Give up what is not seen through: its task was cancelled before it began, or may not have been started."""
        if self._term is not None and not self._term.whole.is_set:
            self._released = True
            self._engine.leaders.pop(self._owner, None)
            self._engine.keeper.release_in_background(self._leases[0])
            self._term.whole.come()


L = TypeVar("L", bound=Leading)


class Candidacy(Generic[L]):
    """A candidate in the background, from start to stop."""

    def __init__(self, runtime: Runtime) -> None:
        self._mutex = runtime.mutex()
        self.changed = runtime.event()
        self.stands = True
        self.leadership: L | None = None
        """The present one, elected or not yet."""

    def present(self, leadership: L) -> bool:
        """Stand once more, unless it is too late to."""
        with self._mutex:
            self.leadership = leadership if self.stands else None
            return self.stands

    def elect(self, leadership: L, term: Term) -> bool:
        """Begin a term, unless it is too late to."""
        with self._mutex:
            leadership._term = term if self.stands else None
            return self.stands

    def end(self) -> L | None:
        """Stand no more, and tell what is to be given up."""
        with self._mutex:
            self.stands = False
        self.changed.ring()
        return self.leadership


class Callbacks(NamedTuple):
    on_elected: Callable[[Any], Any] | None
    on_lost: Callable[[Any], Any] | None


class Contest(Generic[L]):
    """An election as one client sees it."""

    def __init__(
        self,
        engine: Engine,
        new: Callable[[Engine], L],
        name: str,
        defaults: Defaults,
        **options: Unpack[ElectionOptions],
    ) -> None:
        self._engine = engine
        self._runtime = engine.runtime
        self._new = new
        self._callbacks = Callbacks(options.get("on_elected"), options.get("on_lost"))
        self._plan = _plan(name, defaults, **options)
        self._reset()
        lifecycle.at_fork(self, in_child="_reset")

    @property
    def name(self) -> str:
        return self._plan.asks[0].name

    def _reset(self) -> None:
        """Be no candidate: at first, and in a forked child, where no other thread has come along."""
        self._mutex = self._runtime.mutex()
        self._candidacy: Candidacy[L] | None = None

    def _plan_within(self, timeout: Seconds | None) -> Plan:
        return self._plan if timeout is None else self._plan.within(timeout)

    async def _campaign(self, plan: Plan) -> L:
        """Wait to be elected; the callbacks, if there are any, are seen to in the background."""
        term = Term(self._runtime)
        leadership = self._new(self._engine)
        await self._acquire(leadership, plan)
        if any(self._callbacks):
            try:
                leadership._term = term
                self._engine.leaders[leadership._owner] = leadership._release
                work = partial(self._run_term, leadership, term)
                self._runtime.spawn(work, "lockstead-election", leadership._orphaned)
            except BaseException:  # no more threads to be had, or an interrupt, after which one may have begun
                leadership._orphaned()
                term.changed.ring()
                raise
        return leadership

    async def _acquire(self, leadership: L, plan: Plan) -> None:
        await leadership._acquire(plan)
        leadership.since = datetime.now(UTC)

    def _start(self) -> None:
        self._engine.check_open(self.name)
        candidacy: Candidacy[L] = Candidacy(self._runtime)
        try:
            with self._mutex:
                if self._candidacy is not None:
                    return
                self._candidacy = candidacy
            self._engine.candidates.add(self._stop)
            work = partial(self._stand, candidacy)
            self._runtime.spawn(work, "lockstead-candidate", lambda: self._ended(candidacy))
        except BaseException:  # no more threads to be had, or an interrupt
            candidacy.end()
            self._ended(candidacy)
            raise

    async def _stop(self, patience: float = inf) -> None:
        """Stand no more. What was held is given up by then, or ends by itself."""
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
                await leadership._wait_for_end(patience)
        elif leadership._claim is not None:
            await self._engine.withdraw(leadership._claim)

    def _ended(self, candidacy: Candidacy[L]) -> None:
        with self._mutex:
            if self._candidacy is candidacy:
                self._candidacy = None
                self._engine.candidates.discard(self._stop)

    async def _stand(self, candidacy: Candidacy[L]) -> None:
        """Campaign and lead, again and again."""
        failures = 0
        try:
            while candidacy.stands:
                if await self._campaign_once(candidacy, logging.DEBUG if failures else logging.WARNING):
                    failures = 0
                else:
                    pause = self._plan.retry.pause(failures, self._runtime.random())
                    failures += 1
                    await candidacy.changed.wait(pause)
        except ClosedError:
            log.debug("the election of %r ends with its client", self.name)
        finally:
            self._ended(candidacy)

    async def _campaign_once(self, candidacy: Candidacy[L], level: int) -> bool:
        """Campaign, and lead if elected; say whether there is nothing to be mended before the next time."""
        term = Term(self._runtime)
        leadership = self._new(self._engine)
        if not candidacy.present(leadership):
            return True
        try:
            await self._acquire(leadership, self._plan)
        except ClosedError:
            raise
        except Exception as error:
            if candidacy.stands:
                log.log(level, "could not stand for election, trying again: %s", error)
            return False
        if not candidacy.elect(leadership, term):
            with suppress(LockLostError, StoreError):
                await leadership._release()
            return True
        self._engine.leaders[leadership._owner] = leadership._release
        await self._run_term(leadership, term)
        await term.work.wait()
        return not term.work_failed

    async def _run_term(self, leadership: L, term: Term) -> None:
        """Call on_elected; call on_lost when it is lost or resigned; and only then give the lock up."""
        term.callers.add(self._runtime.context())
        interruption: BaseException | None = None
        for step in (self._lead, self._part):
            try:
                await step(leadership, term)
            except GeneratorExit:  # nothing may be awaited any more
                raise
            except BaseException as error:
                interruption = interruption or error
        try:
            await leadership._release_leases()
        except (LockLostError, StoreError) as failure:
            term.failure = failure
        finally:
            self._engine.leaders.pop(leadership._owner, None)
            term.whole.come()
        if interruption is not None:
            raise interruption

    async def _lead(self, leadership: L, term: Term) -> None:
        leadership._watch(term.changed.ring)
        if self._callbacks.on_elected is None:
            term.begin_work()
            term.work.come()
        else:
            work = partial(self._work, self._callbacks.on_elected, leadership, term)
            try:
                self._runtime.spawn(work, "lockstead-elected", term.work.come)
            except RuntimeError:  # no more threads to be had
                log.exception("on_elected of %r could not be called", self.name)
                term.work_failed = True
                term.work.come()
                return
        while leadership.is_held:
            await term.changed.wait(inf)

    async def _work(self, on_elected: Callable[[L], Any], leadership: L, term: Term) -> None:
        term.callers.add(self._runtime.context())
        try:
            if leadership.is_held and term.begin_work():
                term.work_failed = True
                term.work_failed = not await self._call(on_elected, leadership)
        finally:
            if term.work_failed and leadership.is_held:
                leadership._resign()
            term.work.come()

    async def _part(self, leadership: L, term: Term) -> None:
        """See to it that the work stops, which is given the time that the lease has left."""
        if leadership.is_held:
            leadership._resign()
        has_begun = term.stop_work()
        if self._callbacks.on_lost is not None and has_begun:
            await self._call(self._callbacks.on_lost, leadership)
        if has_begun:
            await term.work.wait(self._plan.asks[0].ttl)

    async def _call(self, callback: Callable[[L], Any], leadership: L) -> bool:
        try:
            result = callback(leadership)
            if inspect.isawaitable(result):
                await result
        except Exception:
            log.exception("a callback of the election of %r failed", self.name)
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
        """Look every so often until somebody else leads than was seen last."""
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
    """Tell one time of leading from another; where fences are not shown, only one leader from another."""
    return None if leader is None else (leader.holder_id, leader.fence)


def check_interval(interval: Seconds) -> float:
    """Accept a pause that leaves the store time for others."""
    seconds = check_seconds(interval, "interval")
    if not 0 < seconds < inf:
        msg = f"interval must be above 0 and finite, got {seconds:g}"
        raise InvalidInputError(msg)
    return seconds


def _plan(name: str, defaults: Defaults, **options: Unpack[ElectionOptions]) -> Plan:
    planned = plan(name, defaults, ttl=options.get("ttl"), metadata=options.get("metadata"))
    life, grace = planned.asks[0].ttl, options.get("grace")
    seconds = life * GRACE if grace is None else check_seconds(grace, "grace")
    if seconds > life * MAX_GRACE:
        msg = (
            f"grace may be half of the ttl of {life:g} s at the most, got {seconds:g} s: with more, a leader would "
            "stop while renewals are still on time; raise the ttl to have more grace"
        )
        raise InvalidInputError(msg, name=name)
    return planned._replace(grace=seconds)
