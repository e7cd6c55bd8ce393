"""The simulated network between engines and a server: it loses, delays and repeats messages, and forges wake-ups."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from lockstead.core.model import (
    Ask,
    Capabilities,
    Line,
    Place,
    RateRequest,
    RateResult,
    Refusal,
    Renewal,
    Reservation,
    Standing,
    Wake,
)
from lockstead.errors import StoreError
from lockstead.runtimes.simulated import Parking, Process, SimulatedRuntime, World
from lockstead.stores.waiters import WaiterEvents

T = TypeVar("T")


@dataclass(slots=True)
class Faults:
    """The faults of the network: probabilities per message, and the longest delay of slow ones in seconds."""

    lost_request: float = 0.0
    lost_reply: float = 0.0
    lost_wake_up: float = 0.0
    repeated: float = 0.0
    """Renewals only: a store must not let its driver repeat any other request without the engine's knowledge."""
    slow: float = 0.0
    slowest: float = 2.0
    forged: float = 0.0
    """Per request: the probability that another client forges wake-ups from everything it knows."""


class Server(ABC):
    """A server whose clock may differ and be set back, and whose process may stall.

    Its steps are those of a `Store`; each also returns the owners to wake.
    """

    capabilities = Capabilities()
    can_reserve = True
    clock_goes_back = True
    """Whether histories set its clock back."""

    def __init__(self, world: World, faults: Faults) -> None:
        self.world = world
        self.faults = faults
        self.clock_offset = 1000.0
        self.clock_was_set_back = False
        self.stalled_until = 0.0
        self.clients: dict[str, Callable[[str], None]] = {}
        self.secrets: dict[str, str] = {}
        """By owner, the message that says to its client that its place holds."""
        self.published: list[str] = []
        """Every wake-up so far: any client may have been subscribed."""

    @abstractmethod
    def join(self, ask: Ask) -> tuple[Standing | Refusal, list[str]]: ...

    @abstractmethod
    def renew(self, renewals: Sequence[Renewal]) -> tuple[list[Standing], list[str]]: ...

    @abstractmethod
    def leave(self, name: str, owner: str, tombstone: float) -> tuple[bool, list[str]]: ...

    @abstractmethod
    def reserve(self, reservation: Reservation) -> tuple[bool, list[str]]: ...

    @abstractmethod
    def join_all(self, asks: Sequence[Ask]) -> tuple[list[Standing] | Refusal | None, list[str]]: ...

    @abstractmethod
    def consume(self, request: RateRequest) -> RateResult: ...

    @abstractmethod
    def inspect(self, prefix: str, *, exact: bool) -> list[Line]: ...

    @abstractmethod
    def peek(self) -> list[tuple[str, list[Place]]]:
        """Return the places that have not expired, without changing anything."""

    @abstractmethod
    def size(self) -> int:
        """Count the names for which anything is stored."""

    def close(self) -> None:
        """Free everything at the end of the world."""
        self.clients.clear()

    def now(self) -> float:
        return self.world.now + self.clock_offset

    def set_clock_back(self, seconds: float) -> None:
        """Step the clock back. A line notices at its next step; until then its places may last longer than promised."""
        self.clock_offset -= seconds
        self.clock_was_set_back = True

    def stall(self, seconds: float) -> None:
        self.stalled_until = max(self.stalled_until, self.world.now + seconds)

    def arrive(self, action: Callable[[], None]) -> None:
        """Handle a message now, or after the stall."""
        if self.world.now < self.stalled_until:
            self.world.after(self.stalled_until - self.world.now, lambda: self.arrive(action))
        else:
            action()

    def forge(self) -> None:
        """Send wake-ups as a client would that may publish and subscribe, but neither read nor write any line.

        It knows every owner, can guess the next one, as they are numbered, and has every message published so far.
        """
        chance = self.world.forger_random
        if chance.random() < self.faults.forged:
            receive = chance.choice(list(self.clients.values()))
            for message in (chance.choice([*self.secrets, "x"]), chance.choice([*self.published, "x"]), "\udcff"):
                receive(message)

    def reply(self, send: Callable[[], None]) -> None:
        """Answer the step that was just made, now or later."""
        send()

    def travel(self, lost: float, action: Callable[[], None], *, repeatable: bool = True) -> None:
        """Deliver a request or a reply after a delay: once, twice or not at all."""
        chance = self.world.random.random
        if chance() < lost:
            return
        for _ in range(1 + (repeatable and chance() < self.faults.repeated)):
            delay = chance() * self.faults.slowest if chance() < self.faults.slow else 0.0001 + chance() * 0.002
            self.world.after(delay, action)


class SimulatedStore:
    """A client's end of the network."""

    def __init__(self, process: Process, server: Server) -> None:
        self.runtime = SimulatedRuntime(process)
        self.address = "simulated://server"
        self.capabilities = server.capabilities
        self.partitioned_until = 0.0
        self._process = process
        self._server = server
        self._waiters = WaiterEvents(self.runtime)
        self._owners: dict[str, str] = {}
        server.clients[process.name] = self._receive

    def make_message(self, owner: str) -> str:
        """Make the wake-up message of an owner, which only the server and this client know."""
        return f"{owner} {self._process.world.forger_random.random()}"

    async def join(self, ask: Ask, timeout: float) -> Standing | Refusal:
        if ask.queue and ask.owner not in self._server.secrets:
            self._waiters.open(ask.owner)
            secret = self._server.secrets[ask.owner] = self.make_message(ask.owner)
            self._owners[secret] = ask.owner
        return await self._request(lambda: self._server.join(ask), timeout, repeatable=False)

    async def renew(self, renewals: Sequence[Renewal], timeout: float) -> list[Standing]:
        return await self._request(lambda: self._server.renew(renewals), timeout)

    async def leave(self, name: str, owner: str, timeout: float, tombstone: float = 0.0) -> bool:
        was_there = await self._request(lambda: self._server.leave(name, owner, tombstone), timeout, repeatable=False)
        self._forget(owner)
        return was_there

    async def reserve(self, reservation: Reservation, timeout: float) -> bool:
        was_there = await self._request(lambda: self._server.reserve(reservation), timeout, repeatable=False)
        self._forget(reservation.owner)
        return was_there

    async def join_all(self, asks: Sequence[Ask], timeout: float) -> list[Standing] | Refusal | None:
        return await self._request(lambda: self._server.join_all(asks), timeout, repeatable=False)

    async def consume(self, request: RateRequest, timeout: float) -> RateResult:
        return await self._request(lambda: (self._server.consume(request), []), timeout, repeatable=False)

    async def wait(self, name: str, owner: str, timeout: float) -> Wake:
        return Wake.GRANT if await self._waiters.wait(owner, timeout) else Wake.TIMEOUT

    async def inspect(self, prefix: str = "", *, exact: bool = False) -> list[Line]:
        return self._server.inspect(prefix, exact=exact)

    async def close(self) -> None:
        return None

    async def _request(self, step: Callable[[], tuple[T, list[str]]], timeout: float, *, repeatable: bool = True) -> T:
        server = self._server
        answer: Parking[tuple[T] | None] = Parking()

        def execute() -> None:
            if self._is_partitioned():
                return
            result, woken = step()
            for owner in woken:
                self._push(owner)
            server.forge()
            server.reply(
                lambda: server.travel(server.faults.lost_reply, lambda: self._deliver(lambda: answer.wake((result,))))
            )

        server.travel(server.faults.lost_request, lambda: server.arrive(execute), repeatable=repeatable)
        self._process.after(timeout, lambda: answer.wake(None))
        answered: tuple[T] | None = await answer
        if answered is None:
            msg = f"the simulated server did not answer within {timeout:g} s"
            raise StoreError(msg, transient=True)
        return answered[0]

    def _push(self, owner: str) -> None:
        receive = self._server.clients[owner.rpartition("/")[0]]
        message = self._server.secrets.get(owner, owner)  # the place may have been released since
        self._server.published.append(message)
        self._server.travel(self._server.faults.lost_wake_up, lambda: receive(message))

    def _receive(self, message: str) -> None:
        if owner := self._owners.get(message):
            self._deliver(lambda: self._waiters.notify(owner))

    def _forget(self, owner: str) -> None:
        self._waiters.close(owner)
        self._owners.pop(self._server.secrets.pop(owner, ""), None)

    def _deliver(self, action: Callable[[], object]) -> None:
        if not self._is_partitioned():
            self._process.after(0, lambda: (action(), None)[1])

    def _is_partitioned(self) -> bool:
        return self._process.world.now < self.partitioned_until
