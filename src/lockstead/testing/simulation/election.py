"""One random history of elections: candidates start, stop, stall and crash while everything that can fail does."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from lockstead.core.engine import Engine
from lockstead.errors import LockError
from lockstead.primitives.election import Contest, Leading
from lockstead.primitives.handle import acquired
from lockstead.runtimes.simulated import Process
from lockstead.testing.simulation.history import DEFAULTS, History
from lockstead.testing.simulation.monitor import ViolationError


@dataclass
class Term:
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
    terms: dict[str, list[Term]] = field(default_factory=dict)

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
            leadership = await acquired(contest._nominate(contest._engine), plan)
            await contest._runtime.sleep(self.random.random() * 4)
        except LockError:
            return
        finally:
            if leadership is not None and not process.crashed:
                await self._resign(leadership)

    @staticmethod
    async def _resign(leadership: Leading) -> None:
        try:
            await leadership._release_once()
        except LockError:
            return

    def _contest(self, process: Process, engine: Engine) -> Contest[Leading]:
        name, ttl = self.random.choice(self.names), self.random.choice(self.ttls)
        grace = ttl * self.random.choice((0.1, 0.2, 0.5))
        time_to_stop = grace * self.random.choice((0.0, 0.5, 0.9))
        terms = self.terms.setdefault(name, [])

        async def on_elected(leadership: Leading) -> None:
            self.sections += 1
            for term in terms:
                if not term.is_excused():
                    self.monitor._fail(f"{process.name} leads {name}, but {term.process.name} still does too")
            terms.append(Term(process, self.world.now))
            if self.random.random() < 0.1:
                await self._resign(leadership)

        async def on_lost(leadership: Leading) -> None:
            term = next((term for term in terms if term.process is process and not term.is_ending), None)
            if term is None:
                self.monitor._fail(f"{process.name} loses {name}, which it does not lead")
            assert term is not None
            term.is_ending = True
            if leadership.is_leader:
                self.monitor._fail(f"{process.name} still leads {name} in its on_lost")
            await engine.runtime.sleep(time_to_stop)
            terms.remove(term)

        return Contest(engine, Leading, name, DEFAULTS, ttl=ttl, grace=grace, on_elected=on_elected, on_lost=on_lost)

    def _check_nothing_is_left(self) -> None:
        super()._check_nothing_is_left()
        for name, terms in self.terms.items():
            for term in terms:
                if not term.process.crashed:
                    raise ViolationError(f"on_lost of {name} was never called in {term.process.name}")
        for process, engine in self.processes:
            if not process.crashed and (engine.candidates or engine.leaders):
                raise ViolationError(f"{process.name} is still a candidate after its stop")
