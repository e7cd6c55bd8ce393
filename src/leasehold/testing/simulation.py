"""Simulate clients of leasehold on a network that loses, delays and repeats, and check what must never happen.

`SimulatedStore` puts such a network between an engine and a `MemoryServer`; `Monitor` compares, after every
step, what clients believe with what the server has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from leasehold._engine import Engine
from leasehold._handle import Handle
from leasehold._lease import Lease, State
from leasehold._model import (
    LINGERING,
    Ask,
    Balance,
    Capabilities,
    Charge,
    Line,
    Membership,
    Place,
    Refusal,
    Renewal,
    Standing,
    Stay,
    Wake,
)
from leasehold.errors import StoreError
from leasehold.runtimes.simulated import Parking, Process, SimulatedRuntime, World
from leasehold.stores._mailbox import Mailbox
from leasehold.stores.memory import MemberServer, MemoryServer

T = TypeVar("T")


@dataclass(slots=True)
class Faults:
    """How bad the network is: probabilities per message, and how long the slow ones take."""

    lost_request: float = 0.0
    lost_reply: float = 0.0
    lost_wake_up: float = 0.0
    repeated: float = 0.0
    """Renewals only: a store must not let its driver repeat anything else behind the engine's back."""
    slow: float = 0.0
    slowest: float = 2.0


class SimulatedServer(MemoryServer):
    """A server with a clock that may run off, be set back, and a process that may stall."""

    def __init__(self, world: World, faults: Faults, floor: Callable[[], int] = lambda: 0) -> None:
        self.world = world
        self.faults = faults
        self.clock_offset = 1000.0
        self.clock_was_set_back = False
        self.stalled_until = 0.0
        self.clients: dict[str, Callable[[str], None]] = {}
        super().__init__(self.now, floor)

    def now(self) -> float:
        return self.world.now + self.clock_offset

    def set_clock_back(self, seconds: float) -> None:
        """Step the clock. A line notices at its next step, until when its places may live longer than promised."""
        self.clock_offset -= seconds
        self.clock_was_set_back = True

    def stall(self, seconds: float) -> None:
        self.stalled_until = max(self.stalled_until, self.world.now + seconds)

    def peek(self) -> list[tuple[str, list[Place]]]:
        """Look at the living places as they are, without settling anything."""
        now = self.now()
        return [
            (name, [place for place in line.places() if place.expires_at > due])
            for name, line in self._lines.items()
            for due in (now + line.behind(now),)
        ]

    def arrive(self, action: Callable[[], None]) -> None:
        """Handle a message now, or when the server gets to it."""
        if self.world.now < self.stalled_until:
            self.world.after(self.stalled_until - self.world.now, lambda: self.arrive(action))
        else:
            action()

    def travel(self, lost: float, action: Callable[[], None], *, repeatable: bool = True) -> None:
        """Let a message travel either way, if it arrives at all."""
        chance = self.world.random.random
        if chance() < lost:
            return
        for _ in range(1 + (repeatable and chance() < self.faults.repeated)):
            delay = chance() * self.faults.slowest if chance() < self.faults.slow else 0.0001 + chance() * 0.002
            self.world.after(delay, action)


class SimulatedStore:
    """A client's end of the network."""

    capabilities = Capabilities()

    def __init__(self, process: Process, server: SimulatedServer) -> None:
        self.runtime = SimulatedRuntime(process)
        self.partitioned_until = 0.0
        self._process = process
        self._server = server
        self._mailbox = Mailbox(self.runtime)
        server.clients[process.name] = self._receive

    async def join(self, ask: Ask, timeout: float) -> Standing | Refusal:
        if ask.queue:
            self._mailbox.open(ask.owner)
        return await self._request(lambda: self._server.join(ask), timeout, repeatable=False)

    async def renew(self, renewals: Sequence[Renewal], timeout: float) -> list[Standing | None]:
        return await self._request(lambda: self._server.renew(renewals), timeout)

    async def leave(self, name: str, owner: str, timeout: float, unsure: float = 0.0) -> bool:
        was_there = await self._request(lambda: self._server.leave(name, owner, unsure), timeout, repeatable=False)
        self._mailbox.close(owner)
        return was_there

    async def linger(self, stay: Stay, timeout: float) -> bool:
        was_there = await self._request(lambda: self._server.linger(stay), timeout, repeatable=False)
        self._mailbox.close(stay.owner)
        return was_there

    async def join_all(self, asks: Sequence[Ask], timeout: float) -> list[Standing] | Refusal | None:
        return await self._request(lambda: self._server.join_all(asks), timeout, repeatable=False)

    async def spend(self, charge: Charge, timeout: float) -> Balance:
        return await self._request(lambda: (self._server.spend(charge), []), timeout, repeatable=False)

    async def wait(self, name: str, owner: str, timeout: float) -> Wake:
        return Wake.GRANT if await self._mailbox.wait(owner, timeout) else Wake.SILENCE

    async def inspect(self, prefix: str = "", *, exact: bool = False) -> list[Line]:
        return self._server.inspect(prefix, exact=exact)

    async def close(self) -> None:
        return None

    async def _request(self, step: Callable[[], tuple[T, list[str]]], timeout: float, *, repeatable: bool = True) -> T:
        server = self._server
        answer: Parking[tuple[T] | None] = Parking()

        def carry_out() -> None:
            if self._is_cut_off():
                return
            result, woken = step()
            for owner in woken:
                self._push(owner)
            server.travel(server.faults.lost_reply, lambda: self._deliver(lambda: answer.wake((result,))))

        server.travel(server.faults.lost_request, lambda: server.arrive(carry_out), repeatable=repeatable)
        self._process.after(timeout, lambda: answer.wake(None))
        answered: tuple[T] | None = await answer
        if answered is None:
            msg = f"the simulated server did not answer within {timeout:g} s"
            raise StoreError(msg, transient=True)
        return answered[0]

    def _push(self, owner: str) -> None:
        receive = self._server.clients[owner.rpartition("/")[0]]
        self._server.travel(self._server.faults.lost_wake_up, lambda: receive(owner))

    def _receive(self, owner: str) -> None:
        self._deliver(lambda: self._mailbox.ring(owner))

    def _deliver(self, action: Callable[[], object]) -> None:
        if not self._is_cut_off():
            self._process.after(0, lambda: (action(), None)[1])

    def _is_cut_off(self) -> bool:
        return self._process.world.now < self.partitioned_until


class SimulatedMember(SimulatedServer, MemberServer):
    """A server that may be one of a quorum's, and may come back empty."""

    def votes(self) -> bool:
        return self._marker is not None and self._marker.votes_in(self.now()) == 0


class SimulatedMemberStore(SimulatedStore):
    """A client's end of the network to a member."""

    def __init__(self, process: Process, server: SimulatedMember) -> None:
        super().__init__(process, server)
        self._member = server

    async def knock(self, timeout: float) -> Membership:
        return await self._request(lambda: (self._member.knock(), []), timeout)

    async def admit(self, token: str, ticket: int, longest: float, timeout: float) -> Membership:
        return await self._request(lambda: (self._member.admit(token, ticket, longest), []), timeout)


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
    - Whoever still waits for one of several names holds the others from heartbeat to heartbeat only.
    - A name that was left taken stays so for as long as was asked.
    """

    SIGNAL = 0.004
    """Seconds a running process has to signal a loss after its window closed."""

    def __init__(self, world: World, server: SimulatedServer) -> None:
        self._world = world
        self._server = server
        self._engines: dict[str, tuple[Process, Engine]] = {}
        self._fences: dict[str, int] = {}
        self._seen: set[str] = set()
        self._left_taken: list[tuple[float, str, str]] = []
        self._last_alive: dict[tuple[str, int], float] = {}
        self.waiting: set[Handle] = set()
        """Those who are acquiring several names."""
        self.grants = 0

    def add(self, process: Process, engine: Engine) -> None:
        self._engines[process.name] = process, engine

    def leave_taken(self, lease: Lease, until: float) -> None:
        """Expect the name of a lease that was released to stay taken until then."""
        self._left_taken.append((until, lease.ask.name, lease.ask.owner + LINGERING))

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
        for name, owner in self._still_taken():
            if owner not in holding:
                self._fail(f"{owner} should keep {name} taken")

    def _still_taken(self) -> list[tuple[str, str]]:
        if self._left_taken:
            self._left_taken = [left for left in self._left_taken if self._world.now < left[0]]
        return [left[1:] for left in self._left_taken]

    def _check_line(self, name: str, places: Sequence[Place], holding: dict[str, Place]) -> None:
        """Check one line, and take down who holds."""
        spent = 0
        somebody_waits = False
        self._last_alive[name, places[0].capacity] = self._world.now
        for place in places:
            process, engine = self._engines[place.owner.rpartition("/")[0]]
            looked_after = place.owner in engine.keeper.leases or process.crashed or place.lingers
            if not looked_after and not self._server.clock_was_set_back:
                self._fail(f"{place.owner} has a place in {name} that nobody looks after")
            if place.acquired_at is None:
                somebody_waits = True
                continue
            holding[place.owner] = place
            spent += place.weight
            if somebody_waits:
                self._fail(f"{name}: somebody was overtaken: {places}")
            if spent > place.capacity:
                self._fail(f"{name}: more hold than fit: {places}")

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
            self._check_told(process, lease)

    def _check_waiting(self, handle: Handle, holding: dict[str, Place]) -> None:
        if self._server.clock_was_set_back:  # then a place may live longer than was asked
            return
        mine = [lease for lease in handle._engine.keeper.leases.values() if lease.claim() is handle._claim]
        if not any(lease.state is State.WAITING and not lease.leaving for lease in mine):
            return
        soon = self._server.now() + 1e-6
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

    def _check_told(self, process: Process, lease: Lease) -> None:
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
                        self._check_told(process, lease)
                    continue
                other = trusting.setdefault(lease.ask.name, lease)
                if other is not lease:
                    self._fail(f"{lease.ask.owner} and {other.ask.owner} both trust in {lease.ask.name}")
                if lease.ask.owner not in self._seen:
                    self._see(lease)
        for name, owner in self._still_taken():
            if name in trusting:
                self._fail(f"{trusting[name].ask.owner} trusts in {name}, which {owner} should keep taken")
