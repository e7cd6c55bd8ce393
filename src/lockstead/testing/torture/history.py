"""The history: what every client did and when, recorded by each process in its own file, and read together afterwards.

All times are seconds on one clock of one host (`runtimes/clock.py`), which no administrator sets and no suspend stops.
The store's own steps cannot be observed, and are not recorded: each lies somewhere between an invocation and its
completion. So each time is read where it claims less: *before* a request is sent and before a handle is asked how long
it is held, and *after* an answer has arrived.

A process that is killed leaves operations without completion: their outcome is unknown. A file has one JSON object per
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

from lockstead.runtimes import clock

Kind = Literal["lock", "read", "write", "permit", "leader", "job", "once"]


class Wait(NamedTuple):
    """An answer of the store: at some moment between the two times the place was in line, and did not hold."""

    asked: float
    answered: float
    ticket: int = 0
    """The fence that the place will have, which distinguishes it from an earlier place that was lost; 0 if unknown."""


class Check(NamedTuple):
    """A check of a handle, between the two times: it said until when the lock is held, or that it is not."""

    at: float
    seen: float
    until: float
    """Not after `at` if it is not held."""
    signalled: bool = False
    """Whether the loss had been signalled."""

    @property
    def is_sure(self) -> bool:
        return self.until > self.at


@dataclass(slots=True)
class Release:
    invoked: float
    completed: float = inf
    outcome: Literal["done", "lost", "error", "unknown"] = "unknown"
    """Error: the store did not answer; the place is released in the background, or expires."""


@dataclass(slots=True, kw_only=True)
class Operation:
    client: str
    """The process, by the name in its file."""
    line: int
    """The line of that file at which it begins."""
    invoked: float
    completed: float = inf
    """Infinite if it was never completed, and its outcome is unknown."""
    name: str = ""

    @property
    def is_known(self) -> bool:
        return self.completed < inf

    @property
    def title(self) -> str:
        """Describe it, with its place in the files and its times."""
        until = f"{self.completed:.6f}" if self.is_known else "…"
        return f"{self.client}:{self.line} {self.describe()} [{self.invoked:.6f}, {until}]"

    def describe(self) -> str:
        return f"{type(self).__name__.lower()} {self.name!r}"


@dataclass(slots=True, kw_only=True)
class Acquire(Operation):
    """An acquisition, and all that is known of the resulting hold. One of several names is recorded once for each.

    A re-entrant acquisition by the holder is not recorded as an acquisition, but as one more check of what it holds.
    """

    kind: Kind = "lock"
    capacity: int = 1
    weight: int = 1
    queue: bool = True
    """Whether it waits in line; otherwise it is refused at once."""
    timeout: float | None = None
    ttl: float = 0.0
    several: bool = False
    """Whether other names are requested with it, so it may be held long before the acquisition returns."""
    watched: bool = False
    """Whether its loss would have been recorded: it has an on_lost, and its handle is kept."""
    renew: bool = True
    at_least: float = 0.0
    """Seconds from the grant for which the name stays reserved, however early it is released."""
    period: float = 0.0
    """For `once`: seconds from the release for which the name stays reserved, if the work succeeded."""
    outcome: Literal["granted", "refused", "cancelled", "error", "remembered", "unknown"] = "unknown"
    """Remembered: `once` had run before, and its outcome is the value."""
    value: Any = None
    """The outcome of `once`; None if it failed."""
    fence: int = 0
    """0 if unknown."""
    holder: str = ""
    waits: list[Wait] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    """The first is made after the grant."""
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
        """The latest end of its trust window that any check showed; -infinite if none did."""
        return max((check.until for check in self.checks if check.is_sure), default=-inf)

    @property
    def released_at(self) -> float:
        """When its release began; infinite if it never did."""
        return inf if self.release is None else self.release.invoked

    @property
    def retracted_at(self) -> float:
        """When it was known to be lost inside its trust window; infinite if it never was.

        It is known from the signal, from a check of the handle, or from a release that found it gone.
        """
        known = [check.seen for check in self.checks if not check.is_sure and check.seen <= self.released_at]
        if self.release is not None and self.release.outcome == "lost":
            known.append(self.release.completed)
        at = min([self.lost_at, *known])
        return at if at < self.trusted_until else inf

    @property
    def believed_until(self) -> float:
        """Until when the client surely trusted its hold; -infinite if it never did.

        If the loss was detected inside its trust window, the time is unknown: only what a check showed counts.
        """
        until, released = self.trusted_until, self.released_at
        found_gone = self.release is not None and self.release.outcome == "lost"
        retracted = any(not check.is_sure and check.at < min(until, released) for check in self.checks)
        if retracted or self.lost_at < until or (found_gone and released < until):
            until = max((check.at for check in self.checks if check.is_sure), default=-inf)
        return min(until, released)

    @property
    def reserved_until(self) -> float:
        """Until when, by its request, the name stays reserved after a release; -infinite if it does not."""
        granted = self.surely_waited_until + self.at_least if self.at_least else -inf
        done = self.released_at + self.period if self.period and self.value is not None else -inf
        return max(granted, done)

    @property
    def free_by(self) -> float:
        """When its capacity was surely free because it was released; infinite if unknown."""
        if self.release is None or self.release.outcome != "done":
            return inf
        took = self.release.completed - self.release.invoked
        period = 0.0 if self.value is None else self.period
        left = max(self.completed + self.at_least - self.release.invoked, period, 0.0)
        return self.release.completed + left + (took if left else 0.0)

    @property
    def waits_of_its_place(self) -> list[Wait]:
        """The waits of its final place, without those of an earlier one that it lost before it joined again."""
        ticket = self.fence or (self.waits[-1].ticket if self.waits else 0)
        return [wait for wait in self.waits if wait.ticket in {0, ticket}]

    @property
    def in_line_by(self) -> float:
        """From when it surely had its final place; infinite if unknown."""
        return min((wait.answered for wait in self.waits_of_its_place), default=inf)

    @property
    def surely_waited_until(self) -> float:
        """Until when the store had surely not granted it."""
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
    """The newest one the register had seen, if it answers that."""

    def describe(self) -> str:
        return f"read {self.value!r}{'' if self.fence is None else f' with fence {self.fence}'} from {self.name!r}"


@dataclass(slots=True, kw_only=True)
class Consume(Operation):
    """A request to a rate limiter."""

    cost: int = 1
    interval: float = 1.0
    """Seconds per request, in the long run."""
    burst: int = 1
    allowed: bool = False
    retry_after: float = 0.0

    def describe(self) -> str:
        return f"consume {self.cost} of {self.name!r} {'allowed' if self.allowed else 'refused'}"


@dataclass(slots=True, kw_only=True)
class Fault(Operation):
    """A fault that lasts from invocation to completion, both included. Its name is its kind."""

    target: str = ""
    """The client that is affected; empty for a server, a network or all."""

    def describe(self) -> str:
        return f"{self.name} of {self.target or 'the store'}"


@dataclass(slots=True, kw_only=True)
class ForcedRelease(Operation):
    """A forced release of a name by another client than its holders."""

    fences: list[int] = field(default_factory=list)
    """The fences of the holders that lost it; also empty if the store did not answer."""

    def describe(self) -> str:
        return f"force release of {self.name!r} with {', '.join(f'fence {one}' for one in self.fences) or 'no fence'}"


@dataclass(slots=True, kw_only=True)
class Inspection(Operation):
    """The places of all names with this prefix."""

    left: list[str] = field(default_factory=list)
    """A text line for every place."""

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
    forced_releases: list[ForcedRelease] = field(default_factory=list)
    last_seen: dict[str, float] = field(default_factory=dict)
    """When each client recorded its last event: until then it surely ran."""

    @classmethod
    def read(cls, paths: Iterable[Path]) -> Self:
        """Read the files of all clients. A torn last line is dropped."""
        history = cls()
        for path in paths:
            history._load(path)
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
        """All operations, in the order in which they were invoked."""
        return sorted((one for ones in self._lists.values() for one in ones), key=lambda one: one.invoked)

    def harm(self, kinds: Collection[str] | None, client: str | None, start: float, end: float) -> list[Fault]:
        """Find the faults of these kinds (None: any) that affected a client (None: any) between start and end."""
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

    def forced_releases_of(self, name: str | None, start: float, end: float) -> list[ForcedRelease]:
        """Find the forced releases of a name (None: any) between start and end."""
        return [
            one
            for one in self.forced_releases
            if one.name == (name or one.name)
            and one.invoked <= end
            and start <= (one.completed if one.is_known else self.killed_at(one.client))
        ]

    def killed_at(self, client: str) -> float:
        """Return by when a client was surely dead; infinite if no kill was recorded."""
        kills = self.harm((KILL,), client, -inf, inf)
        return min((one.completed for one in kills if one.target == client), default=inf)

    def alive_until(self, client: str) -> float:
        """Return until when a client was surely not killed; infinite if no kill was recorded."""
        kills = self.harm((KILL,), client, -inf, inf)
        return min((one.invoked for one in kills if one.target == client), default=inf)

    @cached_property
    def _lists(self) -> dict[type[Operation], list[Any]]:
        lists = (
            self.acquires,
            self.writes,
            self.reads,
            self.consumes,
            self.faults,
            self.inspections,
            self.forced_releases,
        )
        return dict(zip(EVENTS.values(), lists, strict=True))

    def _faults_of(self, client: str | None) -> tuple[list[Fault], list[float], list[float]]:
        """Sort the faults that affected a client; return them, when each began, and when all up to it had ended."""
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

    def _load(self, path: Path) -> None:
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
    """Add an event to an operation that was invoked before."""
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
            raise ValueError(f"unknown event: {event!r}")


EVENTS: dict[str, type[Operation]] = {
    "acquire": Acquire,
    "write": Write,
    "read": Read,
    "consume": Consume,
    "fault": Fault,
    "inspection": Inspection,
    "forced_release": ForcedRelease,
}

KILL = "kill"
"""The fault that ends its target for good."""


class Flag(Protocol):
    def is_set(self) -> bool: ...


class Held(Protocol):
    """The part of a handle that the recorder uses."""

    @property
    def remaining(self) -> float: ...
    @property
    def lost(self) -> Flag: ...
    @property
    def holder_id(self) -> str: ...


class Recorder:
    """Writes what one process does to its own file, from any thread or task. A forked child makes its own recorder.

    A method that begins an operation returns its number, which later events of the operation take.
    """

    def __init__(self, path: Path, client: str, clock: Callable[[], float] = clock.now) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._clock = clock
        self._pid = os.getpid()
        self._numbers = count(1)
        self._write_now("client", 0, client=client, pid=self._pid)

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
        """Record that an acquire is about to be sent."""
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
        """Record that the store answered a request sent at `asked`: the place is in line, and does not hold."""
        self._write_now("wait", number, asked=asked, ticket=ticket)

    def granted(self, number: int, handle: Held, fence: int) -> None:
        """Record that it was granted, and until when it is trusted."""
        self._write_now("end", number, outcome="granted", fence=fence, holder=handle.holder_id)
        self.check(number, handle)

    def ended(self, number: int, outcome: Literal["refused", "cancelled", "error"]) -> None:
        self._write_now("end", number, outcome=outcome)

    def remembered(self, number: int, value: Any) -> None:
        """Record that `once` had run before, and the outcome it returned."""
        self._write_now("end", number, outcome="remembered", value=value)

    def check(self, number: int, handle: Held) -> bool:
        """Record until when it is trusted, and return whether it is held: the work continues only then."""
        at = self._clock()
        remaining, signalled = handle.remaining, handle.lost.is_set()
        self._write("check", number, at, seen=self._clock(), until=at + remaining, signalled=signalled)
        return remaining > 0

    def release(self, number: int, value: Any = None) -> None:
        """Record that it is about to be released, and so no longer trusted; and the outcome of `once`."""
        self._write_now("release", number, **({} if value is None else {"value": value}))

    def released(self, number: int, outcome: Literal["done", "lost", "error"] = "done") -> None:
        self._write_now("released", number, outcome=outcome)

    def lost(self, number: int) -> None:
        """Record that its loss was signalled. The first time counts."""
        self._write_now("lost_at", number)

    def elected(self, number: int) -> None:
        """Record, first thing in on_elected, that it was called."""
        self._write_now("elected_at", number)

    def deposed(self, number: int) -> None:
        """Record, first thing in an election's on_lost, that it was called."""
        self._write_now("deposed_at", number)

    def stopped(self, number: int) -> None:
        """Record, last thing in an election's on_lost, that it returns."""
        self._write_now("stopped_at", number)

    def write(self, register: str, value: Any, fence: int) -> int:
        return self._begin("write", name=register, value=value, fence=fence)

    def wrote(self, number: int, outcome: Literal["accepted", "refused"]) -> None:
        """Record the register's answer. Not called if there was none."""
        self._write_now("end", number, outcome=outcome)

    def read(self, register: str) -> int:
        return self._begin("read", name=register)

    def got(self, number: int, value: Any, fence: int | None = None) -> None:
        self._write_now("end", number, value=value, fence=fence)

    def consume(self, name: str, cost: int, *, interval: float, burst: int) -> int:
        return self._begin("consume", name=name, cost=cost, interval=interval, burst=burst)

    def consumed(self, number: int, allowed: bool, retry_after: float = 0.0) -> None:
        self._write_now("end", number, allowed=allowed, retry_after=retry_after)

    def fault(self, kind: str, target: str = "") -> int:
        """Record that a fault is about to begin."""
        return self._begin("fault", name=kind, target=target)

    def healed(self, number: int) -> None:
        """Record that a fault has surely ended."""
        self._write_now("end", number)

    def force_release(self, name: str) -> int:
        """Record that a name is about to be released by force."""
        return self._begin("forced_release", name=name)

    def force_released(self, number: int, fences: Iterable[int] = ()) -> None:
        """Record the end of a forced release; without fences its outcome may be unknown."""
        self._write_now("end", number, fences=list(fences))

    def inspect(self, prefix: str = "") -> int:
        return self._begin("inspection", name=prefix)

    def inspected(self, number: int, left: Iterable[str]) -> None:
        self._write_now("end", number, left=list(left))

    def _begin(self, event: str, **entry: Any) -> int:
        number = next(self._numbers)
        self._write_now(event, number, **entry)
        return number

    def _write_now(self, event: str, number: int, **entry: Any) -> None:
        self._write(event, number, self._clock(), **entry)

    def _write(self, event: str, number: int, at: float, **entry: Any) -> None:
        assert os.getpid() == self._pid, "a forked child needs its own recorder"
        line = json.dumps({"event": event, "id": number, "at": at, **entry}) + "\n"
        os.write(self._file, line.encode())
