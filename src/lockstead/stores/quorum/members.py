"""The members of a quorum: asked side by side, looked after when silent, admitted when they come back empty."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Any, NamedTuple, TypeVar

from lockstead.core import lifecycle
from lockstead.core.model import Membership
from lockstead.core.runtime import Runtime
from lockstead.core.store import Member
from lockstead.errors import DamagedError, StoreError

log = logging.getLogger("lockstead")

T = TypeVar("T")
Votes = Sequence[T | Exception | None]
"""What each member answered; None where it has not."""

GRACE = 0.01
"""How long to listen on after the decision: to hear the rest now is cheaper than later."""
LONGEST_ROUND = 2.0
"""Votes given further apart do not count together. The same for all clients, whatever their time-outs."""
ADMISSION_WAIT = 2.5
"""How long a member found empty is let be before the others are asked what it forgot: every round it had voted in is
over by then, so whoever else voted in it knows of it."""
MIN_PROBE_INTERVAL = 0.05
MAX_PROBE_INTERVAL = 1.0
"""The pauses between looks at a silent member grow from one to the other."""
MAX_PENDING_RELEASES = 10_000


def all_answered(votes: Votes[T]) -> bool:
    return None not in votes


def _say_nothing(number: int, answer: object) -> None:
    pass


class MemberHealth(NamedTuple):
    """What one member says when knocked at."""

    name: str
    reachable: bool
    votes_in: float
    """Seconds until it votes; infinite while it waits to be admitted, or is silent."""
    error: str


class UnaskedError(StoreError):
    """The member was left alone: it had been silent of late, and the others sufficed."""


@dataclass(slots=True)
class _MemberState:
    name: str
    member: Member
    error: str = ""
    suspected: bool = False
    """It was silent of late, and is looked after in the background."""
    debts: dict[tuple[str, str], tuple[float, float]] = field(default_factory=dict)
    """Places to give up once it is back: for how long their owner is refused, and until when it matters."""
    found_empty: tuple[str, float] | None = None
    """The token under which it waits to be admitted or to vote, and when we knew."""


class Members:
    def __init__(self, runtime: Runtime, members: Sequence[Member], names: Sequence[str], timeout: float) -> None:
        self.runtime = runtime
        self.majority = len(members) // 2 + 1
        self._nodes = [_MemberState(name, member) for name, member in zip(names, members, strict=True)]
        self._timeout = timeout
        self._closed = False
        self._reset()
        lifecycle.at_fork(self, in_child="_reset")

    def _reset(self) -> None:
        """Look after nobody: at first, and in a forked child, where no other thread has come along."""
        self._mutex = self.runtime.mutex()
        self._bootstrapped = False
        self._is_admitting = False
        for node in self._nodes:
            node.suspected = False
            node.debts = {}

    def __len__(self) -> int:
        return len(self._nodes)

    async def ask(
        self,
        send: Callable[[int, Member], Awaitable[T]],
        is_decided: Callable[[Votes[T]], bool],
        suffices: Callable[[Votes[T]], bool],
        *,
        among: Iterable[int] | None = None,
        before: Callable[[Sequence[int]], object] = len,
        heard: Callable[[int, T | Exception], object] = _say_nothing,
    ) -> list[T | Exception | None]:
        """Ask members side by side until it is decided; suspected ones only if the others do not suffice.

        `before` is called with those that will be asked, before anything can interrupt; `heard` with what each answers,
        be that after the decision.
        """
        votes: list[T | Exception | None] = [None] * len(self._nodes)
        asked = list(range(len(self._nodes)) if among is None else among)
        suspected = [number for number in asked if self._nodes[number].suspected]
        if len(self._nodes) - len(suspected) < self.majority:
            suspected = []

        def hear(number: int, vote: T | Exception) -> None:
            votes[number] = vote
            heard(number, vote)

        async def ask_all(numbers: Sequence[int]) -> None:
            before(numbers)
            works = [self._attempt(number, send, hear) for number in numbers]
            await self.runtime.gather(works, lambda _: is_decided(votes), GRACE)

        await ask_all([number for number in asked if number not in suspected])
        if suspected and not suffices(votes):
            await ask_all(suspected)
        else:
            for number in suspected:
                votes[number] = UnaskedError(self._nodes[number].error, transient=True)
        return list(votes)  # to which nobody adds any more

    async def _attempt(
        self,
        number: int,
        send: Callable[[int, Member], Awaitable[T]],
        heard: Callable[[int, T | Exception], object] = _say_nothing,
    ) -> T | Exception:
        node = self._nodes[number]
        answer: T | Exception
        try:
            answer = await send(number, node.member)
        except Exception as error:
            node.error = str(error)
            if not isinstance(error, DamagedError):  # which is an answer, about one name mostly
                self._start_recovery(number)
            answer = error
        heard(number, answer)
        return answer

    def queue_release(self, number: int, name: str, owner: str, tombstone: float, until: float) -> None:
        """Give a place up as soon as its member answers, while that matters."""
        debts = self._nodes[number].debts
        with self._mutex:
            if len(debts) < MAX_PENDING_RELEASES:
                debts[name, owner] = tombstone, until
        self._start_recovery(number)

    def _start_recovery(self, number: int) -> None:
        node = self._nodes[number]
        began = False
        try:
            with self._mutex:
                if node.suspected or self._closed:
                    return
                began = node.suspected = True
            self._start(partial(self._recover_member, number), lambda: setattr(node, "suspected", False))
        except BaseException:  # an interrupt: the probe may not have been started
            if began:
                node.suspected = False
            raise

    async def _recover_member(self, number: int) -> None:
        """Knock until the member answers, and pay what it is owed."""
        node = self._nodes[number]
        pause = MIN_PROBE_INTERVAL
        while not self._closed:
            await self.runtime.sleep(pause * (0.5 + 0.5 * self.runtime.random()))
            pause = min(2 * pause, MAX_PROBE_INTERVAL)
            try:
                membership = await node.member.probe(self._timeout)
                await self._flush_releases(node)
            except Exception as error:
                node.error = str(error)
                continue
            if membership.votes_in > 0:
                self.heal()
            with self._mutex:
                if not node.debts:
                    node.suspected = False
                    return

    async def _flush_releases(self, node: _MemberState) -> None:
        for (name, owner), (tombstone, until) in list(node.debts.items()):
            if tombstone or self.runtime.now() < until:
                with suppress(DamagedError):  # no client can join that line: no reason to do without the member
                    await node.member.leave(name, owner, self._timeout, tombstone)
            with self._mutex:
                node.debts.pop((name, owner), None)

    async def introduce(self) -> None:
        """Before the first use: let new servers vote at once, and know who does not."""
        if self._bootstrapped:
            return
        memberships = await self._visit()
        if all(membership is not None and membership.votes_in == inf for membership in memberships):
            memberships = await self._visit()
        voting = [membership for membership in memberships if membership is not None and membership.votes_in == 0]
        self._bootstrapped = len(voting) >= self.majority
        if any(membership is not None and membership.votes_in > 0 for membership in memberships):
            self.heal()

    def heal(self) -> None:
        """Have members that do not vote admitted, in the background."""
        began = False
        try:
            with self._mutex:
                if self._is_admitting or self._closed:
                    return
                began = self._is_admitting = True
            self._start(self._heal, self._admission_ended)
        except BaseException:
            if began:
                self._is_admitting = False
            raise

    def _admission_ended(self) -> None:
        self._is_admitting = False

    async def _heal(self) -> None:
        try:
            while not self._closed:
                memberships = await self._visit()
                waits = [membership.votes_in for membership in memberships if membership and membership.votes_in > 0]
                if not waits:
                    return
                await self.runtime.sleep(min(*waits, MAX_PROBE_INTERVAL) + MIN_PROBE_INTERVAL)
        finally:
            self._admission_ended()

    async def _visit(self) -> list[Membership | None]:
        """Knock at everybody once, and admit whom that allows.

        An admission names the token that was read before the others' memories were. Had the member come back
        empty once more since, it would have another, and what was gathered for the first might lack votes it
        gave in between: so it takes no notice.
        """
        sent = self.runtime.now()
        memberships = await self._probe_all()
        now = self.runtime.now()
        admitted = [each for each in memberships if each is not None and each.votes_in < inf]
        waiting: list[tuple[int, Membership, float]] = []
        for number, (node, membership) in enumerate(zip(self._nodes, memberships, strict=True)):
            if membership is None:
                continue
            if membership.votes_in < inf:
                self._note_admitted(node, membership)
                continue
            found = node.found_empty  # another thread's visit may have had it admitted by now
            if found is None or found[0] != membership.token:
                found = node.found_empty = membership.token, now
                if admitted:
                    log.warning("%s has come back empty: it does not vote until it is safe", node.name)
            waiting.append((number, membership, found[1]))
        ticket = max((each.ticket for each in admitted), default=0)
        longest = max((each.longest for each in admitted), default=0.0)
        patience = self._required_wait(len(admitted), [sent - since for _, _, since in waiting])
        for number, membership, since in waiting:
            if sent - since >= patience:
                memberships[number] = await self._admit(number, membership, ticket, longest)
        return memberships

    def _required_wait(self, admitted: int, waited: Sequence[float]) -> float:
        """Tell how long a member must have waited before this round to be admitted by what it found."""
        if admitted > (len(self._nodes) - 1) // 2:
            return ADMISSION_WAIT  # any majority that a waiting one was part of has one of these in it
        if admitted + len(waited) < len(self._nodes) or min(waited) < 0:
            return inf
        # All answered in two rounds, so there was a moment at which all of these had forgotten everything. Where that
        # is all there are, they are new; otherwise more were lost than may be, and this is the best that can be done.
        return ADMISSION_WAIT if admitted else 0.0

    async def _admit(self, number: int, membership: Membership, ticket: int, longest: float) -> Membership | None:
        node = self._nodes[number]

        answer = await self._attempt(
            number, lambda _, member: member.admit(membership.token, ticket, longest, self._timeout)
        )
        if isinstance(answer, Exception):
            return None
        if answer.votes_in < inf:
            self._note_admitted(node, answer)
        return answer

    def _note_admitted(self, node: _MemberState, membership: Membership) -> None:
        if node.found_empty is not None and membership.votes_in == 0:
            node.found_empty = None
            log.info("%s votes", node.name)

    async def _probe_all(self) -> list[Membership | None]:
        works = [self._attempt(n, lambda _, member: member.probe(self._timeout)) for n in range(len(self._nodes))]
        answers = await self.runtime.gather(works, all_answered, GRACE)
        return [answer if isinstance(answer, Membership) else None for answer in answers]

    async def health(self) -> list[MemberHealth]:
        memberships = await self._probe_all()
        if any(membership is not None and membership.votes_in > 0 for membership in memberships):
            self.heal()
        return [
            MemberHealth(node.name, False, inf, node.error)
            if membership is None
            else MemberHealth(node.name, True, membership.votes_in, "")
            for node, membership in zip(self._nodes, memberships, strict=True)
        ]

    def _start(self, work: Callable[[], Coroutine[Any, Any, None]], undo: Callable[[], None]) -> None:
        try:
            self.runtime.spawn(work, "lockstead-quorum", undo)
        except RuntimeError:  # no more threads to be had, or no loop: at the next occasion
            undo()

    def describe(self, number: int, what: object) -> str:
        name = self._nodes[number].name
        return f"{name}: {str(what).removeprefix(f'{name}: ')}"

    def stop(self) -> None:
        """Look after nobody any more: nobody is interested."""
        self._closed = True

    async def close(self) -> None:
        self.stop()
        for node in self._nodes:
            await node.member.close()
