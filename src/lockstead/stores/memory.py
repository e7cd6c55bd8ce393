"""`memory://`: lines shared by the threads and tasks of one process."""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from copy import copy
from math import inf
from typing import Any
from weakref import WeakSet

from lockstead.core import gcra, lifecycle, rule
from lockstead.core.model import (
    Ask,
    Capabilities,
    Line,
    Place,
    PlaceState,
    RateRequest,
    RateResult,
    Refusal,
    Renewal,
    Reservation,
    Standing,
    Wake,
)
from lockstead.core.runtime import Runtime
from lockstead.errors import NestedCallError
from lockstead.runtimes.clock import now
from lockstead.runtimes.nesting import step
from lockstead.stores.tickets import ticket_floor
from lockstead.stores.waiters import WaiterEvents

MAX_TICKET_LEAD = 1_000_000
"""Microseconds by which a requested ticket may be ahead of the clock: one second."""


_HARMLESS = re.compile(r"[\w./-]*")
"""Names that cannot contain a password, from the URL of another store whose scheme was changed."""


class MemoryServer:
    """The lines themselves. `join`, `renew` and `leave` are one atomic step each, and return the owners to wake."""

    name = ""
    """The part of its URL behind `memory://`."""

    def __init__(self, clock: Callable[[], float] = now, floor: Callable[[], int] = ticket_floor) -> None:
        self._clock = clock
        self._floor = floor
        self._mutex: AbstractContextManager[Any] = threading.Lock()
        self._lines: dict[str, _MemoryLine] = {}
        self._ticket = 0
        self._sweep_above = 64
        self._sweep_at = inf
        """When the first tombstone added since the last sweep expires."""
        self._rates: dict[str, gcra.RateState] = {}
        self._sweep_rates_above = 64
        self._listeners: WeakSet[WaiterEvents] = WeakSet()
        lifecycle.at_fork(self, in_child="_forked")

    def join(self, ask: Ask) -> tuple[Standing | Refusal, list[str]]:
        with self._mutex:
            now = self._clock()
            if len(self._lines) > self._sweep_above or now >= self._sweep_at:
                self._sweep(now)
            if ask.name not in self._lines and ask.weight <= ask.capacity:
                return self._join_empty_line(ask, now), []
            outcome, woken = rule.join(self._line(ask.name, now), ask, now)
            self._drop_if_empty(ask.name, now)
            return outcome, _owners(woken)

    def renew(self, renewals: Sequence[Renewal]) -> tuple[list[Standing], list[str]]:
        standings: list[Standing] = []
        to_wake: list[str] = []
        with self._mutex:
            now = self._clock()
            for renewal in renewals:
                standing, woken = rule.renew(self._line(renewal.name, now), renewal, now)
                self._drop_if_empty(renewal.name, now)
                standings.append(standing)
                to_wake += _owners(woken)
        return standings, to_wake

    def leave(self, name: str, owner: str, tombstone: float) -> tuple[bool, list[str]]:
        with self._mutex:
            now = self._clock()
            line = self._line(name, now)
            if not tombstone and line.has_only(owner):  # what the rule would do, in less than half the time
                del self._lines[name]
                return now < line.remove(owner), []
            was_alive, woken = rule.leave(line, owner, now, tombstone)
            self._drop_if_empty(name, now)
            if tombstone:
                self._sweep_at = min(self._sweep_at, now + tombstone)
            return was_alive, _owners(woken)

    def reserve(self, reservation: Reservation) -> tuple[bool, list[str]]:
        with self._mutex:
            now = self._clock()
            was_there, woken = rule.reserve(self._line(reservation.name, now), reservation, now)
            self._drop_if_empty(reservation.name, now)
            if reservation.tombstone:
                self._sweep_at = min(self._sweep_at, now + reservation.tombstone)
            return was_there, _owners(woken)

    def join_all(self, asks: Sequence[Ask]) -> tuple[list[Standing] | Refusal, list[str]]:
        with self._mutex:
            now = self._clock()
            outcome, woken = rule.join_all([(self._line(ask.name, now), ask) for ask in asks], now)
            for ask in asks:
                self._drop_if_empty(ask.name, now)
            return outcome, _owners(woken)

    def consume(self, request: RateRequest) -> RateResult:
        with self._mutex:
            now = self._clock()
            if len(self._rates) > self._sweep_rates_above:
                self._rates = {name: state for name, state in self._rates.items() if gcra.level_at(state, now)}
                self._sweep_rates_above = 2 * len(self._rates) + 64
            result, state = gcra.consume(self._rates.get(request.name), request, now)
            if state is not None:
                self._rates[request.name] = state
            return result

    def inspect(self, prefix: str, *, exact: bool) -> list[Line]:
        with self._mutex:
            names = sorted(n for n in self._lines if (n == prefix if exact else n.startswith(prefix)))
            now = self._clock()
            lines = [Line(n, now, rule.live(map(copy, self._lines[n].places()), now)) for n in names]
        return [line for line in lines if line.places]

    def size(self) -> int:
        """Count the names of which anything is stored."""
        return len(self._lines)

    def wake(self, owners: Sequence[str]) -> None:
        with self._mutex:
            listeners = list(self._listeners)
        for owner in owners:
            any(waiters.notify(owner) for waiters in listeners)

    def connect(self, waiters: WaiterEvents) -> None:
        with self._mutex:
            self._listeners.add(waiters)

    def disconnect(self, waiters: WaiterEvents) -> None:
        with self._mutex:
            self._listeners.discard(waiters)

    def _join_empty_line(self, ask: Ask, now: float) -> Standing:
        """Do what the rule does for a name of which nothing is stored, in half the time."""
        place = Place(ask.floor, ask.owner, ask.capacity, ask.weight, now + ask.ttl, now, ask.metadata)
        line = _MemoryLine(self._next_ticket)
        line.catch_up(now)
        line.append(place)
        self._lines[ask.name] = line
        return Standing(PlaceState.HELD, place.ticket, now)

    def _line(self, name: str, now: float) -> _MemoryLine:
        line = self._lines.get(name)
        if line is None:
            line = self._lines[name] = _MemoryLine(self._next_ticket)
        line.catch_up(now)
        return line

    def _drop_if_empty(self, name: str, now: float) -> None:
        if self._lines[name].is_empty(now):
            del self._lines[name]

    def _sweep(self, now: float) -> None:
        """Drop lines whose places expired without a request that removed them.

        Amortized over as many joins as there are lines. Also once the tombstones added since the last sweep have
        expired: hardly more often than once per duration of a tombstone.
        """
        for name in list(self._lines):
            line = self._line(name, now)
            if all(place.expires_at <= now for place in line.places()):
                for place in list(line.places()):
                    line.remove(place.owner)
                self._drop_if_empty(name, now)
        self._sweep_above = 2 * len(self._lines) + 64
        self._sweep_at = max((line.tombstones_until() for line in self._lines.values()), default=-inf)
        if self._sweep_at <= now:
            self._sweep_at = inf

    def _next_ticket(self, requested: int) -> int:
        """Draw a ticket: the requested one, unless it is too far ahead, so that no client can exhaust the numbers."""
        floor = self._floor()
        self._ticket = max(self._ticket + 1, floor, requested if requested <= floor + MAX_TICKET_LEAD else 0)
        return self._ticket

    def _forked(self) -> None:
        self._mutex = threading.Lock()
        self._lines.clear()
        self._sweep_at = inf
        self._rates.clear()


class _MemoryLine:
    """One name's ledger. Tickets only grow, so the insertion order is the order of the line."""

    __slots__ = ("_next_ticket", "_places", "_prune_above", "_time", "_tombstones")

    def __init__(self, next_ticket: Callable[[int], int]) -> None:
        self._next_ticket = next_ticket
        self._places: OrderedDict[str, Place] = OrderedDict()
        self._tombstones: dict[str, float] = {}
        self._prune_above = 16.0
        self._time = -inf

    def places(self) -> Iterator[Place]:
        return iter(self._places.values())

    def find(self, owner: str) -> Place | None:
        return self._places.get(owner)

    def append(self, place: Place) -> bool:
        if self._tombstones.get(place.owner, self._time) > self._time:
            return False
        place.ticket = self._next_ticket(place.ticket)
        self._places[place.owner] = place
        return True

    def update(self, place: Place) -> None:
        """Do nothing: places are stored by reference."""

    def rename(self, place: Place, owner: str) -> None:
        renamed = OrderedDict((owner if kept is place else kept.owner, kept) for kept in self._places.values())
        place.owner, self._places = owner, renamed

    def remove(self, owner: str) -> float:
        place = self._places.pop(owner, None)
        return -inf if place is None else place.expires_at

    def add_tombstone(self, owner: str, until: float) -> None:
        self._tombstones[owner] = until

    def behind(self, now: float) -> float:
        """Return how far the clock is behind that of the line's last step."""
        return self._time - now if now < self._time else 0.0

    def catch_up(self, now: float) -> None:
        """Subtract a backward step of the clock from every expiry: else abandoned places would last longer by it."""
        if back := self.behind(now):
            for place in self._places.values():
                place.expires_at -= back
            self._tombstones = {owner: until - back for owner, until in self._tombstones.items()}
        self._time = now

    def has_only(self, owner: str) -> bool:
        """Return whether the owner's place is all that is stored."""
        return owner in self._places and len(self._places) == 1 and not self._tombstones

    def tombstones_until(self) -> float:
        return max(self._tombstones.values(), default=-inf)

    def is_empty(self, now: float) -> bool:
        """Return whether nothing is stored. Drops expired tombstones: mostly in the order in which they were added."""
        if not self._tombstones:
            return not self._places
        while self._tombstones and next(iter(self._tombstones.values())) <= now:
            del self._tombstones[next(iter(self._tombstones))]
        if len(self._tombstones) > self._prune_above:
            self._tombstones = {owner: until for owner, until in self._tombstones.items() if until > now}
            self._prune_above = inf
        self._prune_above = min(self._prune_above, 2 * len(self._tombstones) + 16)
        return not self._places and not self._tombstones


def _owners(places: Iterable[Place]) -> list[str]:
    return [place.owner for place in places]


_servers: dict[str, MemoryServer] = {}


def shared_server(name: str) -> MemoryServer:
    """Return the process's server of this name: `memory://NAME` is the same everywhere in a process."""
    server = _servers.setdefault(name, MemoryServer())
    server.name = name
    return server


class MemoryStore:
    """One client's view of a `MemoryServer`."""

    capabilities = Capabilities(processes=False)

    def __init__(self, runtime: Runtime, server: MemoryServer | None = None) -> None:
        self.runtime = runtime
        self._server = server or MemoryServer()
        name = self._server.name
        self.address = f"memory://{name if _HARMLESS.fullmatch(name) else '…'}"
        self._waiters = WaiterEvents(runtime)
        self._server.connect(self._waiters)

    async def join(self, ask: Ask, timeout: float) -> Standing | Refusal:
        if ask.queue:
            self._waiters.open(ask.owner)
        with step():
            outcome, woken = self._server.join(ask)
            if woken:
                self._server.wake(woken)
        return outcome

    async def renew(self, renewals: Sequence[Renewal], timeout: float) -> list[Standing]:
        with step():
            standings, woken = self._server.renew(renewals)
            if woken:
                self._server.wake(woken)
        return standings

    async def leave(self, name: str, owner: str, timeout: float, tombstone: float = 0.0) -> bool:
        with step():
            was_alive, woken = self._server.leave(name, owner, tombstone)
            self._waiters.close(owner)
            if woken:
                self._server.wake(woken)
        return was_alive

    async def reserve(self, reservation: Reservation, timeout: float) -> bool:
        with step():
            was_there, woken = self._server.reserve(reservation)
            self._waiters.close(reservation.owner)
            if woken:
                self._server.wake(woken)
        return was_there

    async def join_all(self, asks: Sequence[Ask], timeout: float) -> list[Standing] | Refusal | None:
        with step():
            outcome, woken = self._server.join_all(asks)
            if woken:
                self._server.wake(woken)
        return outcome

    async def consume(self, request: RateRequest, timeout: float) -> RateResult:
        with step():
            return self._server.consume(request)

    async def wait(self, name: str, owner: str, timeout: float) -> Wake:
        return Wake(await self._waiters.wait(owner, timeout))

    async def inspect(self, prefix: str = "", *, exact: bool = False) -> list[Line]:
        with step():
            return self._server.inspect(prefix, exact=exact)

    async def close(self) -> None:
        with suppress(NestedCallError), step():  # else the server drops its weak reference when it is collected
            self._server.disconnect(self._waiters)
