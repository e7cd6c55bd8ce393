"""Any store in a simulated world: its steps are real, the time between them is virtual."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from functools import partial
from math import ceil
from typing import Any, TypeVar

from lockstead.core.model import Ask, Line, Place, RateRequest, RateResult, Refusal, Renewal, Reservation, Standing
from lockstead.core.runtime import Runtime, drive
from lockstead.core.store import MultiJoining, RateLimiting, Reserving, Store
from lockstead.core.timing import REQUEST_TIMEOUT
from lockstead.errors import UnsupportedError
from lockstead.runtimes.simulated import World
from lockstead.runtimes.threads import ThreadRuntime
from lockstead.testing.simulation.election import ElectionHistory
from lockstead.testing.simulation.history import History, some_history
from lockstead.testing.simulation.monitor import ViolationError
from lockstead.testing.simulation.network import Faults, Server

T = TypeVar("T")

EPOCH = 2_000_000_000
"""What the store's clock reads when the first history begins: in the future, so that no clock is set back for it."""
BETWEEN = 3600
"""Seconds from one history to the next: longer than any lease or reservation."""


def simulate(
    open_store: Callable[[Runtime], Store],
    set_clock: Callable[[float], None],
    seeds: Iterable[int] = range(200),
    *,
    clock_goes_back: bool = True,
) -> int:
    """Run a random history of clients of a store for every seed, and return how many locks they acquired.

    Messages to the store are lost, delayed and repeated, clients are paused and killed, the store stalls and its clock
    is set back, all in virtual time. After every step the clients' state is compared with what the store shows.
    Requests that the store does not support, by its capabilities and interfaces, are not made.

    `open_store` is called for every client, and opens the same lines for all of them; no other client may use them.
    `set_clock` is called before every step with the time, in seconds: the store's clock, by which it judges expiry,
    must read that until the next step. With `clock_goes_back=False`, for clocks that cannot be set, it never goes back.

    Not tested: `wait`, rate limits, and faults of the store's own connections.

    Raises ViolationError, which names the seed: that seed alone replays the history. Raises UnsupportedError if the
    store's places do not expire.
    """
    clock = StoreClock(set_clock)
    sections = 0
    for seed in seeds:
        make = partial(StoreServer, open_store=open_store, clock=clock, clock_goes_back=clock_goes_back)
        sections += _history(seed, make).run().sections
    return sections


def _history(seed: int, make_server: Callable[[World, Faults], Server]) -> History:
    if seed % 10 == 4:
        return ElectionHistory(seed, make_server=make_server)
    return some_history(seed, make_server)


class StoreClock:
    """A store's clock, across histories."""

    def __init__(self, set_clock: Callable[[float], None]) -> None:
        self._set = set_clock
        self._latest = float(EPOCH - BETWEEN)

    def set(self, seconds: float) -> None:
        self._latest = max(self._latest, seconds)
        self._set(seconds)

    def begin(self) -> float:
        """Return the time at which the next history begins; a whole number, so that a seed replays to the last bit."""
        return float(ceil(self._latest) + BETWEEN)


class StoreServer(Server):
    """A store behind the simulated network, opened once per client.

    After every step the store is inspected, and waiters that now hold are woken: the store's own `wait` is not used,
    because it waits in real time.
    """

    def __init__(
        self,
        world: World,
        faults: Faults,
        *,
        open_store: Callable[[Runtime], Store],
        clock: StoreClock,
        clock_goes_back: bool,
    ) -> None:
        super().__init__(world, faults)
        self.clock_goes_back = clock_goes_back
        self.clock_offset = clock.begin()
        self._clock = clock
        self._open_store = open_store
        self._stores: dict[str, Store] = {}
        self._lines: dict[str, Sequence[Place]] = {}
        self._waiting: dict[str, set[str]] = {}
        self._observer = self._store_of("observer/0")
        self.capabilities = self._observer.capabilities
        self.can_reserve = isinstance(self._observer, Reserving)
        if not self.capabilities.expiry:
            self.close()
            msg = "only a store whose places expire can be simulated: here they end with a session, in real time"
            raise UnsupportedError(msg)
        if lines := self.inspect("", exact=False):
            self.close()
            raise ViolationError(f"a history begins, but {lines[0].name} is not empty: {lines[0].places}")

    def join(self, ask: Ask) -> tuple[Standing | Refusal, list[str]]:
        return self._step(self._store_of(ask.owner).join(ask, REQUEST_TIMEOUT), [ask.name])

    def renew(self, renewals: Sequence[Renewal]) -> tuple[list[Standing], list[str]]:
        store = self._store_of(renewals[0].owner)
        return self._step(store.renew(renewals, REQUEST_TIMEOUT), [renewal.name for renewal in renewals])

    def leave(self, name: str, owner: str, tombstone: float) -> tuple[bool, list[str]]:
        return self._step(self._store_of(owner).leave(name, owner, REQUEST_TIMEOUT, tombstone), [name])

    def reserve(self, reservation: Reservation) -> tuple[bool, list[str]]:
        store = self._store_of(reservation.owner)
        assert isinstance(store, Reserving)
        return self._step(store.reserve(reservation, REQUEST_TIMEOUT), [reservation.name])

    def join_all(self, asks: Sequence[Ask]) -> tuple[list[Standing] | Refusal | None, list[str]]:
        store = self._store_of(asks[0].owner)
        if not isinstance(store, MultiJoining):
            return None, []
        return self._step(store.join_all(asks, REQUEST_TIMEOUT), [ask.name for ask in asks])

    def consume(self, request: RateRequest) -> RateResult:
        assert isinstance(self._observer, RateLimiting)
        return self._drive(self._observer.consume(request, REQUEST_TIMEOUT))

    def inspect(self, prefix: str, *, exact: bool) -> list[Line]:
        return self._drive(self._observer.inspect(prefix, exact=exact))

    def peek(self) -> list[tuple[str, list[Place]]]:
        now = self.now()
        return [(name, [place for place in places if place.expires_at > now]) for name, places in self._lines.items()]

    def size(self) -> int:
        return len(self.inspect("", exact=False))

    def set_clock_back(self, seconds: float) -> None:
        super().set_clock_back(seconds)
        self._lines = {name: self._places(name) for name in self._lines}

    def close(self) -> None:
        for store in self._stores.values():
            drive(store.close())

    def _store_of(self, owner: str) -> Store:
        client = owner.rpartition("/")[0]
        if client not in self._stores:
            self._stores[client] = self._open_store(ThreadRuntime())
        return self._stores[client]

    def _step(self, step: Coroutine[Any, Any, T], names: Iterable[str]) -> tuple[T, list[str]]:
        result = self._drive(step)
        return result, [owner for name in names for owner in self._newly_granted(name)]

    def _drive(self, step: Coroutine[Any, Any, T]) -> T:
        self._clock.set(self.now())
        return drive(step)

    def _newly_granted(self, name: str) -> list[str]:
        """Inspect a line after a step in it, and return the waiters that now hold."""
        waited = self._waiting.get(name, set())
        places = self._lines[name] = self._places(name)
        self._waiting[name] = {place.owner for place in places if place.acquired_at is None}
        if not self.capabilities.push:
            return []
        return [place.owner for place in places if place.owner in waited and place.acquired_at is not None]

    def _places(self, name: str) -> Sequence[Place]:
        """Inspect a line, with the expiries of its places on the simulated clock, as the store's clock may differ."""
        now = self.now()
        return [
            replace(place, expires_at=now + (place.expires_at - line.now))
            for line in self.inspect(name, exact=True)
            for place in line.places
        ]
