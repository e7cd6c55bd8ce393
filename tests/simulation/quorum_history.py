"""One random history of a quorum: as `History`, and members come back empty."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from lockstead.core.store import Store
from lockstead.runtimes.simulated import Process
from lockstead.stores.quorum.store import TICKET_LEAD, Quorum
from lockstead.testing import QuorumMonitor, SimulatedMember, SimulatedMemberStore, ViolationError
from lockstead.testing.simulation.history import History


@dataclass
class QuorumHistory(History):
    mixed: bool = False
    losses: int = 0
    quorums: dict[str, Quorum] = field(default_factory=dict)
    orphans: dict[tuple[int, str], float] = field(default_factory=dict)
    looked_at: float = 0.0
    emptied: list[SimulatedMember] = field(default_factory=list)

    def _build(self) -> None:
        self.reads_clocks = self.random.random() < 0.3
        if self.random.random() < 0.5:  # so that members vote again soon, and are emptied again
            self.ttls = (0.5, 1.0)
        self.members = [self._member() for _ in range(self.random.choice((3, 3, 4, 5, 5)))]
        self.servers = [*self.members]
        self.server = self.servers[0]
        self.monitor = QuorumMonitor(self.world, self.server)

    def _member(self) -> SimulatedMember:
        member = SimulatedMember(self.world, self._make_faults(), self._clock())
        member._ticket = self.random.choice((0, 5, 1000))
        return member

    def _clock(self) -> Callable[[], int]:
        """Make a wall clock, so that tickets mostly agree; or none, so that only counting helps."""
        error = self.random.choice((0, self.random.randint(-30_000, 30_000), self.random.randint(-10_000_000, 0)))
        return (lambda: int(self.world.now * 1e6) + 20_000_000 + error) if self.reads_clocks else (lambda: 0)

    def _connect(self, process: Process) -> Store:
        members = [SimulatedMemberStore(process, member) for member in self.members]
        self.links += members
        names = [f"m{number}" for number in range(len(members))]
        clock = self._clock() if self.reads_clocks else lambda: -TICKET_LEAD
        quorum = self.quorums[process.name] = Quorum(members[0].runtime, members, names, clock=clock)
        return quorum

    def _schedule_faults(self) -> None:
        super()._schedule_faults()
        for process, _ in self.processes:
            self._sometimes(0.3, lambda process=process: self._cut_off_from_most(process))
        for member in self.members:
            for chance in (0.7, 0.4, 0.4):
                self._sometimes(chance, lambda member=member: self._empty(member))

    def _cut_off_from_most(self, process: Process) -> None:
        links = [link for link in self.links if link._process is process]
        until = self.world.now + self.random.choice((0.5, 3.0, 10.0))
        for link in self.random.sample(links, len(links) // 2 + 1):
            link.partitioned_until = until

    def _empty(self, member: SimulatedMember) -> None:
        """Let a member lose its data, if enough others vote that this may happen."""
        voting = [each for each in self.members if each.votes()]
        if member in voting and len(voting) > len(self.members) // 2 + 1:
            self.losses += 1
            self.emptied.append(member)
            member.stall(self.random.choice((0.0, 0.01, 0.3)))
            member.lose_data()

    def _may_lose_data(self) -> bool:
        return bool(self.emptied)

    def _step(self) -> bool:
        if self.world.now > self.looked_at + 0.5:
            self.looked_at = self.world.now
            self._check_that_every_place_has_an_owner()
        return super()._step()

    def _check_that_every_place_has_an_owner(self) -> None:
        """Every place is one its client knows of, but for a moment after a leave that was not waited for."""
        places = [
            (number, name, place.owner)
            for number, member in enumerate(self.members)
            if member not in self.emptied and not member.clock_was_set_back
            for name, line in member.peek()
            for place in line
            if not place.reserved
        ]
        orphans = {}
        for number, name, owner in places:
            process = next(process for process, _ in self.processes if process.name == owner.rpartition("/")[0])
            quorum = self.quorums[process.name]
            trace = quorum._placements.get((name, owner))
            is_known = trace is not None and number in trace.members()
            if process.crashed or is_known or (name, owner) in quorum._members._states[number].pending_releases:
                continue
            since = max(self.orphans.get((number, owner), self.world.now), process.paused_until)
            orphans[number, owner] = max(since, self.members[number].stalled_until)
            if self.world.now > since + 5.0:
                raise ViolationError(f"{owner} has a place on m{number} that no client knows of")
        self.orphans = orphans

    def _check_nothing_is_left(self) -> None:
        super()._check_nothing_is_left()
        for process, _ in self.processes:
            quorum = self.quorums[process.name]
            traces = [trace for trace in quorum._placements.values() if trace.until + 30.0 > process.now()]
            pending_releases = [node.pending_releases for node in quorum._members._states if node.pending_releases]
            if not process.crashed and (traces or pending_releases):
                raise ViolationError(f"{process.name} remembers {traces} {pending_releases}")
