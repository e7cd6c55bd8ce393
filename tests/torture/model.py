"""A tiny model of the right behaviour: histories in which nothing is wrong, for the checkers to find nothing in.

One store serves clients that acquire, hold, renew, lose and release, reserve names, do things once, are paused, cut off
and killed, write to fenced registers and consume from rate limits. Time is virtual, requests and answers take some of
it, and the seed decides everything.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import Any

from lockstead.testing.torture.checkers import Promises
from lockstead.testing.torture.history import (
    KILL,
    Acquire,
    Check,
    Consume,
    Fault,
    ForcedRelease,
    History,
    Inspection,
    Kind,
    Read,
    Release,
    Wait,
    Write,
)

HEARTBEAT = 1.0
MARGIN = 0.02
SLOWEST = 0.01
"""What one message takes at the most."""
END = 12.0
LOSE_DATA = "lose data"
PROMISES = Promises(
    may_lose_grants={LOSE_DATA},
    slack=0.05,
    wakes_within=6 * SLOWEST,
    recovers_within=3.0,
    longest_ttl=4.0,
    grace=0.1,
)

Steps = Generator[float | Callable[[], bool], None, None]
"""What a client does, yielding how long to sleep or what to wait for."""


@dataclass(eq=False)
class Client:
    name: str
    paused_until: float = 0.0
    cut_off_until: float = 0.0
    is_dead: bool = False


@dataclass(eq=False)
class Place:
    owner: Acquire
    ticket: int
    expires_at: float
    holds: bool = False
    reserved: bool = False
    """Its owner has left, and keeps the name reserved."""


@dataclass
class Register:
    value: Any = None
    fence: int = 0


@dataclass
class Model:
    """A store and all its clients. Its methods up to `consume` are what a bug may be put in."""

    seed: int
    random: random.Random = field(init=False)
    now: float = 0.0
    history: History = field(default_factory=History)
    lines: dict[str, list[Place]] = field(default_factory=dict)
    registers: dict[str, Register] = field(default_factory=dict)
    rates: dict[str, tuple[float, float]] = field(default_factory=dict)
    events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    numbers: count[int] = field(default_factory=lambda: count(1))

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.clients = [Client(f"p{number}") for number in range(self.random.randint(2, 6))]

    def run(self) -> History:
        for client in self.clients:
            for _ in range(self.random.randint(1, 2)):
                self._resume(client, self._use(client))
            self._resume(client, self._consume(client))
            self._harm(client)
        while self.events and self.events[0][0] < END:
            self.now, _, act = heappop(self.events)
            act()
        self.now = END
        self._end()
        return self.history

    def join(self, owner: Acquire) -> Place | None:
        line = self.settle(owner.name)
        place = Place(owner, next(self.numbers), self.now + min(owner.ttl, HEARTBEAT))
        line.append(place)
        self.settle(owner.name)
        if not place.holds and not owner.queue:
            line.remove(place)
            return None
        if place.holds:
            place.expires_at = self.now + owner.ttl
        return place

    def renew(self, place: Place) -> bool:
        """Renew a place, if it is there."""
        if place not in self.settle(place.owner.name):
            return False
        ttl = place.owner.ttl if place.holds else min(place.owner.ttl, HEARTBEAT)
        place.expires_at = max(place.expires_at, self.now + ttl)
        return True

    def leave(self, place: Place, seconds: float = 0.0) -> bool:
        """Release a place, or turn it into a reservation of so many seconds."""
        line = self.settle(place.owner.name)
        was_there = place in line
        if was_there and seconds > 0 and place.holds:
            place.reserved, place.expires_at = True, self.now + seconds
        elif was_there:
            line.remove(place)
            self.settle(place.owner.name)
        return was_there

    def force_release(self, name: str) -> list[int]:
        """Take a name away from its holder."""
        released = [place for place in self.settle(name) if place.holds]
        self.lines[name] = [place for place in self.lines[name] if place not in released]
        self.settle(name)
        return [place.ticket for place in released if not place.reserved]

    def settle(self, name: str) -> list[Place]:
        """Remove the dead, and let hold the places that fit."""
        line = self.lines.setdefault(name, [])
        line[:] = [place for place in line if place.expires_at > self.now]
        weight = 0
        for place in line:
            weight += place.owner.weight
            place.holds = place.holds or weight <= place.owner.capacity
            if weight > place.owner.capacity:
                break
        return line

    def accepts(self, register: Register, write: Write) -> bool:
        return write.fence >= register.fence

    def consume(self, consume: Consume) -> bool:
        amount, at = self.rates.get(consume.name, (0.0, 0.0))
        level = max(amount - (self.now - at), 0.0) + consume.cost * consume.interval
        consume.retry_after = max(level - consume.burst * consume.interval, 0.0)
        if consume.retry_after > 1e-9:
            return False
        self.rates[consume.name] = level, self.now
        return True

    def _use(self, client: Client) -> Steps:
        """Acquire one name after another, and work."""
        while True:
            yield self.random.random() * 0.5
            one = self._ask(client)
            sent = self.now
            yield self._travel()
            place = self.join(one)
            first = next(iter(self.lines[one.name]), None)
            value = first.owner.value if first is not None and first.reserved else None
            yield self._travel()
            if place is None and value is not None:
                one.completed, one.outcome, one.value = self.now, "remembered", value
            elif place is None:
                one.completed, one.outcome = self.now, "refused"
            elif one.period:
                yield from self._do(client, one, place)
            elif place.holds:
                yield from self._hold(client, one, place, sent)
            elif place := (yield from self._wait(client, one, place, sent)):
                yield from self._hold(client, one, place, one.waits[-1].asked)

    def _ask(self, client: Client) -> Acquire:
        kinds: list[tuple[Kind, int, int]] = [
            ("lock", 1, 1),
            ("read", 1000, 1),
            ("write", 1000, 1000),
            ("leader", 1, 1),
            ("once", 1, 1),
        ]
        permits: Kind = "permit"
        kind, capacity, weight = self.random.choice([*kinds, (permits, 3, self.random.randint(1, 3))])
        name = {"read": "shared", "write": "shared"}.get(kind, kind)
        one = Acquire(
            client=client.name,
            line=next(self.numbers),
            invoked=self.now,
            name=name,
            kind=kind,
            capacity=capacity,
            weight=weight,
            queue=kind != "once" and self.random.random() < 0.8,
            timeout=self.random.choice((None, self.random.random() * 3)),
            ttl=self.random.choice((0.5, 1.0, 3.0)),
            watched=kind not in {"leader", "once"},
            at_least=self.random.random() * 2 if kind == "lock" and self.random.random() < 0.5 else 0.0,
            period=self.random.random() if kind == "once" else 0.0,
            holder=client.name,
        )
        self.history.add(one)
        return one

    def _wait(self, client: Client, one: Acquire, place: Place, sent: float) -> Generator[Any, None, Place | None]:
        """Stay in line until it is served; a waiter that lost its place may join again."""
        one.waits.append(Wait(sent, self.now, place.ticket))
        deadline = inf if one.timeout is None else self.now + one.timeout
        while True:
            yield partial(self._is_worth_a_look, place, min(self.now + HEARTBEAT / 3, deadline))
            yield self._travel()
            asked = self.now
            alive = yield from self._request(client, partial(self.renew, place))
            if alive and place.holds:
                return place
            if alive:
                one.waits.append(Wait(asked, self.now, place.ticket))
            if self.now >= deadline or (alive is False and self.random.random() < 0.5):
                yield from self._request(client, partial(self.leave, place))
                one.completed = self.now
                one.outcome = "error" if alive is False else self.random.choice(("refused", "cancelled"))
                return None
            if alive is False:
                asked = self.now
                place = self.join(one) or place
                held = place.holds
                yield self._travel()
                if not held:
                    one.waits.append(Wait(asked, self.now, place.ticket))

    def _is_worth_a_look(self, place: Place, due: float) -> bool:
        self.settle(place.owner.name)
        return place.holds or self.now >= due

    def _request(self, client: Client, act: Callable[[], bool]) -> Generator[Any, None, bool | None]:
        """Ask the store; a client that is cut off gets no reply, and its request may be lost."""
        yield self._travel()
        is_cut_off = self.now < client.cut_off_until
        answer = None if is_cut_off and self.random.random() < 0.7 else act()
        yield self._travel()
        return None if is_cut_off else answer

    def _hold(self, client: Client, one: Acquire, place: Place, sent: float) -> Steps:
        asked = self.now
        if (yield from self._request(client, partial(self.renew, place))):
            trusted = asked + one.ttl - MARGIN
        else:
            trusted = sent + min(one.ttl, HEARTBEAT) - MARGIN
        one.outcome, one.fence = "granted", place.ticket
        one.completed = self.now
        reserved_until = self.now + one.at_least
        self._check(one, trusted)
        if self.now >= trusted:
            self._lose(one)
            return
        if one.kind == "leader":
            one.elected_at = self.now
        until = self.now + self.random.random() * 2
        due = asked + one.ttl / 3
        while self.now < min(until, trusted):
            yield min(max(due - self.now, 0.0), trusted - self.now, self.random.random() * 0.2)
            self._check(one, trusted)
            if self.now >= trusted:
                break
            if self.now >= due:
                asked = self.now
                answer = yield from self._request(client, partial(self.renew, place))
                if answer:
                    trusted = max(trusted, asked + one.ttl - MARGIN)
                elif answer is False:
                    trusted = self.now
                due = self.now + one.ttl / 6
            if one.is_exclusive and self.random.random() < 0.4:
                yield from self._write_and_read(client, one)
        yield from self._stop_leading(one)
        if self.now >= trusted:
            self._lose(one)
            if one.is_exclusive:
                yield from self._write_and_read(client, one)
            return
        one.release = Release(self.now)
        answer = yield from self._request(client, partial(self.leave, place, reserved_until - self.now))
        one.release.completed = self.now
        one.release.outcome = "error" if answer is None else "done" if answer else "lost"
        self.history._see(client.name, self.now)

    def _do(self, client: Client, one: Acquire, place: Place) -> Steps:
        """Do what is to be done once, or fail at it, without a handle by which to know whether it is still held."""
        one.outcome, one.completed = "granted", self.now
        self._check(one, one.invoked + one.ttl - MARGIN)
        yield self.random.random() * 0.6
        one.value = None if self.random.random() < 0.2 else one.line
        one.release = Release(self.now)
        seconds = one.period if one.value is not None else 0.0
        answer = yield from self._request(client, partial(self.leave, place, seconds))
        one.release.completed, one.release.outcome = self.now, "done" if answer else "error"
        self.history._see(client.name, self.now)

    def _check(self, one: Acquire, trusted: float) -> None:
        one.checks.append(Check(self.now, self.now, max(self.now, trusted)))
        self.history._see(one.client, self.now)

    def _stop_leading(self, one: Acquire) -> Steps:
        if one.kind == "leader":
            one.deposed_at = self.now
            yield MARGIN * self.random.random() / 2
            one.stopped_at = self.now

    def _lose(self, one: Acquire) -> None:
        one.lost_at = self.now
        self.history._see(one.client, self.now)

    def _write_and_read(self, client: Client, one: Acquire) -> Steps:
        register = self.registers.setdefault(one.name, Register())
        number = next(self.numbers)
        write = Write(client=client.name, line=number, invoked=self.now, name=one.name, value=number, fence=one.fence)
        self.history.add(write)
        yield self._travel()
        is_lost = self.random.random() < 0.1
        if not is_lost or self.random.random() < 0.5:
            is_accepted = self.accepts(register, write)
            if is_accepted:
                register.value, register.fence = write.value, write.fence
            yield self._travel()
            if not is_lost:
                write.completed, write.outcome = self.now, "accepted" if is_accepted else "refused"
        for name, other in self.random.sample(list(self.registers.items()), 1):
            read = Read(client=client.name, line=next(self.numbers), invoked=self.now, name=name)
            self.history.add(read)
            yield self._travel()
            read.value, read.fence = other.value, self.random.choice((None, other.fence))
            yield self._travel()
            read.completed = self.now

    def _consume(self, client: Client) -> Steps:
        while True:
            yield self.random.random()
            consume = Consume(
                client=client.name,
                line=next(self.numbers),
                invoked=self.now,
                name="rate",
                cost=self.random.randint(1, 3),
                interval=0.4,
                burst=4,
            )
            self.history.add(consume)
            yield self._travel()
            allowed = self.consume(consume)
            yield self._travel()
            consume.completed, consume.allowed = self.now, allowed

    def _harm(self, client: Client) -> None:
        for kind, chance in (("pause", 0.5), ("cut off", 0.3), (KILL, 0.2)):
            if self.random.random() < chance:
                at, seconds = self.random.random() * END * 0.8, self.random.random() * 3
                self._at(at, partial(self._hurt, client, kind, seconds))

    def _hurt(self, client: Client, kind: str, seconds: float) -> None:
        until = self.now
        if kind == KILL:
            client.is_dead = True
        elif kind == "pause":
            until = client.paused_until = self.now + seconds
        elif kind == LOSE_DATA:
            self.lines.clear()
            self.rates.clear()
        else:
            until = client.cut_off_until = self.now + seconds
        fault = Fault(
            client="nemesis",
            line=next(self.numbers),
            invoked=self.now,
            completed=until,
            name=kind,
            target=client.name if kind in PROMISES.may_stop_clients else "",
        )
        self.history.add(fault)

    def _force_release(self, name: str) -> Steps:
        forced_release = ForcedRelease(client="operator", line=next(self.numbers), invoked=self.now, name=name)
        self.history.add(forced_release)
        yield self._travel()
        fences = self.force_release(name)
        yield self._travel()
        forced_release.completed, forced_release.fences = self.now, fences

    def _end(self) -> None:
        """Let all clients be gone, and look at what is left."""
        for client in self.clients:
            client.is_dead = True
        self.now += max(one.ttl for one in self.history.acquires) + 4 + PROMISES.longest_ttl
        look = Inspection(client="nemesis", line=next(self.numbers), invoked=self.now, completed=self.now + 0.1)
        look.left = [f"{name}: {place.owner.client}" for name in self.lines for place in self.settle(name)]
        self.history.add(look)

    def _travel(self) -> float:
        return self.random.random() * SLOWEST

    def _at(self, moment: float, act: Callable[[], None]) -> None:
        heappush(self.events, (moment, next(self.numbers), act))

    def _resume(self, client: Client, steps: Steps) -> None:
        """Take the next steps of a client now, unless it cannot."""
        if client.is_dead:
            return
        if self.now < client.paused_until:
            self._at(client.paused_until + 0.001, lambda: self._resume(client, steps))
            return
        pause = next(steps, None)
        if callable(pause):
            self._resume_once(client, steps, pause)
        elif pause is not None:
            self._at(self.now + pause, lambda: self._resume(client, steps))

    def _resume_once(self, client: Client, steps: Steps, condition: Callable[[], bool]) -> None:
        """Take the next steps once a condition is true."""
        if condition():
            self._resume(client, steps)
        else:
            self._at(self.now + SLOWEST / 2, lambda: self._resume_once(client, steps, condition))
