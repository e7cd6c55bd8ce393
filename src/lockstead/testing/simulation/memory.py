"""Simulated servers that keep everything in memory and apply the rule of `core/rule.py`."""

from __future__ import annotations

from collections.abc import Callable

from lockstead.core.model import Membership, Place
from lockstead.runtimes.simulated import Process, World
from lockstead.stores.memory import MemoryServer
from lockstead.testing.simulation.members import MemberServer
from lockstead.testing.simulation.network import Faults, Server, SimulatedStore


class SimulatedServer(MemoryServer, Server):
    def __init__(self, world: World, faults: Faults, floor: Callable[[], int] = lambda: 0) -> None:
        Server.__init__(self, world, faults)
        super().__init__(self.now, floor)

    def peek(self) -> list[tuple[str, list[Place]]]:
        now = self.now()
        return [
            (name, [place for place in line.places() if place.expires_at > due])
            for name, line in self._lines.items()
            for due in (now + line.behind(now),)
        ]


class SimulatedMember(SimulatedServer, MemberServer):
    """A server that may be a member of a quorum, and may restart empty."""

    def votes(self) -> bool:
        return self._marker is not None and self._marker.votes_in(self.now()) == 0


class SimulatedMemberStore(SimulatedStore):
    """A client's end of the network to a member."""

    def __init__(self, process: Process, server: SimulatedMember) -> None:
        super().__init__(process, server)
        self._member = server

    async def probe(self, timeout: float) -> Membership:
        return await self._request(lambda: (self._member.probe(), []), timeout)

    async def admit(self, token: str, ticket: int, longest: float, timeout: float) -> Membership:
        return await self._request(lambda: (self._member.admit(token, ticket, longest), []), timeout)
