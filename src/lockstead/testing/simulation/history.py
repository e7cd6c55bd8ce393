"""One random history: processes that acquire locks while everything that can fail does."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from lockstead.core.engine import Engine
from lockstead.core.lease import GONE_AT_RELEASE
from lockstead.core.model import WHOLE, Ask, Refusal, Standing
from lockstead.core.retry import RetryPolicy
from lockstead.core.store import Store
from lockstead.core.timing import margin
from lockstead.errors import CapacityMismatchError, LockError, LockLostError
from lockstead.primitives import plans
from lockstead.primitives.handle import Handle, acquired
from lockstead.primitives.plans import Defaults, Plan
from lockstead.runtimes.simulated import Cancelled, Process, Task, World
from lockstead.testing.simulation.memory import SimulatedServer
from lockstead.testing.simulation.monitor import Monitor, ViolationError
from lockstead.testing.simulation.network import Faults, Server, SimulatedStore

FAULTS_END = 25.0
"""Virtual seconds until faults end; then every live process must be served."""
TIME_LIMIT = 120.0
"""Virtual seconds until every live process must have finished."""
MAX_STEPS = 50_000
DEFAULTS = Defaults(ttl=5.0, retry=RetryPolicy(max_retries=1_000_000, retry_delay=0.05))


@dataclass
class History:
    """A simulated world made from a seed, and the results of running it."""

    seed: int
    faulty: bool = True
    names: tuple[str, ...] = ("a", "b")
    capacity: int = 1
    ttls: tuple[float, ...] = (0.5, 1.0, 3.0, 5.0, 15.0)
    mixed: bool = True
    """Whether some requests ask for another capacity."""
    make_server: Callable[[World, Faults], Server] = SimulatedServer
    sections: int = 0
    steps: int = 0
    logged_errors: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.world = World(self.seed)
        self.random = self.world.random
        self.processes: list[tuple[Process, Engine]] = []
        self.links: list[SimulatedStore] = []
        self.tasks: list[Task[None]] = []
        self._build()

    def _build(self) -> None:
        self.server = self.make_server(self.world, self._make_faults())
        self.servers: Sequence[Server] = [self.server]
        self.can = self.server.capabilities
        if not self.can.supports(self.capacity, 1):
            self.capacity = 1
        self.monitor = Monitor(self.world, self.server)

    def _make_faults(self) -> Faults:
        if not self.faulty:
            return Faults()
        return Faults(
            lost_request=self.random.choice((0.0, 0.02, 0.1)),
            lost_reply=self.random.choice((0.0, 0.02, 0.1)),
            lost_wake_up=self.random.choice((0.0, 0.05, 0.5)),
            repeated=self.random.choice((0.0, 0.02)),
            slow=self.random.choice((0.0, 0.02, 0.1)),
            slowest=self.random.choice((0.2, 2.0, 4.5)),
            forged=self.world.forger_random.choice((0.0, 0.05, 0.3)),
        )

    def run(self) -> History:
        """Run to the end and check that no client is left unserved. Raises ViolationError, whatever goes wrong."""
        for number in range(self.random.randint(2, 4)):
            self._add_process(f"p{number}")
        if self.faulty:
            self._schedule_faults()
        self.world.after(FAULTS_END, self._end_faults)
        handler = _ErrorLog(self.logged_errors)
        logger = logging.getLogger("lockstead")
        logger.addHandler(handler)
        level, logger.propagate = logger.level, False
        logger.setLevel(logging.ERROR)
        try:
            self._run_until_served()
        except Exception as error:
            what = error if isinstance(error, ViolationError) else repr(error)
            raise ViolationError(f"seed {self.seed}: {what}") from error
        finally:
            self.world.end()
            for server in self.servers:
                server.close()
            logger.removeHandler(handler)
            logger.setLevel(level)
            logger.propagate = True
        return self

    def _run_until_served(self) -> None:
        while self.world.now < TIME_LIMIT:
            if not self._step():
                break
            if self.world.now > FAULTS_END and all(task.finished for task in self._live_tasks()):
                break
        for task in self._live_tasks():
            if not task.finished:
                raise ViolationError(f"a task of {task.process.name} waits for ever")
            if task.error is not None and not isinstance(task.error, Cancelled):
                raise ViolationError(repr(task.error)) from task.error
        self._check_nothing_is_left()
        if self.logged_errors:
            raise ViolationError(self.logged_errors[0])

    def _check_nothing_is_left(self) -> None:
        """Check that live processes released their places soon after they finished, and those of others expired."""
        alive = {process.name for process, _ in self.processes if not process.crashed}
        self._run_for(27.0)  # a handle dropped without release is noticed when its lease would be renewed, or ends
        for server in self.servers:
            for line in server.inspect("", exact=False):
                for place in line.places:
                    if place.owner.rpartition("/")[0] in alive and not server.clock_was_set_back:
                        raise ViolationError(f"{place.owner} was left behind in {line.name}")
        for process, engine in self.processes:
            if not process.crashed and engine.keeper.leases:
                raise ViolationError(f"{process.name} still keeps {list(engine.keeper.leases)}")
        self._check_all_is_free()
        for _ in range(3):  # the first join lets each line notice a clock that was set back
            self._run_for(30.0)
            for server in self.servers:
                for name in self.names:
                    self._join_and_leave(server, name)
        if any(server.size() for server in self.servers):
            raise ViolationError("the server still stores something")

    def _check_all_is_free(self) -> None:
        """Check that no permit is stranded: a request for the whole capacity of a name is granted."""
        if self._may_lose_data() or self.server.clock_was_set_back:
            return
        for name in self.names:
            outcome = self._join_and_leave(self.server, name)
            if isinstance(outcome, Refusal) and not outcome.abstains:
                raise ViolationError(f"some of {name} is still held by {outcome.holder}")

    def _join_and_leave(self, server: Server, name: str) -> Standing | Refusal:
        outcome, _ = server.join(Ask(name, "last/0", 1.0, 1.0, self.capacity, self.capacity, queue=False))
        server.leave(name, "last/0", 0.0)
        return outcome

    def _run_for(self, seconds: float) -> None:
        until = self.world.now + seconds
        self.world.after(seconds, lambda: None)
        while self.world.now < until and self._step():
            pass

    def _step(self) -> bool:
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise ViolationError(f"not finished after {MAX_STEPS} steps: something loops without waiting")
        has_more = self.world.step()
        self.monitor.check()
        return has_more

    def _may_lose_data(self) -> bool:
        """Return whether a server may have lost grants."""
        return False

    def _may_lose_grant(self, handle: Handle) -> bool:
        """Return whether a server may have lost a grant of this handle."""
        return self._may_lose_data()

    def _live_tasks(self) -> list[Task[None]]:
        return [task for task in self.tasks if not task.process.crashed]

    def _add_process(self, name: str) -> None:
        rate = 1 + self.random.uniform(-0.003, 0.003)
        process = Process(self.world, name, rate, offset=self.random.uniform(0, 1000))
        engine = Engine(self._connect(process), lambda: name)
        self.monitor.add(process, engine)
        self.processes.append((process, engine))
        for _ in range(self.random.randint(1, 2)):
            self.tasks.append(process.start(self._work(process, engine)))

    def _connect(self, process: Process) -> Store:
        kind = SimulatedStore if self.random.random() < 0.5 else ScatteredStore
        store = kind(process, self.server)
        self.links.append(store)
        return store

    async def _work(self, process: Process, engine: Engine) -> None:
        chance = self.random.random
        for _ in range(self.random.randint(2, 4)):
            await engine.runtime.sleep(chance() * 3)
            plan = self._plan()
            began = self.world.now
            handle = Handle(engine)
            try:
                await self._acquire(handle, plan)
                granted = self.world.now
                self.sections += len(plan.asks)
                try:
                    await engine.runtime.sleep(self.random.choice((0.0, chance(), chance() * 2 * plan.asks[0].ttl)))
                    if chance() < 0.2:
                        await handle._extend(self.random.choice((1.0, 4.0)))
                        await engine.runtime.sleep(chance() * 3)
                finally:
                    if not process.crashed and chance() < 0.9:  # else it is dropped, as a forgotten handle is
                        await handle._release_once()
                        self._expect_reservation(process, handle, granted, plan.at_least)
            except LockLostError as loss:
                if loss.reason == GONE_AT_RELEASE and not self._may_lose_grant(handle):  # none is released by force
                    raise ViolationError("a lock that was held was found gone when it was released") from loss
            except CapacityMismatchError as mismatch:
                if not self.monitor.was_alive_since(began, mismatch.name, mismatch.stored):
                    raise ViolationError(f"{mismatch.name} is refused because of expired places") from mismatch
            except LockError:
                continue
            finally:
                del handle

    def _plan(self) -> Plan:
        """Choose a random request: mostly of this history's kind, sometimes of a kind that conflicts with it."""
        chance = self.random.random
        name = self.random.choice(self.names)
        options: dict[str, Any] = {
            "ttl": self.random.choice(self.ttls),
            "timeout": self.random.choice((None, None, 0.0, chance() * 4)),
            "renew": chance() >= 0.2,
            "max_hold": 2.0 if chance() < 0.2 else None,
        }
        if chance() < 0.2 and self.server.can_reserve:
            options["at_least"] = chance() * 4
        capacity = self.capacity
        if self.mixed and chance() < 0.05:
            capacity = self.random.choice([other for other in (1, 3, WHOLE) if self.can.supports(other, 1)])
        if capacity == 1 and len(self.names) > 1 and chance() < 0.4:
            wanted = self.random.sample(self.names, self.random.randint(2, len(self.names)))
            return plans.plan(name, DEFAULTS, **options).of(wanted)
        if capacity == WHOLE:
            return plans.plan(name, DEFAULTS, WHOLE, 1 if chance() < 0.6 else WHOLE, **options)
        return plans.plan(name, DEFAULTS, capacity, self.random.randint(1, capacity), **options)

    async def _acquire(self, handle: Handle, plan: Plan) -> None:
        if len(plan.asks) > 1:
            self.monitor.waiting.add(handle)
        try:
            await acquired(handle, plan)
        finally:
            self.monitor.waiting.discard(handle)
        if not handle.is_held:
            raise ViolationError(f"{handle} was granted but is not held")

    def _expect_reservation(self, process: Process, handle: Handle, granted: float, at_least: float) -> None:
        """Expect released names to stay reserved, unless their lease may have expired during the release."""
        for lease in handle._leases if at_least else ():
            if process.now() < lease.trusted_until:
                self.monitor.expect_reservation(lease, granted + at_least - margin(at_least))

    def _schedule_faults(self) -> None:
        for process, _ in self.processes:
            self._sometimes(0.15, process.crash)
            self._sometimes(0.4, lambda process=process: process.pause(self.random.choice((0.3, 2.0, 8.0))))
        for link in self.links:
            self._sometimes(0.2, lambda link=link: self._partition(link))
        for task in self.tasks:
            self._sometimes(0.3, task.cancel)
            self._sometimes(0.1, task.cancel)
        for server in self.servers:
            self._sometimes(0.2, lambda server=server: server.stall(self.random.choice((0.5, 3.0, 8.0))))
            if server.clock_goes_back:
                self._sometimes(0.2, lambda server=server: server.set_clock_back(self.random.choice((0.5, 600.0))))

    def _sometimes(self, chance: float, fault: Callable[..., None]) -> None:
        if self.random.random() < chance:
            self.world.after(self.random.random() * FAULTS_END * 0.8, fault)

    def _partition(self, link: SimulatedStore) -> None:
        link.partitioned_until = self.world.now + self.random.choice((0.5, 3.0, 10.0))

    def _end_faults(self) -> None:
        for server in self.servers:
            faults = server.faults
            faults.lost_request = faults.lost_reply = faults.slow = faults.forged = 0.0


def some_history(seed: int, make_server: Callable[[World, Faults], Server] = SimulatedServer) -> History:
    """Make a history of locks, of semaphores, or of read-write locks."""
    names = ("a", "b", "c")[: 2 + seed % 2]
    return History(seed, names=names, capacity=(3, 1, 1, WHOLE, 1)[seed % 5], make_server=make_server)


class ScatteredStore(SimulatedStore):
    """A client's end of the network to a server that cannot join several names in one step."""

    async def join_all(self, asks: Sequence[Ask], timeout: float) -> list[Standing] | Refusal | None:
        return None


class _ErrorLog(logging.Handler):
    def __init__(self, seen: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._seen = seen

    def emit(self, record: logging.LogRecord) -> None:
        self._seen.append(self.format(record))
