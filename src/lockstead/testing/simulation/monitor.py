"""What must never happen, checked after every step of a world."""

from __future__ import annotations

from collections.abc import Sequence

from lockstead.core.engine import Engine
from lockstead.core.lease import Lease, State
from lockstead.core.model import RESERVED, Place
from lockstead.primitives.handle import Handle
from lockstead.runtimes.simulated import Process, World
from lockstead.testing.simulation.network import Server

ROUNDING = 0.001
"""How exactly a store need keep time."""


class ViolationError(AssertionError):
    """Something happened that must never happen."""


class Monitor:
    """Checks invariants after every step of a world.

    - Inside its trust window a lease has a living, holding place on the server: so never two holders.
    - A loss is signalled while the place still lives, unless the process is paused.
    - Fences of exclusive grants grow, name by name.
    - Every place belongs to a lease its client looks after, or lingers: so none is leaked.
    - Holders are a prefix of the line (first come, first served) and fit in the capacity; so do those who believe to
      hold.
    - Whoever waits lives from heartbeat to heartbeat only.
    - Whoever still waits for one of several names holds the others from heartbeat to heartbeat only.
    - A name that was left taken stays so for as long as was asked.
    """

    SIGNAL = 0.004
    """Seconds a running process has to signal a loss after its window closed."""

    def __init__(self, world: World, server: Server) -> None:
        self._world = world
        self._server = server
        self._engines: dict[str, tuple[Process, Engine]] = {}
        self._fences: dict[str, int] = {}
        self._seen: set[str] = set()
        self._reservations: list[tuple[float, str, str]] = []
        self._last_alive: dict[tuple[str, int], float] = {}
        self.waiting: set[Handle] = set()
        """Those who are acquiring several names."""
        self.grants = 0

    def add(self, process: Process, engine: Engine) -> None:
        self._engines[process.name] = process, engine

    def expect_reservation(self, lease: Lease, until: float) -> None:
        """Expect the name of a lease that was released to stay taken until then."""
        self._reservations.append((until, lease.ask.name, lease.ask.owner + RESERVED))

    def was_alive_since(self, moment: float, name: str, capacity: int) -> bool:
        """Tell whether a line of that capacity has had a living place since then."""
        return self._last_alive.get((name, capacity), -1.0) >= moment

    def check(self) -> None:
        holding: dict[str, Place] = {}
        for name, places in self._server.peek():
            if places:
                self._check_line(name, places, holding)
        believed: dict[str, int] = {}
        for process, engine in self._engines.values():
            for lease in () if process.crashed else engine.keeper.leases.values():
                if lease.state is State.HELD and not lease.leaving:
                    self._check_lease(process, lease, holding, believed)
        for handle in self.waiting:
            self._check_waiting(handle, holding)
        for name, owner in self._live_reservations():
            if owner not in holding:
                self._fail(f"{owner} should keep {name} taken")

    def _live_reservations(self) -> list[tuple[str, str]]:
        if self._reservations:
            self._reservations = [left for left in self._reservations if self._world.now < left[0]]
        return [left[1:] for left in self._reservations]

    def _check_line(self, name: str, places: Sequence[Place], holding: dict[str, Place]) -> None:
        """Check one line, and take down who holds."""
        spent = 0
        found_waiter = False
        self._last_alive[name, places[0].capacity] = self._world.now
        for place in places:
            process, engine = self._engines[place.owner.rpartition("/")[0]]
            is_tracked = place.owner in engine.keeper.leases or process.crashed or place.reserved
            if not is_tracked and not self._server.clock_was_set_back:
                self._fail(f"{place.owner} has a place in {name} that nobody looks after")
            if place.acquired_at is None:
                found_waiter = True
                self._check_heartbeat(engine, place)
                continue
            holding[place.owner] = place
            spent += place.weight
            if found_waiter:
                self._fail(f"{name}: somebody was overtaken: {places}")
            if spent > place.capacity:
                self._fail(f"{name}: more hold than fit: {places}")

    def _check_heartbeat(self, engine: Engine, place: Place) -> None:
        lease = engine.keeper.leases.get(place.owner)
        if lease is None or self._server.clock_was_set_back:  # then a place may live longer than was asked
            return
        if place.expires_at > self._server.now() + lease.ask.heartbeat + ROUNDING:
            self._fail(f"{place.owner} waits, but lives for longer than a heartbeat")

    def _check_lease(self, process: Process, lease: Lease, holding: dict[str, Place], believed: dict[str, int]) -> None:
        ask = lease.ask
        if process.now() < lease.trusted_until:
            believed[ask.name] = spent = believed.get(ask.name, 0) + ask.weight
            if spent > ask.capacity:
                self._fail(f"more believe to hold {ask.name} than fit, {ask.owner} among them")
            if ask.owner not in holding:
                self._fail(f"{ask.owner} trusts in {ask.name}, but has no place that holds")
            if ask.owner not in self._seen:
                self._see(lease)
        elif ask.owner not in holding:
            self._check_signalled(process, lease)

    def _check_waiting(self, handle: Handle, holding: dict[str, Place]) -> None:
        if self._server.clock_was_set_back:  # then a place may live longer than was asked
            return
        mine = [lease for lease in handle._engine.keeper.leases.values() if lease.claim() is handle._claim]
        if not any(lease.state is State.WAITING and not lease.leaving for lease in mine):
            return
        soon = self._server.now() + ROUNDING
        for lease in mine:
            place = holding.get(lease.ask.owner)
            if place is None or lease.state is not State.HELD or lease.leaving:
                continue
            if place.expires_at > soon + lease.ask.heartbeat:
                self._fail(f"{lease.ask.owner} keeps {lease.ask.name} for long while it waits for another name")

    def _see(self, lease: Lease) -> None:
        self._seen.add(lease.ask.owner)
        self.grants += 1
        if lease.ask.weight == lease.ask.capacity:
            if lease.fence <= self._fences.get(lease.ask.name, -1):
                self._fail(f"{lease.ask.name}: fence {lease.fence} after {self._fences[lease.ask.name]}")
            self._fences[lease.ask.name] = lease.fence

    def _check_signalled(self, process: Process, lease: Lease) -> None:
        if self._world.now > process.paused_until + self.SIGNAL:
            self._fail(f"{lease.ask.owner} was not told in time that {lease.ask.name} is lost")

    def _fail(self, what: str) -> None:
        msg = f"at {self._world.now:.4f}: {what}"
        raise ViolationError(msg)


class QuorumMonitor(Monitor):
    """Checks invariants of a quorum, where no single server knows who holds.

    - Never do two leases of one name stand inside their trust windows.
    - A loss is signalled as soon as the window closes, unless the process is paused.
    - Fences grow, name by name.
    - Nobody trusts in a name that was left taken.
    """

    def check(self) -> None:
        trusting: dict[str, Lease] = {}
        for process, engine in self._engines.values():
            for lease in [] if process.crashed else list(engine.keeper.leases.values()):
                if lease.state is not State.HELD or lease.leaving:
                    continue
                if not lease.is_held(process.now()):
                    if process.now() > lease.trusted_until + self.SIGNAL:
                        self._check_signalled(process, lease)
                    continue
                other = trusting.setdefault(lease.ask.name, lease)
                if other is not lease:
                    self._fail(f"{lease.ask.owner} and {other.ask.owner} both trust in {lease.ask.name}")
                if lease.ask.owner not in self._seen:
                    self._see(lease)
        for name, owner in self._live_reservations():
            if name in trusting:
                self._fail(f"{trusting[name].ask.owner} trusts in {name}, which {owner} should keep taken")
