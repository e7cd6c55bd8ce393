"""The invariants of the simulation, checked after every step of a world."""

from __future__ import annotations

from collections.abc import Sequence

from lockstead.core.engine import Engine
from lockstead.core.lease import Lease, LeaseState
from lockstead.core.model import RESERVED, Place
from lockstead.primitives.handle import Handle
from lockstead.runtimes.simulated import Process, World
from lockstead.testing.simulation.network import Server

ROUNDING = 0.001
"""Seconds by which a store may round an expiry."""


class ViolationError(AssertionError):
    """An invariant was violated."""


class Monitor:
    """Checks invariants after every step of a world.

    - Inside its trust window a lease has a live place that holds on the server: so never two holders.
    - A loss is signalled before the place expires, unless the process is paused.
    - Fences of exclusive grants grow, name by name.
    - Every place belongs to a lease that its client tracks, or is a reservation: so none is leaked.
    - Holders are a prefix of the line (first come, first served) and fit in the capacity; so do the leases inside
      their trust windows.
    - A waiting place expires after a heartbeat unless it is renewed.
    - While a client waits for one of several names, its places in the others expire after a heartbeat unless they are
      renewed.
    - A reserved name stays reserved for as long as was asked.
    """

    SIGNAL = 0.004
    """Seconds in which a running process has to signal a loss after its trust window closed."""

    def __init__(self, world: World, server: Server) -> None:
        self._world = world
        self._server = server
        self._engines: dict[str, tuple[Process, Engine]] = {}
        self._fences: dict[str, int] = {}
        self._seen: set[str] = set()
        self._reservations: list[tuple[float, str, str]] = []
        """When each ends, its name and its owner."""
        self._last_alive: dict[tuple[str, int], float] = {}
        self.waiting: set[Handle] = set()
        """The handles that are acquiring several names."""
        self.grants = 0

    def add(self, process: Process, engine: Engine) -> None:
        self._engines[process.name] = process, engine

    def expect_reservation(self, lease: Lease, until: float) -> None:
        """Expect the name of a released lease to stay reserved until then."""
        self._reservations.append((until, lease.ask.name, lease.ask.owner + RESERVED))

    def was_alive_since(self, moment: float, name: str, capacity: int) -> bool:
        """Return whether a line of that capacity has had a live place since then."""
        return self._last_alive.get((name, capacity), -1.0) >= moment

    def check(self) -> None:
        holding: dict[str, Place] = {}
        for name, places in self._server.peek():
            if places:
                self._check_line(name, places, holding)
        believed: dict[str, int] = {}
        for process, engine in self._engines.values():
            for lease in () if process.crashed else engine.keeper.leases.values():
                if lease.state is LeaseState.HELD:
                    self._check_lease(process, lease, holding, believed)
        for handle in self.waiting:
            self._check_waiting(handle, holding)
        for name, owner in self._live_reservations():
            if owner not in holding:
                self._fail(f"{owner} should still reserve {name}")

    def _live_reservations(self) -> list[tuple[str, str]]:
        if self._reservations:
            self._reservations = [reserved for reserved in self._reservations if self._world.now < reserved[0]]
        return [reserved[1:] for reserved in self._reservations]

    def _check_line(self, name: str, places: Sequence[Place], holding: dict[str, Place]) -> None:
        """Check one line, and add its holders to `holding`."""
        held = 0
        found_waiter = False
        self._last_alive[name, places[0].capacity] = self._world.now
        for place in places:
            process, engine = self._engines[place.owner.rpartition("/")[0]]
            is_tracked = place.owner in engine.keeper.leases or process.crashed
            if not is_tracked and not self._may_be_untracked(place):
                self._fail(f"{place.owner} has a place in {name} that its client does not track")
            if place.acquired_at is None:
                found_waiter = True
                self._check_heartbeat(engine, place)
                continue
            holding[place.owner] = place
            held += place.weight
            if found_waiter:
                self._fail(f"{name}: a waiter was overtaken: {places}")
            if held > place.capacity:
                self._fail(f"{name}: more hold than fit: {places}")

    def _may_be_untracked(self, place: Place) -> bool:
        return place.reserved or self._server.clock_was_set_back

    def _has_place(self, lease: Lease, holding: dict[str, Place]) -> bool:
        return lease.ask.owner in holding

    def _check_heartbeat(self, engine: Engine, place: Place) -> None:
        lease = engine.keeper.leases.get(place.owner)
        if lease is None or self._server.clock_was_set_back:  # then a place may last longer than was asked
            return
        if place.expires_at > self._server.now() + lease.ask.heartbeat + ROUNDING:
            self._fail(f"{place.owner} waits, but expires later than in one heartbeat")

    def _check_lease(self, process: Process, lease: Lease, holding: dict[str, Place], believed: dict[str, int]) -> None:
        ask = lease.ask
        if process.now() < lease.trusted_until:
            believed[ask.name] = weight = believed.get(ask.name, 0) + ask.weight
            if weight > ask.capacity:
                self._fail(f"more leases of {ask.name} are inside their trust windows than fit, {ask.owner} among them")
            if not self._has_place(lease, holding):
                self._fail(f"{ask.owner} is inside its trust window of {ask.name}, but has no place that holds")
            if ask.owner not in self._seen:
                self._add_grant(lease)
        elif not self._has_place(lease, holding):
            self._check_signalled(process, lease)

    def _check_waiting(self, handle: Handle, holding: dict[str, Place]) -> None:
        if self._server.clock_was_set_back:  # then a place may last longer than was asked
            return
        mine = handle._claim.leases
        if not any(lease.state in {LeaseState.JOINING, LeaseState.WAITING} for lease in mine):
            return
        soon = self._server.now() + ROUNDING
        for lease in mine:
            place = holding.get(lease.ask.owner)
            if place is None or lease.state is not LeaseState.HELD:
                continue
            if place.expires_at > soon + lease.ask.heartbeat:
                self._fail(
                    f"{lease.ask.owner} holds {lease.ask.name} beyond a heartbeat while it waits for another name"
                )

    def _add_grant(self, lease: Lease) -> None:
        self._seen.add(lease.ask.owner)
        self.grants += 1
        if lease.ask.weight == lease.ask.capacity:
            if lease.fence <= self._fences.get(lease.ask.name, -1):
                self._fail(f"{lease.ask.name}: fence {lease.fence} after {self._fences[lease.ask.name]}")
            self._fences[lease.ask.name] = lease.fence

    def _check_signalled(self, process: Process, lease: Lease) -> None:
        if self._world.now > process.paused_until + self.SIGNAL:
            self._fail(f"the loss of {lease.ask.name} was not signalled to {lease.ask.owner} in time")

    def _fail(self, what: str) -> None:
        msg = f"at {self._world.now:.4f}: {what}"
        raise ViolationError(msg)


class QuorumMonitor(Monitor):
    """Checks invariants of a quorum, where no single server knows the holder.

    - Never are two leases of one name inside their trust windows.
    - A loss is signalled as soon as the trust window closes, unless the process is paused.
    - Fences grow, name by name.
    - No lease of a reserved name is inside its trust window.
    """

    def check(self) -> None:
        trusting: dict[str, Lease] = {}
        for process, engine in self._engines.values():
            for lease in [] if process.crashed else list(engine.keeper.leases.values()):
                if lease.state is not LeaseState.HELD:
                    continue
                if not lease.is_held(process.now()):
                    if process.now() > lease.trusted_until + self.SIGNAL:
                        self._check_signalled(process, lease)
                    continue
                other = trusting.setdefault(lease.ask.name, lease)
                if other is not lease:
                    self._fail(f"{lease.ask.owner} and {other.ask.owner} both trust their lease of {lease.ask.name}")
                if lease.ask.owner not in self._seen:
                    self._add_grant(lease)
        for name, owner in self._live_reservations():
            if name in trusting:
                self._fail(f"{trusting[name].ask.owner} trusts its lease of {name}, which {owner} should still reserve")
