"""One random history of elections: candidates that come, go, stall and die while everything that can go wrong does."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from lockstead.core.engine import Engine
from lockstead.errors import LockError
from lockstead.primitives.election import Contest, Leading
from lockstead.runtimes.simulated import Process
from lockstead.testing.simulation.history import DEFAULTS, History
from lockstead.testing.simulation.monitor import ViolationError


@dataclass
class Office:
    """A time in which a candidate may be at work: from the call of on_elected until on_lost has ended."""

    process: Process
    since: float
    is_ending: bool = False

    def excuses(self) -> bool:
        """Tell whether nobody could have left in time: the dead do nothing, and the paused nothing in time."""
        return self.process.crashed or self.process.paused_until > self.since


@dataclass
class ElectionHistory(History):
    """Processes that stand for the same few offices.

    - Nobody is elected while another, who is neither dead nor was paused, has not ended his on_lost.
    - Every on_elected is followed by one on_lost, and by nothing but that.
    """

    ttls: tuple[float, ...] = (0.5, 1.0, 3.0, 5.0)
    terms: dict[str, list[Office]] = field(default_factory=dict)

    async def _work(self, process: Process, engine: Engine) -> None:
        chance = self.random.random
        for _ in range(self.random.randint(2, 4)):
            await engine.runtime.sleep(chance() * 3)
            contest = self._contest(process, engine)
            if chance() < 0.3:
                await self._campaign(contest, process)
                continue
            contest._start()
            try:
                await engine.runtime.sleep(chance() * 8)
                leadership = None if contest._candidacy is None else contest._candidacy.leadership
                if leadership is not None and leadership._term is not None and chance() < 0.3:
                    await self._resign(leadership)
                    await engine.runtime.sleep(chance() * 3)
            finally:
                if not process.crashed:
                    await contest._stop()

    async def _campaign(self, contest: Contest[Leading], process: Process) -> None:
        leadership = None
        try:
            plan = contest._plan._replace(timeout=self.random.choice((inf, self.random.random() * 4)))
            leadership = await contest._campaign(plan)
            await contest._runtime.sleep(self.random.random() * 4)
        except LockError:
            return
        finally:
            if leadership is not None and not process.crashed:
                await self._resign(leadership)

    @staticmethod
    async def _resign(leadership: Leading) -> None:
        try:
            await leadership._release()
        except LockError:
            return

    def _contest(self, process: Process, engine: Engine) -> Contest[Leading]:
        name, ttl = self.random.choice(self.names), self.random.choice(self.ttls)
        grace = ttl * self.random.choice((0.1, 0.2, 0.5))
        time_to_stop = grace * self.random.choice((0.0, 0.5, 0.9))
        terms = self.terms.setdefault(name, [])

        async def on_elected(leadership: Leading) -> None:
            self.sections += 1
            for office in terms:
                if not office.excuses():
                    self.monitor._fail(f"{process.name} leads {name}, but {office.process.name} does still")
            terms.append(Office(process, self.world.now))
            if self.random.random() < 0.1:
                await self._resign(leadership)

        async def on_lost(leadership: Leading) -> None:
            office = next((office for office in terms if office.process is process and not office.is_ending), None)
            if office is None:
                self.monitor._fail(f"{process.name} loses {name}, which it does not lead")
            assert office is not None
            office.is_ending = True
            if leadership.is_leader:
                self.monitor._fail(f"{process.name} leads {name} on")
            await engine.runtime.sleep(time_to_stop)
            terms.remove(office)

        return Contest(engine, Leading, name, DEFAULTS, ttl=ttl, grace=grace, on_elected=on_elected, on_lost=on_lost)

    def _check_nothing_is_left(self) -> None:
        super()._check_nothing_is_left()
        for name, terms in self.terms.items():
            for office in terms:
                if not office.process.crashed:
                    raise ViolationError(f"{office.process.name} was never told to leave {name}")
        for process, engine in self.processes:
            if not process.crashed and (engine.candidates or engine.leaders):
                raise ViolationError(f"{process.name} stands on")
