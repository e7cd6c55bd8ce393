"""Any store in a simulated world: its steps are real, the time between them is not."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from functools import partial
from math import ceil
from typing import Any, TypeVar

from lockstead.core.lease import PATIENCE
from lockstead.core.model import Ask, Line, Place, RateRequest, RateResult, Refusal, Renewal, Reservation, Standing
from lockstead.core.runtime import Runtime, drive
from lockstead.core.store import MultiJoining, RateLimiting, Reserving, Store
from lockstead.errors import UnsupportedError
from lockstead.runtimes.simulated import World
from lockstead.runtimes.threads import ThreadRuntime
from lockstead.testing.simulation.election import ElectionHistory
from lockstead.testing.simulation.history import History, some_history
from lockstead.testing.simulation.monitor import ViolationError
from lockstead.testing.simulation.network import Faults, Server

T = TypeVar("T")

EPOCH = 2_000_000_000
"""What the store's clock reads when the first history begins: a time to come, so that no clock is set back for it."""
BETWEEN = 3600
"""Seconds from one history to the next: nothing lives for so long."""


def simulate(
    open_store: Callable[[Runtime], Store],
    set_clock: Callable[[float], None],
    seeds: Iterable[int] = range(200),
    *,
    clock_goes_back: bool = True,
) -> int:
    """Run a random history of clients of a store for every seed, and count what they acquired.

    Messages to the store are lost, late and repeated, clients are stopped and killed, the store stalls and its clock is
    set back, all in virtual time. After every step what the clients believe is compared with what the store shows.
    What it cannot carry, by its capabilities and interfaces, is not asked of it.

    `open_store` is called for every client, and opens the same lines for all of them, which nobody else uses.
    `set_clock` is called before every step with the time, in seconds: the store's clock, by which it judges expiry, is
    to read that until the next step. With `clock_goes_back=False`, for clocks that nobody can set, it never goes back.

    Raises ViolationError, which names the seed: that seed alone does the same again. Not tried are `wait`, rates, and
    what becomes of the store's own connections. Raises UnsupportedError if the store's places do not expire.
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
    """A store's clock, history after history."""

    def __init__(self, set_clock: Callable[[float], None]) -> None:
        self._set = set_clock
        self._latest = float(EPOCH - BETWEEN)

    def set(self, seconds: float) -> None:
        self._latest = max(self._latest, seconds)
        self._set(seconds)

    def begin(self) -> float:
        """Tell the time at which one more history begins; a whole number, so that a seed replays to the last bit."""
        return float(ceil(self._latest) + BETWEEN)


class StoreServer(Server):
    """A store behind the simulated network, opened for every client by itself.

    Who holds is asked of the store after every step, and told to those who waited: the store's own `wait` is not
    used, for it waits in real time.
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
            msg = "only a store whose places expire can be simulated: here they end with a session, which is real"
            raise UnsupportedError(msg)
        if lines := self.inspect("", exact=False):
            self.close()
            raise ViolationError(f"a history begins, but {lines[0].name} is not empty: {lines[0].places}")

    def join(self, ask: Ask) -> tuple[Standing | Refusal, list[str]]:
        return self._step(self._store_of(ask.owner).join(ask, PATIENCE), [ask.name])

    def renew(self, renewals: Sequence[Renewal]) -> tuple[list[Standing | None], list[str]]:
        store = self._store_of(renewals[0].owner)
        return self._step(store.renew(renewals, PATIENCE), [renewal.name for renewal in renewals])

    def leave(self, name: str, owner: str, tombstone: float) -> tuple[bool, list[str]]:
        return self._step(self._store_of(owner).leave(name, owner, PATIENCE, tombstone), [name])

    def reserve(self, reservation: Reservation) -> tuple[bool, list[str]]:
        store = self._store_of(reservation.owner)
        assert isinstance(store, Reserving)
        return self._step(store.reserve(reservation, PATIENCE), [reservation.name])

    def join_all(self, asks: Sequence[Ask]) -> tuple[list[Standing] | Refusal | None, list[str]]:
        store = self._store_of(asks[0].owner)
        if not isinstance(store, MultiJoining):
            return None, []
        return self._step(store.join_all(asks, PATIENCE), [ask.name for ask in asks])

    def spend(self, charge: RateRequest) -> RateResult:
        assert isinstance(self._observer, RateLimiting)
        return self._drive(self._observer.spend(charge, PATIENCE))

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
        return result, [owner for name in names for owner in self._look(name)]

    def _drive(self, step: Coroutine[Any, Any, T]) -> T:
        self._clock.set(self.now())
        return drive(step)

    def _look(self, name: str) -> list[str]:
        """See how the line stands after a step in it, and tell whose wait is over."""
        waited = self._waiting.get(name, set())
        places = self._lines[name] = self._places(name)
        self._waiting[name] = {place.owner for place in places if place.acquired_at is None}
        if not self.capabilities.push:
            return []
        return [place.owner for place in places if place.owner in waited and place.acquired_at is not None]

    def _places(self, name: str) -> Sequence[Place]:
        """Look at a line, and tell by our clock when its places end: the store's may have gone its own way."""
        now = self.now()
        return [
            replace(place, expires_at=now + (place.expires_at - line.now))
            for line in self.inspect(name, exact=True)
            for place in line.places
        ]
