"""One random history of a server that crashes: as `History`, and releases that were not on disk yet are undone."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from copy import copy
from dataclasses import dataclass
from typing import TypeVar

from lockstead.core.lease import Lease
from lockstead.core.model import Ask, Place, Refusal, Renewal, Reservation, Standing
from lockstead.primitives.handle import Handle
from lockstead.runtimes.simulated import World
from lockstead.stores.memory import _MemoryLine
from lockstead.testing import Monitor
from lockstead.testing.simulation.history import History
from lockstead.testing.simulation.memory import SimulatedServer
from lockstead.testing.simulation.network import Faults

T = TypeVar("T")
Lines = dict[str, _MemoryLine]


class CrashingServer(SimulatedServer):
    """A server whose log is a sequence: a crash undoes the last steps, back to one that had been flushed, or later.

    A step that changes anything is flushed before it is answered, and every step before it with it; except the
    `asynchronous` ones, which are flushed some time after. While one of `unlocked` is being flushed, other clients see
    what it has done.
    """

    asynchronous: Collection[str] = ("leave",)
    """`leave` is one without a tombstone: see the statements of the lease table."""
    unlocked: Collection[str] = ("join",)

    def __init__(self, world: World, faults: Faults) -> None:
        super().__init__(world, faults)
        self.crash_rate = world.random.choice((0.05, 0.2, 0.5))
        """The probability that the server crashes soon after a step that need not have been flushed."""
        self.crashes = 0
        self.grants_undone = 0
        self.undone: set[str] = set()
        """The owners of places that a crash has brought back, or back from holding to waiting."""
        self._being_flushed = False
        """Whether the step that was just made is one that is answered once it is flushed."""
        self._restarts = 0
        self._unflushed: list[Lines] = []
        """The lines as they were before each step that may not have been flushed yet."""

    def join(self, ask: Ask) -> tuple[Standing | Refusal, list[str]]:
        return self._commit("join", lambda: super(CrashingServer, self).join(ask))

    def renew(self, renewals: Sequence[Renewal]) -> tuple[list[Standing], list[str]]:
        return self._commit("renew", lambda: super(CrashingServer, self).renew(renewals))

    def leave(self, name: str, owner: str, tombstone: float) -> tuple[bool, list[str]]:
        kind = "leave_with_tombstone" if tombstone else "leave"
        return self._commit(kind, lambda: super(CrashingServer, self).leave(name, owner, tombstone))

    def reserve(self, reservation: Reservation) -> tuple[bool, list[str]]:
        return self._commit("reserve", lambda: super(CrashingServer, self).reserve(reservation))

    def join_all(self, asks: Sequence[Ask]) -> tuple[list[Standing] | Refusal, list[str]]:
        return self._commit("join_all", lambda: super(CrashingServer, self).join_all(asks))

    def reply(self, send: Callable[[], None]) -> None:
        is_flushed, self._being_flushed = not self._being_flushed, False
        restarts = self._restarts

        def flush() -> None:
            if self._restarts == restarts:
                self._unflushed.clear()
                send()

        if is_flushed:
            send()
        else:
            self.world.after(self.world.random.random() * 0.05, flush)

    def crash(self) -> None:
        """Undo steps that had not been flushed, and be down for a while. What waits for the flush gets no answer."""
        self._restarts += 1
        self.stall(self.world.random.choice((0.0, 0.1, 1.0, 4.0)))
        undone_from = self.world.random.randint(0, len(self._unflushed))
        if undone_from == len(self._unflushed):
            return
        self.crashes += 1
        before, self._lines = _holding(self._lines), self._unflushed[undone_from]
        self._unflushed.clear()
        for owner, holds in _holding(self._lines).items():
            is_undone_grant = before.get(owner, False) and not holds
            self.grants_undone += is_undone_grant
            if owner not in before or is_undone_grant:
                self.undone.add(owner)

    def _commit(self, kind: str, step: Callable[[], T]) -> T:
        lines = {name: _copied(line) for name, line in self._lines.items()}
        result = step()
        if _written(lines) == _written(self._lines):
            return result
        self._being_flushed = kind in self.unlocked and kind not in self.asynchronous
        if kind not in self.asynchronous and not self._being_flushed:
            self._unflushed.clear()
            return result
        self._unflushed.append(lines)
        if self.world.random.random() < self.crash_rate:
            self.world.after(self.world.random.random() * 0.6, self.crash)
        return result


def _copied(line: _MemoryLine) -> _MemoryLine:
    copied = _MemoryLine(line._next_ticket)
    copied._places = OrderedDict((owner, copy(place)) for owner, place in line._places.items())
    copied._tombstones = dict(line._tombstones)
    copied._prune_above, copied._time = line._prune_above, line._time
    return copied


def _written(lines: Lines) -> list[object]:
    return [(name, list(line.places()), line._tombstones) for name, line in lines.items()]


def _holding(lines: Lines) -> dict[str, bool]:
    return {place.owner: place.acquired_at is not None for line in lines.values() for place in line.places()}


class CrashMonitor(Monitor):
    """Checks what is left of the invariants when a crash has undone releases.

    - A place that came back belongs to no client any more, and expires.
    - A holder that the release made one has a live place at least, inside its trust window: so no place behind it
      holds, and no two leases are inside their trust windows.
    """

    def __init__(self, world: World, server: CrashingServer) -> None:
        super().__init__(world, server)
        self._crashing = server

    def _may_be_untracked(self, place: Place) -> bool:
        return place.owner in self._crashing.undone or super()._may_be_untracked(place)

    def _has_place(self, lease: Lease, holding: dict[str, Place]) -> bool:
        if lease.ask.owner not in self._crashing.undone:
            return super()._has_place(lease, holding)
        return any(
            place.owner == lease.ask.owner
            for name, places in self._server.peek()
            for place in places
            if name == lease.ask.name
        )


@dataclass
class CrashHistory(History):
    def _build(self) -> None:
        self.make_server = CrashingServer
        super()._build()
        assert isinstance(self.server, CrashingServer)
        self.crashing = self.server
        self.monitor = CrashMonitor(self.world, self.server)

    def _may_lose_grant(self, handle: Handle) -> bool:
        """A place that waits again cannot be turned into a reservation: its holder receives the loss."""
        return any(lease.ask.owner in self.crashing.undone for lease in handle._leases)

    def _end_faults(self) -> None:
        super()._end_faults()
        self.crashing.crash_rate = 0.0
