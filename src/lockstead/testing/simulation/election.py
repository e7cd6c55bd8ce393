"""One random history of elections: candidates start, stop, stall and crash while everything that can fail does."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from lockstead.core.engine import Engine
from lockstead.errors import LockError
from lockstead.primitives.candidate import CandidateElection, Running, Term
from lockstead.primitives.handle import acquired
from lockstead.runtimes.simulated import Process
from lockstead.testing.simulation.history import DEFAULTS, History
from lockstead.testing.simulation.monitor import ViolationError


@dataclass
class Reign:
    """A time in which a candidate may act as the leader: from the call of on_elected until on_lost has ended."""

    process: Process
    since: float
    is_ending: bool = False

    def is_excused(self) -> bool:
        """Return whether the leader could not have stopped in time: it crashed, or was paused."""
        return self.process.crashed or self.process.paused_until > self.since


@dataclass
class ElectionHistory(History):
    """Processes that campaign in the same few elections.

    - No candidate is elected before the on_lost of the previous leader has ended, unless that crashed or was paused.
    - Every on_elected is followed by one on_lost, and by nothing else.
    """

    ttls: tuple[float, ...] = (0.5, 1.0, 3.0, 5.0)
    reigns: dict[str, list[Reign]] = field(default_factory=dict)
    registries: list[tuple[Process, Running]] = field(default_factory=list)

    async def _work(self, process: Process, engine: Engine) -> None:
        chance = self.random.random
        for _ in range(self.random.randint(2, 4)):
            await engine.runtime.sleep(chance() * 3)
            election = self._election(process, engine)
            if chance() < 0.3:
                await self._campaign(election, process)
                continue
            election._start()
            try:
                await engine.runtime.sleep(chance() * 8)
                term = None if election._candidate is None else election._candidate.term
                if term is not None and term._has_begun and chance() < 0.3:
                    await self._resign(term)
                    await engine.runtime.sleep(chance() * 3)
            finally:
                if not process.crashed:
                    await election._stop()

    async def _campaign(self, election: CandidateElection[Term], process: Process) -> None:
        leadership = None
        try:
            plan = election._plan._replace(timeout=self.random.choice((inf, self.random.random() * 4)))
            leadership = await acquired(election._new(election._engine), plan)
            await election._engine.runtime.sleep(self.random.random() * 4)
        except LockError:
            return
        finally:
            if leadership is not None and not process.crashed:
                await self._resign(leadership)

    @staticmethod
    async def _resign(leadership: Term) -> None:
        try:
            await leadership._release_once()
        except LockError:
            return

    def _election(self, process: Process, engine: Engine) -> CandidateElection[Term]:
        name, ttl = self.random.choice(self.names), self.random.choice(self.ttls)
        grace = ttl * self.random.choice((0.1, 0.2, 0.5))
        time_to_stop = grace * self.random.choice((0.0, 0.5, 0.9))
        reigns = self.reigns.setdefault(name, [])

        async def on_elected(leadership: Term) -> None:
            self.sections += 1
            for reign in reigns:
                if not reign.is_excused():
                    self.monitor._fail(f"{process.name} leads {name}, but {reign.process.name} still does too")
            reigns.append(Reign(process, self.world.now))
            if self.random.random() < 0.1:
                await self._resign(leadership)

        async def on_lost(leadership: Term) -> None:
            reign = next((reign for reign in reigns if reign.process is process and not reign.is_ending), None)
            if reign is None:
                self.monitor._fail(f"{process.name} loses {name}, which it does not lead")
            assert reign is not None
            reign.is_ending = True
            if leadership.is_leader:
                self.monitor._fail(f"{process.name} still leads {name} in its on_lost")
            await engine.runtime.sleep(time_to_stop)
            reigns.remove(reign)

        running: Running = set()
        self.registries.append((process, running))
        return CandidateElection(
            engine, Term, running, name, DEFAULTS, ttl=ttl, grace=grace, on_elected=on_elected, on_lost=on_lost
        )

    def _check_nothing_is_left(self) -> None:
        super()._check_nothing_is_left()
        for name, reigns in self.reigns.items():
            for reign in reigns:
                if not reign.process.crashed:
                    raise ViolationError(f"on_lost of {name} was never called in {reign.process.name}")
        for process, running in self.registries:
            if running and not process.crashed:
                raise ViolationError(f"{process.name} is still a candidate after its stop")
