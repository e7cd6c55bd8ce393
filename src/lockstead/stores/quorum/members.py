"""The members of a quorum: asked concurrently, probed while unreachable, readmitted after they restarted empty."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Any, NamedTuple

from lockstead.core import lifecycle
from lockstead.core.model import Membership
from lockstead.core.runtime import Outcomes, Runtime
from lockstead.core.store import Member, Sending
from lockstead.errors import DamagedError
from lockstead.stores.quorum.placement import Departure

log = logging.getLogger("lockstead")


DEFAULT_NODE_TIMEOUT = 0.25
"""Seconds that one member has to answer a request: what an unreachable member costs the first caller."""
VOTE_GRACE = 0.01
"""Seconds to wait for further answers after the decision: to take them now is cheaper than in the background."""
LONGEST_ROUND = 2.0
"""Seconds that a round may take to count: votes given further apart do not count together. The same for all clients,
whatever their timeouts."""
ADMISSION_WAIT = 2.5
"""Seconds between finding a member empty and asking the others for what it lost. Longer than any round: every round the
member had voted in is over by then, so each other member that voted in it has a record of it."""
NEW_SERVERS_WAIT = 1.0
"""Seconds before a member that never voted is logged as empty: new servers are admitted one after another, but soon."""
MIN_PROBE_INTERVAL = 0.05
"""Seconds before an unreachable member is probed for the first time: one that is back soon is used again soon."""
MAX_PROBE_INTERVAL = 1.0
"""Seconds up to which the pauses between probes double: a member that stays down costs little."""
MAX_PENDING_RELEASES = 10_000
"""Releases queued for one unreachable member: a bound on memory. A place beyond it expires by itself."""


class MemberHealth(NamedTuple):
    """The outcome of one probe of a member."""

    name: str
    reachable: bool
    votes_in: float
    """Seconds until it votes; infinite while it waits to be admitted, or is unreachable."""
    error: str


@dataclass(slots=True)
class _MemberState:
    name: str
    member: Member
    error: str = ""
    suspected: bool = False
    """It was unreachable recently, and is probed in the background."""
    pending_releases: dict[tuple[str, str], tuple[float, float]] = field(default_factory=dict)
    """Places to release once it answers: for how long a tombstone refuses the owner, and until when it matters."""
    has_answered: bool = False
    """It has answered a probe of this client."""
    has_dropped_releases: bool = False
    """More releases were pending than are kept, and this was logged."""
    abstains: bool = False
    """It answered the last probe, but does not vote."""
    has_voted: bool = False
    """It has voted since this client first probed it: if it is empty now, it has lost its data."""
    logged_token: str = ""
    """The token under which it was last logged as empty."""
    found_empty: tuple[str, float] | None = None
    """The token under which it waits to be admitted or to vote, and when it was found empty."""

    def take(self, membership: Membership) -> None:
        """Take the answer to a probe."""
        self.abstains = membership.votes_in > 0
        self.has_voted |= not self.abstains

    @property
    def why_empty(self) -> str:
        return "has restarted empty" if self.has_voted else "is new or has restarted empty"


class Members:
    """The members of one quorum, and the background tasks that probe, recover and admit them."""

    def __init__(self, runtime: Runtime, members: Sequence[Member], names: Sequence[str], timeout: float) -> None:
        self.runtime = runtime
        self.majority = len(members) // 2 + 1
        self.stores = members
        self.senders = [member if isinstance(member, Sending) else None for member in members]
        self.numbers = range(len(members))
        self._states = [_MemberState(name, member) for name, member in zip(names, members, strict=True)]
        self._timeout = timeout
        self._closed = False
        self._reset()
        lifecycle.at_fork(self, in_child="_reset")

    def _reset(self) -> None:
        """Start without background tasks: at first, and in a forked child, to which no other thread is copied."""
        self._mutex = self.runtime.mutex()
        self._bootstrapped = False
        self._is_admitting = False
        for state in self._states:
            state.suspected = False
            state.pending_releases = {}

    def __len__(self) -> int:
        return len(self._states)

    def by_health(self, numbers: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
        """Divide members into those to ask first, and suspected ones: none if the others are no majority."""
        suspected = [number for number in numbers if self._states[number].suspected]
        if not suspected or len(self) - len(suspected) < self.majority:
            return numbers, ()
        return [number for number in numbers if number not in suspected], suspected

    def note_failure(self, number: int, error: Exception) -> None:
        """Suspect a member that failed to answer, and probe it in the background."""
        self._states[number].error = str(error)
        if not isinstance(error, DamagedError):  # which is an answer, mostly about one name
            self._start_recovery(number)

    def error_of(self, number: int) -> str:
        """Return why a member last failed."""
        return self._states[number].error

    def queue_release(self, number: int, departure: Departure) -> None:
        """Release a place as soon as its member answers; without a tombstone, only before it has expired."""
        name, owner, _, until, tombstones = departure
        pending_releases = self._states[number].pending_releases
        with self._mutex:
            is_dropped = len(pending_releases) >= MAX_PENDING_RELEASES
            if not is_dropped:
                pending_releases[name, owner] = tombstones.get(number, 0.0), until
        if is_dropped:
            self._log_dropped_release(self._states[number], name)
        self._start_recovery(number)

    def _start_recovery(self, number: int) -> None:
        state = self._states[number]
        began = False
        try:
            with self._mutex:
                if state.suspected or self._closed:
                    return
                began = state.suspected = True
            self._start(partial(self._recover_member, number), lambda: setattr(state, "suspected", False))
        except BaseException:  # an interrupt: the probe may not have been started
            if began:
                state.suspected = False
            raise

    async def _recover_member(self, number: int) -> None:
        """Probe the member until it answers and has applied its pending releases.

        It is logged only if the first probe fails, too: not that one request was answered late.
        """
        state = self._states[number]
        pause = MIN_PROBE_INTERVAL
        began_at = self.runtime.now()
        logged_at_level = logging.NOTSET
        while not self._closed:
            await self.runtime.sleep(pause * (0.5 + 0.5 * self.runtime.random()))
            pause = min(2 * pause, MAX_PROBE_INTERVAL)
            try:
                membership = await state.member.probe(self._timeout)
                await self._flush_releases(state)
            except Exception as error:
                state.error = str(error)
                if not logged_at_level and not self._closed:
                    logged_at_level = self._log_failure(number)
                continue
            state.has_answered = True
            state.take(membership)
            if state.abstains:
                self.start_admission()
            with self._mutex:
                if state.pending_releases:
                    continue
                state.suspected = state.has_dropped_releases = False
            if logged_at_level:
                self._log_recovery(state, self.runtime.now() - began_at, logged_at_level)
            return

    def _log_failure(self, number: int) -> int:
        """Log that a member fails, and return the level: at first contact this is nothing new."""
        state = self._states[number]
        level = logging.WARNING if state.has_answered else logging.INFO
        log.log(
            level,
            "Redlock node %s fails (%s): %d of %d nodes left; probing it in the background",
            state.name,
            state.error.removeprefix(f"{state.name}: "),
            self._count_working(),
            len(self._states),
        )
        return level

    def _log_recovery(self, state: _MemberState, seconds: float, level: int) -> None:
        what = f"answers now but {state.why_empty}, and does not vote yet," if state.abstains else "works again"
        log.log(
            level,
            "Redlock node %s %s after %.1f s: %d of %d nodes work",
            state.name,
            what,
            seconds,
            self._count_working(),
            len(self._states),
        )

    def _log_dropped_release(self, state: _MemberState, name: str) -> None:
        """Log the first of an outage."""
        if not state.has_dropped_releases:
            state.has_dropped_releases = True
            log.warning(
                "Redlock node %s: %d releases are pending: the release of %r and later ones are dropped, and their "
                "places there expire",
                state.name,
                MAX_PENDING_RELEASES,
                name,
            )

    def _count_working(self) -> int:
        return sum(not state.suspected and not state.abstains for state in self._states)

    async def _flush_releases(self, state: _MemberState) -> None:
        for (name, owner), (tombstone, until) in list(state.pending_releases.items()):
            if tombstone or self.runtime.now() < until:
                with suppress(DamagedError):  # no client can join that line: not a reason to suspect the member
                    await state.member.leave(name, owner, self._timeout, tombstone)
            with self._mutex:
                state.pending_releases.pop((name, owner), None)

    async def bootstrap(self) -> None:
        """Before the first use: let new members vote at once, and find those that do not."""
        if self._bootstrapped:
            return
        memberships = await self._probe_and_admit()
        if all(membership is not None and membership.votes_in == inf for membership in memberships):
            memberships = await self._probe_and_admit()
        voting = [membership for membership in memberships if membership is not None and membership.votes_in == 0]
        self._bootstrapped = len(voting) >= self.majority
        if any(membership is not None and membership.votes_in > 0 for membership in memberships):
            self.start_admission()

    def start_admission(self) -> None:
        """Admit the members that do not vote, in the background."""
        began = False
        try:
            with self._mutex:
                if self._is_admitting or self._closed:
                    return
                began = self._is_admitting = True
            self._start(self._admit_members, self._admission_ended)
        except BaseException:
            if began:
                self._is_admitting = False
            raise

    def _admission_ended(self) -> None:
        self._is_admitting = False

    async def _admit_members(self) -> None:
        try:
            while not self._closed:
                memberships = await self._probe_and_admit()
                waits = [membership.votes_in for membership in memberships if membership and membership.votes_in > 0]
                if not waits:
                    return
                await self.runtime.sleep(min(*waits, MAX_PROBE_INTERVAL) + MIN_PROBE_INTERVAL)
        finally:
            self._admission_ended()

    async def _probe_and_admit(self) -> list[Membership | None]:
        """Probe every member once, and admit those that the answers allow to be admitted.

        An admission names the token that was read before the other members were. If the member has restarted empty
        once more since, it has another token. What was read for the first might lack votes that it gave in between,
        so it ignores the admission.
        """
        sent = self.runtime.now()
        memberships = await self._probe_all()
        now = self.runtime.now()
        admitted = [each for each in memberships if each is not None and each.votes_in < inf]
        waiting: list[tuple[int, Membership, float]] = []
        for number, (state, membership) in enumerate(zip(self._states, memberships, strict=True)):
            if membership is None:
                continue
            state.has_answered = True
            if membership.votes_in < inf:
                self._note_admitted(state, membership)
                continue
            found = state.found_empty  # another thread may have had it admitted by now
            if found is None or found[0] != membership.token:
                found = state.found_empty = membership.token, now
            if admitted and (state.has_voted or now - found[1] >= NEW_SERVERS_WAIT):
                self._log_empty(state, membership.token)
            waiting.append((number, membership, found[1]))
        ticket = max((each.ticket for each in admitted), default=0)
        longest = max((each.longest for each in admitted), default=0.0)
        required_wait = self._required_wait(len(admitted), [sent - since for _, _, since in waiting])
        for number, membership, since in waiting:
            if sent - since >= required_wait:
                memberships[number] = await self._admit(number, membership, ticket, longest)
        return memberships

    def _log_empty(self, state: _MemberState, token: str) -> None:
        if state.logged_token != token:
            state.logged_token = token
            log.warning("Redlock node %s %s: it does not vote until admitted", state.name, state.why_empty)

    def _required_wait(self, admitted: int, waited: Sequence[float]) -> float:
        """Return how long a member must have waited before this round to be admitted by its answers."""
        if admitted > (len(self._states) - 1) // 2:
            return ADMISSION_WAIT  # any majority that a waiting one was part of has one of these in it
        if admitted + len(waited) < len(self._states) or min(waited) < 0:
            return inf
        # All answered in two rounds, so there was a moment at which all of these were empty. If these are all members,
        # they are new; otherwise more lost their data than the guarantee allows, and this is the best that can be done.
        return ADMISSION_WAIT if admitted else 0.0

    async def _admit(self, number: int, membership: Membership, ticket: int, longest: float) -> Membership | None:
        state = self._states[number]

        answer = await self._attempt(
            number, lambda member: member.admit(membership.token, ticket, longest, self._timeout)
        )
        if answer is not None and answer.votes_in < inf:
            self._note_admitted(state, answer)
        return answer

    def _note_admitted(self, state: _MemberState, membership: Membership) -> None:
        if state.found_empty is not None and membership.votes_in == 0:
            state.found_empty = None
            log.info("Redlock node %s has been admitted: it votes", state.name)

    async def _probe_all(self) -> list[Membership | None]:
        probes = [self._attempt(number, lambda member: member.probe(self._timeout)) for number in self.numbers]
        outcomes = await Outcomes(probes).gather(self.runtime)
        return [None if isinstance(outcome, Exception) else outcome for outcome in outcomes]

    async def _attempt(self, number: int, send: Callable[[Member], Awaitable[Membership]]) -> Membership | None:
        state = self._states[number]
        try:
            membership = await send(state.member)
        except Exception as error:
            self.note_failure(number, error)
            return None
        state.take(membership)
        return membership

    async def health(self) -> list[MemberHealth]:
        memberships = await self._probe_all()
        if any(membership is not None and membership.votes_in > 0 for membership in memberships):
            self.start_admission()
        return [
            MemberHealth(state.name, False, inf, state.error)
            if membership is None
            else MemberHealth(state.name, True, membership.votes_in, "")
            for state, membership in zip(self._states, memberships, strict=True)
        ]

    def _start(self, work: Callable[[], Coroutine[Any, Any, None]], undo: Callable[[], None]) -> None:
        try:
            self.runtime.spawn(work, "lockstead-quorum", undo)
        except RuntimeError:  # no thread can be started, or there is no loop: retried on the next occasion
            undo()

    def describe(self, number: int, what: object) -> str:
        name = self._states[number].name
        return f"{name}: {str(what).removeprefix(f'{name}: ')}"

    def stop(self) -> None:
        """End the background tasks: the quorum is closed or was dropped."""
        self._closed = True

    async def close(self) -> None:
        self.stop()
        for state in self._states:
            await state.member.close()
