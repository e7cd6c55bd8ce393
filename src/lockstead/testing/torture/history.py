"""What everybody did and when: written down by every process in a file of its own, and read together afterwards.

All times are seconds on one clock of one host (`runtimes/clock.py`), which no administrator sets and no suspend stops.
What the store did is not recorded, since nobody sees it: it lies somewhere between an invocation and its completion. So
each time is read on the side that claims less: *before* a request is made and before a handle is asked how long it is
held, and *after* an answer has come.

A process that is killed leaves operations without completion: nobody knows what came of them. A file is a JSON object a
line, each written by one system call, so that all but perhaps the last survive a SIGKILL.
"""

from __future__ import annotations

import json
import os
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, count
from math import inf
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, Self

from lockstead.runtimes import clock as _clock

Kind = Literal["lock", "read", "write", "permit", "leader", "job", "once"]


class Wait(NamedTuple):
    """An answer of the store: at some moment between the two times the place was in line, and did not hold."""

    asked: float
    answered: float
    ticket: int = 0
    """The fence that the place will have, by which it is told from another that was lost; 0 if nobody knows it."""


class Check(NamedTuple):
    """A look at a handle, between the two times: it said that it is held until then, or that it is not."""

    at: float
    seen: float
    until: float
    """Not after `at` if it is not held."""
    told: bool = False
    """Whether the signal of a loss had come."""

    @property
    def is_sure(self) -> bool:
        return self.until > self.at


@dataclass(slots=True)
class Release:
    invoked: float
    completed: float = inf
    outcome: Literal["done", "lost", "error", "unknown"] = "unknown"
    """Error: the store did not answer, and the place is given up in the background or ends by itself."""


@dataclass(slots=True, kw_only=True)
class Operation:
    client: str
    """The process, by the name its file gives it."""
    line: int
    """Where it begins in that file."""
    invoked: float
    completed: float = inf
    """Infinite if it never was, and its outcome unknown."""
    name: str = ""

    @property
    def is_known(self) -> bool:
        return self.completed < inf

    @property
    def title(self) -> str:
        """Say what it was, where it is written, and when it happened."""
        until = f"{self.completed:.6f}" if self.is_known else "…"
        return f"{self.client}:{self.line} {self.describe()} [{self.invoked:.6f}, {until}]"

    def describe(self) -> str:
        return f"{type(self).__name__.lower()} {self.name!r}"


@dataclass(slots=True, kw_only=True)
class Acquire(Operation):
    """An acquisition, and all that is known of the hold it led to. One of several names is recorded once for each.

    What is entered again by who holds it already is no acquisition, but one more look at what he holds.
    """

    kind: Kind = "lock"
    capacity: int = 1
    weight: int = 1
    queue: bool = True
    """It stands in line; else it is refused at once."""
    timeout: float | None = None
    ttl: float = 0.0
    several: bool = False
    """Other names are asked for with it, so it may be held long before the acquisition returns."""
    watched: bool = False
    """Its loss would have been recorded: it has an on_lost, and its handle is kept."""
    renew: bool = True
    at_least: float = 0.0
    """Seconds from the grant for which the name stays taken, however early it is released."""
    period: float = 0.0
    """Seconds from the release for which the name stays taken, of something that is done once, if it is done."""
    outcome: Literal["granted", "refused", "cancelled", "error", "remembered", "unknown"] = "unknown"
    """Remembered: it was done before, and what came of it is the value."""
    value: Any = None
    """What came of something that is done once; None if it failed."""
    fence: int = 0
    """0 if nobody knows it."""
    holder: str = ""
    waits: list[Wait] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    """The first is made once it was granted."""
    release: Release | None = None
    lost_at: float = inf
    """When its loss was signalled."""
    elected_at: float = inf
    """When on_elected was called."""
    deposed_at: float = inf
    """When on_lost of an election was called."""
    stopped_at: float = inf
    """When that on_lost returned."""

    @property
    def is_granted(self) -> bool:
        return self.outcome == "granted"

    @property
    def is_exclusive(self) -> bool:
        return self.weight == self.capacity

    @property
    def trusted_until(self) -> float:
        """Tell until when it ever was sure to hold; -infinite if never."""
        return max((check.until for check in self.checks if check.is_sure), default=-inf)

    @property
    def released_at(self) -> float:
        """Tell when its release began; infinite if it never did."""
        return inf if self.release is None else self.release.invoked

    @property
    def retracted_at(self) -> float:
        """Tell by when it was known to be lost although it had been sure to be held for longer; infinite if never.

        It is known from the signal, from a look at the handle, or from a release that found it gone.
        """
        known = [check.seen for check in self.checks if not check.is_sure and check.seen <= self.released_at]
        if self.release is not None and self.release.outcome == "lost":
            known.append(self.release.completed)
        at = min([self.lost_at, *known])
        return at if at < self.trusted_until else inf

    @property
    def believed_until(self) -> float:
        """Tell until when it surely believed to hold; -infinite if it never did.

        If its trust may have been retracted nobody knows when, so only what a look at the handle showed counts.
        """
        until, released = self.trusted_until, self.released_at
        found_gone = self.release is not None and self.release.outcome == "lost"
        tombstone = any(not check.is_sure and check.at < min(until, released) for check in self.checks)
        if tombstone or self.lost_at < until or (found_gone and released < until):
            until = max((check.at for check in self.checks if check.is_sure), default=-inf)
        return min(until, released)

    @property
    def reserved_until(self) -> float:
        """Tell until when, by what was asked for, the name is taken even if it is released; -infinite if it is not."""
        granted = self.surely_waited_until + self.at_least if self.at_least else -inf
        done = self.released_at + self.period if self.period and self.value is not None else -inf
        return max(granted, done)

    @property
    def free_by(self) -> float:
        """Tell when its room was surely free because it was released; infinite if nobody knows."""
        if self.release is None or self.release.outcome != "done":
            return inf
        took = self.release.completed - self.release.invoked
        period = 0.0 if self.value is None else self.period
        left = max(self.completed + self.at_least - self.release.invoked, period, 0.0)
        return self.release.completed + left + (took if left else 0.0)

    @property
    def waits_of_its_place(self) -> list[Wait]:
        """Leave out those of a place that it lost and joined the line again for."""
        ticket = self.fence or (self.waits[-1].ticket if self.waits else 0)
        return [wait for wait in self.waits if wait.ticket in {0, ticket}]

    @property
    def in_line_by(self) -> float:
        """Tell from when on it surely had the place it kept; infinite if nobody knows."""
        return min((wait.answered for wait in self.waits_of_its_place), default=inf)

    @property
    def surely_waited_until(self) -> float:
        """Tell before when the store surely did not let it hold."""
        return max((wait.asked for wait in self.waits_of_its_place), default=self.invoked)

    def describe(self) -> str:
        what = f"{self.kind} {self.name!r}"
        if self.capacity > 1 and self.kind == "permit":
            what += f" ({self.weight} of {self.capacity})"
        return f"{what} {self.outcome}" + (f" with fence {self.fence}" if self.fence else "")


@dataclass(slots=True, kw_only=True)
class Write(Operation):
    """A write to the register of that name, which accepts no fence below the newest it has seen."""

    value: Any = None
    fence: int = 0
    outcome: Literal["accepted", "refused", "unknown"] = "unknown"

    def describe(self) -> str:
        return f"write {self.value!r} with fence {self.fence} to {self.name!r} {self.outcome}"


@dataclass(slots=True, kw_only=True)
class Read(Operation):
    value: Any = None
    fence: int | None = None
    """The newest the register had seen, if it tells."""

    def describe(self) -> str:
        return f"read {self.value!r}{'' if self.fence is None else f' with fence {self.fence}'} from {self.name!r}"


@dataclass(slots=True, kw_only=True)
class Consume(Operation):
    cost: int = 1
    interval: float = 1.0
    """Seconds in which, in the long run, one is let through."""
    burst: int = 1
    allowed: bool = False
    retry_after: float = 0.0

    def describe(self) -> str:
        return f"spend {self.cost} of {self.name!r} {'allowed' if self.allowed else 'refused'}"


@dataclass(slots=True, kw_only=True)
class Fault(Operation):
    """Harm done from invocation to completion, both included. Its name is its kind."""

    target: str = ""
    """The client it is done to; empty if to a server, a network or all."""

    def describe(self) -> str:
        return f"{self.name} of {self.target or 'the store'}"


@dataclass(slots=True, kw_only=True)
class Eviction(Operation):
    """A name taken away from whoever held it, by a stranger."""

    fences: list[int] = field(default_factory=list)
    """Of those who lost it; empty, too, if the store did not answer."""

    def describe(self) -> str:
        return f"force release of {self.name!r} with {', '.join(f'fence {fence}' for fence in self.fences) or 'nobody'}"


@dataclass(slots=True, kw_only=True)
class Inspection(Operation):
    """What a look at the store showed of the names that begin with this one."""

    left: list[str] = field(default_factory=list)
    """A line for every place."""

    def describe(self) -> str:
        return f"inspection of {self.name!r}: {len(self.left)} places"


@dataclass
class History:
    acquires: list[Acquire] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    consumes: list[Consume] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    inspections: list[Inspection] = field(default_factory=list)
    evictions: list[Eviction] = field(default_factory=list)
    last_seen: dict[str, float] = field(default_factory=dict)
    """When each client recorded something for the last time: until then it surely lived."""

    @classmethod
    def read(cls, paths: Iterable[Path]) -> Self:
        """Read the files of all clients. A torn last line is dropped."""
        history = cls()
        for path in paths:
            history._take_in(path)
        return history

    def add(self, *operations: Operation) -> Self:
        for operation in operations:
            self._lists[type(operation)].append(operation)
            self._see(operation.client, operation.invoked)
            if operation.is_known:
                self._see(operation.client, operation.completed)
        return self

    @property
    def operations(self) -> list[Operation]:
        """Give all there are, in the order in which they were invoked."""
        return sorted((one for ones in self._lists.values() for one in ones), key=lambda one: one.invoked)

    def harm(self, kinds: Collection[str] | None, client: str | None, start: float, end: float) -> list[Fault]:
        """Find the faults of these kinds, or of any, that hit a client, or anybody, at some moment in between."""
        if kinds is not None and not kinds:
            return []
        faults, invoked, healed = self._faults_of(client)
        found = []
        number = bisect_right(invoked, end) - 1
        while number >= 0 and healed[number] >= start:
            fault = faults[number]
            if fault.completed >= start and (kinds is None or fault.name in kinds):
                found.append(fault)
            number -= 1
        return found

    def evictions_of(self, name: str | None, start: float, end: float) -> list[Eviction]:
        """Find when a name, or any, was taken away by force, at some moment in between."""
        return [
            one
            for one in self.evictions
            if one.name == (name or one.name)
            and one.invoked <= end
            and start <= (one.completed if one.is_known else self.killed_at(one.client))
        ]

    def killed_at(self, client: str) -> float:
        """Tell by when a client was surely dead; infinite if nobody recorded that it was killed."""
        kills = self.harm((KILL,), client, -inf, inf)
        return min((one.completed for one in kills if one.target == client), default=inf)

    @cached_property
    def _lists(self) -> dict[type[Operation], list[Any]]:
        lists = self.acquires, self.writes, self.reads, self.consumes, self.faults, self.inspections, self.evictions
        return dict(zip(EVENTS.values(), lists, strict=True))

    def _faults_of(self, client: str | None) -> tuple[list[Fault], list[float], list[float]]:
        """Sort the faults that hit a client; give when each began, and when all up to it were over."""
        key = client, len(self.faults)
        if key not in self._sorted_faults:
            hit = [one for one in self.faults if client is None or one.target in {"", client}]
            hit.sort(key=lambda one: one.invoked)
            over = list(accumulate((one.completed for one in hit), max))
            self._sorted_faults[key] = hit, [one.invoked for one in hit], over
        return self._sorted_faults[key]

    @cached_property
    def _sorted_faults(self) -> dict[tuple[str | None, int], tuple[list[Fault], list[float], list[float]]]:
        return {}

    def _see(self, client: str, at: float) -> None:
        self.last_seen[client] = max(self.last_seen.get(client, -inf), at)

    def _take_in(self, path: Path) -> None:
        whole = path.read_bytes().rpartition(b"\n")[0]
        client, known = path.stem, dict[int, Operation]()
        for line, text in enumerate(whole.splitlines(), 1):
            entry = json.loads(text)
            event, at, number = entry.pop("event"), entry.pop("at"), entry.pop("id")
            if event == "client":
                client = entry["client"]
            elif event in EVENTS:
                known[number] = EVENTS[event](client=client, line=line, invoked=at, **entry)
                self._lists[EVENTS[event]].append(known[number])
            else:
                _continue(known[number], event, at, entry)
            self._see(client, at)


def _continue(operation: Operation, event: str, at: float, entry: dict[str, Any]) -> None:
    """Take in what became of an operation that was invoked before."""
    if event == "end":
        operation.completed = at
        for key, value in entry.items():
            setattr(operation, key, value)
        return
    assert isinstance(operation, Acquire), f"{event} of {operation.title}"
    match event:
        case "wait":
            operation.waits.append(Wait(answered=at, **entry))
        case "check":
            operation.checks.append(Check(at, **entry))
        case "release":
            operation.release, operation.value = Release(at), entry.get("value")
        case "released":
            assert operation.release is not None
            operation.release.completed, operation.release.outcome = at, entry["outcome"]
        case "lost_at" | "elected_at" | "deposed_at" | "stopped_at":
            setattr(operation, event, min(getattr(operation, event), at))
        case _:
            raise ValueError(f"{event!r} is no event")


EVENTS: dict[str, type[Operation]] = {
    "acquire": Acquire,
    "write": Write,
    "read": Read,
    "spend": Consume,
    "fault": Fault,
    "inspection": Inspection,
    "eviction": Eviction,
}

KILL = "kill"
"""The fault after which its target does nothing any more."""


class Flag(Protocol):
    def is_set(self) -> bool: ...


class Held(Protocol):
    """What is asked of a handle."""

    @property
    def remaining(self) -> float: ...
    @property
    def lost(self) -> Flag: ...
    @property
    def holder_id(self) -> str: ...


class Recorder:
    """Writes what one process does to a file of its own, from any thread or task. A fork's child makes its own.

    What begins an operation returns a number, by which what becomes of it is recorded.
    """

    def __init__(self, path: Path, client: str, clock: Callable[[], float] = _clock.now) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._clock = clock
        self._pid = os.getpid()
        self._numbers = count(1)
        self._note("client", 0, client=client, pid=self._pid)

    def close(self) -> None:
        os.close(self._file)

    def acquire(
        self,
        name: str,
        *,
        ttl: float,
        kind: Kind = "lock",
        capacity: int = 1,
        weight: int = 1,
        queue: bool = True,
        timeout: float | None = None,
        several: bool = False,
        watched: bool = False,
        renew: bool = True,
        at_least: float = 0.0,
        period: float = 0.0,
    ) -> int:
        """Record that it is about to be asked for."""
        return self._begin(
            "acquire",
            name=name,
            kind=kind,
            capacity=capacity,
            weight=weight,
            queue=queue,
            timeout=timeout,
            ttl=ttl,
            several=several,
            watched=watched,
            renew=renew,
            at_least=at_least,
            period=period,
        )

    def waits(self, number: int, asked: float, ticket: int = 0) -> None:
        """Record that the store has answered a request sent then: the place is in line, and does not hold."""
        self._note("wait", number, asked=asked, ticket=ticket)

    def granted(self, number: int, handle: Held, fence: int) -> None:
        """Record that it was granted, and for how long it is sure to be held."""
        self._note("end", number, outcome="granted", fence=fence, holder=handle.holder_id)
        self.check(number, handle)

    def ended(self, number: int, outcome: Literal["refused", "cancelled", "error"]) -> None:
        self._note("end", number, outcome=outcome)

    def remembered(self, number: int, value: Any) -> None:
        """Record that it was done before, and what is said to have come of it."""
        self._note("end", number, outcome="remembered", value=value)

    def check(self, number: int, handle: Held) -> bool:
        """Record for how long it is sure to be held, and return whether it is: what the work goes on by."""
        at = self._clock()
        remaining, told = handle.remaining, handle.lost.is_set()
        self._write("check", number, at, seen=self._clock(), until=at + remaining, told=told)
        return remaining > 0

    def release(self, number: int, value: Any = None) -> None:
        """Record that it is about to be released, so that it is believed in no more; and what came of it."""
        self._note("release", number, **({} if value is None else {"value": value}))

    def released(self, number: int, outcome: Literal["done", "lost", "error"] = "done") -> None:
        self._note("released", number, outcome=outcome)

    def lost(self, number: int) -> None:
        """Record that the signal of its loss has come. The first time counts."""
        self._note("lost_at", number)

    def elected(self, number: int) -> None:
        """Record, first thing in on_elected, that it was called."""
        self._note("elected_at", number)

    def deposed(self, number: int) -> None:
        """Record, first thing in an election's on_lost, that it was called."""
        self._note("deposed_at", number)

    def stopped(self, number: int) -> None:
        """Record, last thing in an election's on_lost, that it returns."""
        self._note("stopped_at", number)

    def write(self, register: str, value: Any, fence: int) -> int:
        return self._begin("write", name=register, value=value, fence=fence)

    def wrote(self, number: int, outcome: Literal["accepted", "refused"]) -> None:
        """Record what the register said. Say nothing if it did not answer."""
        self._note("end", number, outcome=outcome)

    def read(self, register: str) -> int:
        return self._begin("read", name=register)

    def got(self, number: int, value: Any, fence: int | None = None) -> None:
        self._note("end", number, value=value, fence=fence)

    def spend(self, name: str, cost: int, *, interval: float, burst: int) -> int:
        return self._begin("spend", name=name, cost=cost, interval=interval, burst=burst)

    def spent(self, number: int, allowed: bool, retry_after: float = 0.0) -> None:
        self._note("end", number, allowed=allowed, retry_after=retry_after)

    def fault(self, kind: str, target: str = "") -> int:
        """Record that harm is about to be done."""
        return self._begin("fault", name=kind, target=target)

    def healed(self, number: int) -> None:
        """Record that the harm is surely over."""
        self._note("end", number)

    def evict(self, name: str) -> int:
        """Record that a name is about to be taken away from whoever holds it."""
        return self._begin("eviction", name=name)

    def evicted(self, number: int, fences: Iterable[int] = ()) -> None:
        """Record that it is over; without fences, also that nobody knows what came of it."""
        self._note("end", number, fences=list(fences))

    def inspect(self, prefix: str = "") -> int:
        return self._begin("inspection", name=prefix)

    def inspected(self, number: int, left: Iterable[str]) -> None:
        self._note("end", number, left=list(left))

    def _begin(self, event: str, **entry: Any) -> int:
        number = next(self._numbers)
        self._note(event, number, **entry)
        return number

    def _note(self, event: str, number: int, **entry: Any) -> None:
        self._write(event, number, self._clock(), **entry)

    def _write(self, event: str, number: int, at: float, **entry: Any) -> None:
        assert os.getpid() == self._pid, "a fork's child needs a recorder of its own"
        line = json.dumps({"event": event, "id": number, "at": at, **entry}) + "\n"
        os.write(self._file, line.encode())
