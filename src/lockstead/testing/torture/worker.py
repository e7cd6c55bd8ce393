"""A client process of the torture: hands that use one store in every way there is, and write down what came of it.

`python -m lockstead.testing.torture.worker ORDERS`, where the orders are JSON. On stdin it is told what befalls it or
others (`block loop`, `fork`, `force release`), to `finish`, and to `look` at what is left; it answers each with a line.
A hand is a thread or a task. What all do is decided by the seed, but for what the others and the store do meanwhile.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, TypeVar

from lockstead import (
    AsyncDistributedLock,
    DistributedLock,
    LockAcquisitionError,
    LockLostError,
    RateLimitError,
    RetryPolicy,
    StoreError,
)
from lockstead.core.lease import margin
from lockstead.core.model import WHOLE, Ask, Refusal, Renewal, Standing
from lockstead.core.runtime import drive
from lockstead.runtimes import clock
from lockstead.testing.torture import register
from lockstead.testing.torture.history import Kind, Recorder

T = TypeVar("T")
Callback = Callable[[Any], Awaitable[None]]

SHARES = (0.25, 0.5, 1.0)
"""How long leases live, as parts of the longest ttl there may be."""
RENEWED, LASTING = 0.8, 0.05
"""How many holds are renewed, of all; and how many last for longer than a ttl, if they are."""
LONGEST_WORK = 4.0
"""Seconds: longer than a lease that is not renewed mostly lives, and than its loss may take to be told."""
LOCKS = ("lock-0", "lock-1", "lock-2", "lock-3")
SHARED = "shared-0"
PERMITS, NUMBER_OF_PERMITS = "permits-0", 4
LEADER, TERM, GRACE, STOPPING = "leader-0", 2.0, 0.8, 0.4
"""A leader has twice the time it takes to stop."""
JOB, KEYS = "job-0", ("once-0", "once-1")
AT_LEAST = 0.4
PERIODS = (0.2, 1.0)
"""Between these, for how many seconds an outcome is remembered: for less than a lease lives."""
RATE, LIMIT, BURST = "rate-0", 20, 5
NAMES = (*LOCKS, SHARED, PERMITS, LEADER, JOB, *KEYS)
"""All that are held."""
RETRY = RetryPolicy(max_retries=4, max_delay=0.3)
BLOCKED = (0.1, 1.5)
"""Between these, how many seconds an event loop is blocked."""
CHILD_TIMEOUT = 20
"""Seconds after which a fork's child that has not ended is stuck."""


@dataclass(frozen=True, kw_only=True)
class WorkerConfig:
    """What a worker is to do."""

    client: str
    history: str
    url: str
    module: str
    """What is imported before it is opened."""
    options: dict[str, Any]
    workloads: list[str]
    drivers: list[str]
    """Any of threads, asyncio and uvloop: a client for each."""
    actors: int
    """How many each client has."""
    seed: int
    registers: str

    def dump(self) -> str:
        return json.dumps(asdict(self))


asking: ContextVar[Mapping[str, int]] = ContextVar("asking", default={})  # noqa: B039 - nobody changes it
"""By name, the numbers of what this thread or task acquires."""


class StoreObserver:
    """Knows which place belongs to which acquisition, and records what the store says of those that wait."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._numbers: dict[str, int] = {}

    def watch(self, store: Any) -> None:
        join, renew = store.join, store.renew

        async def recorded_join(ask: Ask, timeout: float) -> Standing | Refusal:
            asked = clock.now()
            if number := asking.get().get(ask.name):
                self._numbers[ask.owner] = number
            answer: Standing | Refusal = await join(ask, timeout)
            if isinstance(answer, Standing):
                self._note(ask.owner, asked, answer)
            return answer

        async def recorded_renew(renewals: Sequence[Renewal], timeout: float) -> list[Standing | None]:
            asked = clock.now()
            standings: list[Standing | None] = await renew(renewals, timeout)
            for renewal, standing in zip(renewals, standings, strict=True):
                if standing is not None:
                    self._note(renewal.owner, asked, standing)
            return standings

        if store.capabilities.fifo:
            store.join, store.renew = recorded_join, recorded_renew

    def forget(self, numbers: Mapping[str, int]) -> None:
        for owner, number in list(self._numbers.items()):
            if number in numbers.values():
                self._numbers.pop(owner, None)

    def reset(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._numbers.clear()

    def _note(self, owner: str, asked: float, standing: Standing) -> None:
        number = self._numbers.get(owner)
        if number and standing.ticket and not standing.held:
            self.recorder.waits(number, asked, standing.ticket)


class WorkerRuntime(Protocol):
    """What differs between threads and tasks. What hands do is written once, and never suspends in a thread."""

    client: Any
    actors: list[Actor]

    async def sleep(self, seconds: float) -> None: ...
    async def done(self, result: Any) -> Any:
        """Await what a method of the client returned, if it must be."""
        ...

    async def inside(self, guard: Any, work: Callable[[Any], Awaitable[None]]) -> None:
        """Work in a guard's block."""
        ...

    async def cancelled_after(self, seconds: float, guard: Any) -> Any:
        """Acquire, but not for longer; raise GaveUpError then."""
        ...

    async def ask_registers(self, address: str, **request: Any) -> dict[str, Any]: ...
    def callback(self, function: Callback) -> Callable[[Any], Any]: ...
    def function(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Callable[[], Any]: ...
    def run(self) -> None:
        """Have all hands work, and close the client once they are done."""
        ...

    def block(self, seconds: float) -> None: ...
    def in_child(self, orders: WorkerConfig) -> WorkerRuntime:
        """Give what a fork's child goes on with."""
        ...


class CancelledAcquireError(Exception):
    pass


class FailureError(Exception):
    """What work ends with that is not done."""


class Threads:
    def __init__(self, orders: WorkerConfig, client: DistributedLock | None = None) -> None:
        self.client = client or DistributedLock(orders.url, retry=RETRY, **orders.options)
        self.actors: list[Actor] = []

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - it has a thread of its own

    async def done(self, result: Any) -> Any:
        return result

    async def inside(self, guard: Any, work: Callable[[Any], Awaitable[None]]) -> None:
        with guard as handle:
            await work(handle)

    async def cancelled_after(self, seconds: float, guard: Any) -> Any:
        return guard.acquire()  # nobody can cancel a thread

    async def ask_registers(self, address: str, **request: Any) -> dict[str, Any]:
        return register.ask(address, **request)

    def callback(self, function: Callback) -> Callable[[Any], Any]:
        return lambda handle: drive(_as_coroutine(function(handle)))

    def function(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Callable[[], Any]:
        return lambda: drive(work())

    def run(self) -> None:
        threads = [threading.Thread(target=_or_fail, args=(partial(drive, actor.work()),)) for actor in self.actors]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.client.close()

    def block(self, seconds: float) -> None:
        """Keep the interpreter to itself, as a long call of some library in C might."""
        ctypes.PyDLL(None).usleep(round(seconds * 1e6))

    def in_child(self, orders: WorkerConfig) -> WorkerRuntime:
        return Threads(orders, self.client)


class Loop:
    def __init__(self, orders: WorkerConfig, new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
        self.client = AsyncDistributedLock(orders.url, retry=RETRY, **orders.options)
        self.actors: list[Actor] = []
        self._loop = new_loop()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def done(self, result: Any) -> Any:
        return await result

    async def inside(self, guard: Any, work: Callable[[Any], Awaitable[None]]) -> None:
        async with guard as handle:
            await work(handle)

    async def cancelled_after(self, seconds: float, guard: Any) -> Any:
        task = asyncio.ensure_future(guard.acquire())
        await asyncio.wait({task}, timeout=seconds)
        task.cancel()
        try:
            return await task
        except asyncio.CancelledError:
            raise CancelledAcquireError from None

    async def ask_registers(self, address: str, **request: Any) -> dict[str, Any]:
        return await asyncio.to_thread(register.ask, address, **request)

    def callback(self, function: Callback) -> Callable[[Any], Any]:
        return function

    def function(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Callable[[], Any]:
        return work

    def run(self) -> None:
        async def work() -> None:
            await asyncio.gather(*(actor.work() for actor in self.actors))
            await self.client.close()

        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(work())

    def block(self, seconds: float) -> None:
        over = threading.Event()

        def block() -> None:
            time.sleep(seconds)
            over.set()

        self._loop.call_soon_threadsafe(block)
        over.wait()

    def in_child(self, orders: WorkerConfig) -> WorkerRuntime:
        return Threads(orders)


def _drivers(orders: WorkerConfig) -> list[WorkerRuntime]:
    makers: dict[str, Callable[[], WorkerRuntime]] = {
        "threads": lambda: Threads(orders),
        "asyncio": lambda: Loop(orders, asyncio.new_event_loop),
        "uvloop": lambda: Loop(orders, _uvloop()),
    }
    return [makers[name]() for name in orders.drivers]


def _uvloop() -> Callable[[], asyncio.AbstractEventLoop]:
    """Find the other event loop; where it is not installed, there is one only."""
    with suppress(ImportError):
        import uvloop  # noqa: PLC0415

        return uvloop.new_event_loop
    return asyncio.new_event_loop


async def _as_coroutine(awaitable: Awaitable[T]) -> T:
    return await awaitable


def _or_fail(work: Callable[[], object]) -> None:
    """End the process if something happens that should not."""
    try:
        work()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


@dataclass
class Actor:
    """A thread or task that does one thing after another."""

    driver: WorkerRuntime
    witness: StoreObserver
    orders: WorkerConfig
    chance: random.Random
    patience: float | None = None
    """The longest it waits for anything."""
    over: Callable[[], bool] = field(default=lambda: False)
    handle: Any = None
    """What it holds."""

    @property
    def recorder(self) -> Recorder:
        return self.witness.recorder

    async def work(self) -> None:
        stories = self.stories()
        while not self.over():
            await self.driver.sleep(self.chance.random() ** 2 * 0.05)
            await self.chance.choice(stories)()

    def stories(self) -> list[Callable[[], Coroutine[Any, Any, None]]]:
        stories: dict[str, list[Callable[[], Coroutine[Any, Any, None]]]] = {
            "lock": [self._lock, self._lock],
            "readwrite": [self._read_or_write],
            "semaphore": [self._permits],
            "multi": [self._several],
            "election": [self._stand],
            "background": [self._campaign_in_background],
            "limiter": [self._spend],
            "register": [self._read],
            "singleton": [self._run_a_job],
            "once": [self._do_once],
        }
        return [story for workload in self.orders.workloads for story in stories.get(workload, ())]

    def can(self, workload: str) -> bool:
        return workload in self.orders.workloads

    async def _lock(self) -> None:
        name = self.chance.choice(LOCKS)
        await self._hold("lock", [name], lambda **options: self.driver.client.lock(name, **options))

    async def _read_or_write(self) -> None:
        client = self.driver.client
        if self.chance.random() < 0.6:
            await self._hold("read", [SHARED], lambda **options: client.read_lock(SHARED, **options), WHOLE, 1)
        else:
            await self._hold("write", [SHARED], lambda **options: client.write_lock(SHARED, **options), WHOLE, WHOLE)

    async def _permits(self) -> None:
        weight = self.chance.randint(1, NUMBER_OF_PERMITS)
        make = partial(self.driver.client.semaphore, PERMITS, NUMBER_OF_PERMITS, weight)
        await self._hold("permit", [PERMITS], make, NUMBER_OF_PERMITS, weight)

    async def _several(self) -> None:
        names = self.chance.sample(LOCKS, 2)
        await self._hold("lock", names, lambda **options: self.driver.client.multi_lock(names, **options))

    async def _hold(
        self, kind: Kind, names: Sequence[str], make: Callable[..., Any], capacity: int = 1, weight: int = 1
    ) -> None:
        """Acquire in one of several ways, use it if it is to be had, and release it."""
        chance = self.chance
        way = chance.choice(("block", "block", "by hand", "by hand", "try", "cancel"))
        timeout = 0 if way == "try" else self._timeout()
        ttl = self._ttl()
        renew = chance.random() < RENEWED
        options: dict[str, Any] = {"ttl": ttl, "timeout": timeout, "renew": renew}
        at_least = chance.random() * AT_LEAST if self.can("at_least") and chance.random() < 0.1 else 0.0
        if at_least:
            options["at_least"] = at_least
        enter = None
        # What another task acquired, to be cancelled, is not this one's to enter again.
        if self.can("reentrant") and len(names) == 1 and way != "cancel" and chance.random() < 0.2:
            options["reentrant"] = True
            enter = partial(make, **options)
        numbers = {
            name: self.recorder.acquire(
                name,
                ttl=ttl,
                kind=kind,
                capacity=capacity,
                weight=weight,
                queue=timeout != 0,
                timeout=timeout,
                several=len(names) > 1,
                watched=True,
                renew=renew,
                at_least=at_least,
            )
            for name in names
        }
        guard = make(on_lost=partial(self._lost, numbers), **options)
        work = self._make_work(numbers, ttl, fenced=weight == capacity, enter=enter, renewed=renew)
        await self._acquire_and_work(numbers, way, guard, work)

    def _make_work(
        self,
        numbers: Mapping[str, int],
        ttl: float,
        *,
        fenced: bool,
        enter: Callable[[], Any] | None = None,
        renewed: bool = True,
    ) -> Callable[[Any], Awaitable[None]]:
        """Make what is done with a handle: record that it is held, use it, and record that it will not be any more."""

        async def work(handle: Any) -> None:
            self._granted(numbers, handle)
            try:
                await self._use(numbers, ttl, fenced=fenced, enter=enter, renewed=renewed)
            finally:
                self._release(numbers)

        return work

    async def _acquire_and_work(
        self, numbers: Mapping[str, int], way: str, guard: Any, work: Callable[[Any], Awaitable[None]]
    ) -> None:
        asking.set(numbers)
        try:
            if way == "block":
                await self.driver.inside(guard, work)
            else:
                if way == "try":
                    handle = await self.driver.done(guard.try_acquire())
                elif way == "cancel":
                    handle = await self.driver.cancelled_after(self.chance.random() ** 2, guard)
                else:
                    handle = await self.driver.done(guard.acquire())
                if handle is None:
                    self._ended(numbers, "refused")
                    return
                await work(handle)
                await self.driver.done(handle.release())
        except LockLostError:
            self._released(numbers, "lost")
        except LockAcquisitionError:
            self._ended(numbers, "refused")
        except CancelledAcquireError:
            self._ended(numbers, "cancelled")
        except StoreError:
            if self.handle is None:
                self._ended(numbers, "error")
            else:
                self._released(numbers, "error")
        else:
            self._released(numbers, "done")
        finally:
            self.handle = None
            self.witness.forget(numbers)

    async def _use(
        self,
        numbers: Mapping[str, int],
        ttl: float,
        *,
        fenced: bool,
        enter: Callable[[], Any] | None,
        renewed: bool,
    ) -> None:
        """Work for as long as it is held; mostly for a short while, sometimes for longer than it is renewed."""
        chance = self.chance
        until = clock.now() + (
            min(ttl * 1.5, LONGEST_WORK) if chance.random() < LASTING else chance.random() ** 3 * 0.2
        )
        name = chance.choice(list(numbers))
        fenced = fenced and self.can("register")
        while self._check(numbers):
            if clock.now() >= until:
                return
            luck = chance.random()
            if fenced and luck < 0.4:
                if luck < 0.02:
                    longest = min(ttl, LONGEST_WORK) if renewed else LONGEST_WORK
                    await self.driver.sleep(longest * chance.random())  # it held when it looked, and may not any more
                await self._write(name)
            elif luck < 0.45:
                await self._extend(ttl * (0.5 + chance.random() / 2))
            elif enter is not None and luck < 0.6:
                await self._enter_again(numbers, enter())
            await self.driver.sleep(chance.random() * 0.02)
        if fenced:
            await self._write(name)

    async def _enter_again(self, numbers: Mapping[str, int], guard: Any) -> None:
        """Hold what is held already once more, which takes no place of its own."""
        with suppress(LockLostError, StoreError):  # the next look at the handle tells
            again = await self.driver.done(guard.acquire())
            assert again.fence == self.handle.fence, "what was entered again is another hold"
            for number in numbers.values():
                self.recorder.check(number, again)
            await self.driver.done(again.release())

    async def _extend(self, seconds: float) -> None:
        with suppress(LockLostError, StoreError):  # the next look at the handle tells
            await self.driver.done(self.handle.extend(seconds))

    async def _write(self, name: str) -> None:
        await self.write(name, self.handle.fence if hasattr(self.handle, "fence") else self.handle.fences[name])

    async def write(self, name: str, fence: int) -> None:
        value = self.chance.randrange(10**12)
        number = self.recorder.write(name, value, fence)
        answer = await self.driver.ask_registers(self.orders.registers, name=name, fence=fence, value=value)
        self.recorder.wrote(number, "accepted" if answer["accepted"] else "refused")

    async def _read(self) -> None:
        name = self.chance.choice((*LOCKS, SHARED, LEADER, JOB))
        number = self.recorder.read(name)
        answer = await self.driver.ask_registers(self.orders.registers, name=name)
        self.recorder.got(number, answer["value"], answer["fence"])

    async def _stand(self) -> None:
        """Campaign, lead if elected, and resign."""
        chance = self.chance
        timeout = self._timeout()
        number = self.recorder.acquire(LEADER, kind="leader", ttl=TERM, timeout=timeout)
        numbers = {LEADER: number}
        takes = STOPPING * chance.random()

        async def on_elected(_: Any) -> None:
            self.recorder.elected(number)

        async def on_lost(_: Any) -> None:
            self.recorder.deposed(number)
            await self.driver.sleep(takes)
            self.recorder.stopped(number)

        election = self.driver.client.election(
            LEADER,
            ttl=TERM,
            grace=GRACE,
            on_elected=self.driver.callback(on_elected),
            on_lost=self.driver.callback(on_lost),
        )
        work = self._make_work(numbers, TERM / 2, fenced=True)
        await self._acquire_and_work(numbers, chance.choice(("block", "by hand")), election.lead(timeout), work)

    async def _campaign_in_background(self) -> None:
        """Be a candidate for a while, through whatever comes."""
        asking.set({})  # or the candidate's task takes its places for those of what was acquired last
        candidate = Candidate(self)
        candidate.election.start()
        await self.driver.sleep(self.chance.uniform(0.2, self.patience or 1.5 * TERM))
        candidate.stop_checking()
        await self.driver.done(candidate.election.stop())
        candidate.end()

    async def _run_a_job(self) -> None:
        """Be one of many who start a job that one runs: by hand, or by calling what is decorated."""
        ttl = self._ttl()
        at_least = self.chance.random() * AT_LEAST if self.can("at_least") else 0.0
        job = self.driver.client.singleton(JOB, at_most=ttl, at_least=at_least)
        number = self.recorder.acquire(
            JOB, kind="job", ttl=ttl, queue=False, timeout=0.0, renew=False, at_least=at_least
        )
        if self.chance.random() < 0.5:
            numbers = {JOB: number}
            await self._acquire_and_work(numbers, "try", job, self._make_work(numbers, ttl, fenced=True))
        else:
            recorded = RecordedCall(self, number, ttl)
            await recorded.run(job(self.driver.function(recorded.work)))
            if recorded.is_over:
                self.recorder.released(number)
            elif recorded.was_skipped:
                self.recorder.ended(number, "refused")

    async def _do_once(self) -> None:
        """Do what is to be done once, fail at it, or learn what came of it."""
        chance = self.chance
        key, ttl, period, timeout = chance.choice(KEYS), self._ttl(), chance.uniform(*PERIODS), self._timeout()
        once = self.driver.client.once(key, period, ttl=ttl, timeout=timeout)
        number = self.recorder.acquire(key, kind="once", ttl=ttl, queue=False, timeout=timeout, period=period)
        recorded = RecordedCall(self, number, ttl, chance.randrange(10**12), fails=chance.random() < 0.2)
        outcome = await recorded.run(partial(once.run, self.driver.function(recorded.work)))
        if outcome is not None and not outcome.ran:
            self.recorder.remembered(number, outcome.value)
        elif outcome is not None:
            found = None
            with suppress(StoreError):
                found = await self.driver.done(once.outcome())
            self.recorder.released(number, "done" if found and found.value == recorded.value else "error")

    def _ttl(self) -> float:
        ttl: float = self.orders.options["ttl"] * self.chance.choice(SHARES)
        return ttl

    def _timeout(self) -> float | None:
        timeout = self.chance.choice((None, 0.05, 0.5, 2.0))
        return self.patience if timeout is None or self.patience is not None else timeout

    async def _spend(self) -> None:
        cost = self.chance.randint(1, 3)
        limiter = self.driver.client.rate_limiter(RATE, LIMIT, 1.0, BURST)
        for _ in range(self.chance.randint(1, 6)):
            number = self.recorder.spend(RATE, cost, interval=1 / LIMIT, burst=BURST)
            try:
                if self.chance.random() < 0.3:
                    await self.driver.done(limiter.acquire(cost, timeout=0.5))
                    self.recorder.spent(number, allowed=True)
                else:
                    decision = await self.driver.done(limiter.try_acquire(cost))
                    self.recorder.spent(number, decision.allowed, decision.retry_after)
            except RateLimitError as error:
                self.recorder.spent(number, allowed=False, retry_after=error.retry_after)
            except StoreError:
                return

    def _granted(self, numbers: Mapping[str, int], handle: Any) -> None:
        self.handle = handle
        for name, number in numbers.items():
            self.recorder.granted(number, handle, handle.fences[name] if hasattr(handle, "fences") else handle.fence)

    def _check(self, numbers: Mapping[str, int]) -> bool:
        looks = [self.recorder.check(number, self.handle) for number in numbers.values()]
        return all(looks)

    def _lost(self, numbers: Mapping[str, int], _: Any) -> None:
        for number in numbers.values():
            self.recorder.lost(number)

    def _release(self, numbers: Mapping[str, int]) -> None:
        for number in numbers.values():
            self.recorder.release(number)

    def _released(self, numbers: Mapping[str, int], outcome: Any) -> None:
        for number in numbers.values():
            self.recorder.released(number, outcome)

    def _ended(self, numbers: Mapping[str, int], outcome: Any) -> None:
        for number in numbers.values():
            self.recorder.ended(number, outcome)


class RecordedCall:
    """What a function does that is given no handle: how long it is held is deduced from when it was asked for."""

    holder_id = ""

    def __init__(self, actor: Actor, number: int, ttl: float, value: int | None = None, *, fails: bool = False) -> None:
        self._actor = actor
        self._number = number
        self._until = clock.now() + ttl - margin(ttl)
        self._seconds = ttl * 1.5 if actor.chance.random() < 0.05 else actor.chance.random() ** 3 * 0.2
        self.value = value
        self._fails = fails
        self._began = self._returned = False
        self.lost = threading.Event()

    @property
    def remaining(self) -> float:
        return max(self._until - clock.now(), 0.0)

    @property
    def is_over(self) -> bool:
        """Whether the function was called, and all went well."""
        return self._began and self._returned

    @property
    def was_skipped(self) -> bool:
        """Whether it was not called, because somebody else does it."""
        return not self._began and self._returned

    async def work(self) -> Any:
        """Be the function."""
        recorder = self._actor.recorder
        self._began = True
        recorder.granted(self._number, self, 0)
        value = None
        try:
            await self._actor.driver.sleep(self._seconds)
            if self._fails:
                raise FailureError
            value = self.value
        finally:
            recorder.release(self._number, value)
        return self.value

    async def run(self, call: Callable[[], Any]) -> Any:
        """Call what calls the function, if somebody else does not; note why it was not, or not done."""
        recorder, number = self._actor.recorder, self._number
        try:
            result = await self._actor.driver.done(call())
        except LockLostError:
            recorder.released(number, "lost")
        except FailureError:
            recorder.released(number, "error")
        except LockAcquisitionError:
            recorder.ended(number, "refused")
        except StoreError:
            if self._began:
                recorder.released(number, "error")
            else:
                recorder.ended(number, "error")
        else:
            self._returned = True
            return result


class Candidate:
    """A candidate in the background. Each of its terms is recorded as an acquisition of its own."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._chance = random.Random(actor.chance.random())
        self._mutex = threading.Lock()
        self._checks = True
        self._is_elected = False
        self._number = self._stand()
        callback = actor.driver.callback
        self.election = actor.driver.client.election(
            LEADER, ttl=TERM, grace=GRACE, on_elected=callback(self._lead), on_lost=callback(self._part)
        )

    def stop_checking(self) -> None:
        """Let nobody be surprised that what is about to be given up is not held any more."""
        with self._mutex:
            self._checks = False

    def end(self) -> None:
        """Record that it was stopped."""
        if not self._is_elected:
            self._actor.recorder.ended(self._number, "cancelled")

    def _stand(self) -> int:
        return self._actor.recorder.acquire(LEADER, kind="leader", ttl=TERM)

    async def _lead(self, leadership: Any) -> None:
        """Begin and return, or be the work; lead on after it, resign, or fail."""
        recorder, number, chance = self._actor.recorder, self._number, self._chance
        recorder.elected(number)
        self._is_elected = True
        recorder.granted(number, leadership, leadership.fence)
        until = clock.now() + chance.random() ** 2 * TERM
        while clock.now() < until and self._check(number, leadership):
            if self._actor.can("register"):
                await self._actor.write(LEADER, leadership.fence)
            await self._actor.driver.sleep(chance.random() * 0.1)
        match chance.randrange(6):
            case 0:
                raise FailureError
            case 1 | 2:
                await self._actor.driver.done(leadership.resign())

    async def _part(self, leadership: Any) -> None:
        """Stop leading, and stand again."""
        recorder, number = self._actor.recorder, self._number
        recorder.deposed(number)
        is_lost = leadership.lost.is_set()
        if is_lost:
            recorder.lost(number)
        else:
            recorder.release(number)
        await self._actor.driver.sleep(STOPPING * self._chance.random())
        recorder.stopped(number)
        if not is_lost:
            recorder.released(number, "error")  # nobody is told what comes of it
        self._is_elected, self._number = False, self._stand()

    def _check(self, number: int, leadership: Any) -> bool:
        with self._mutex:
            return self._checks and self._actor.recorder.check(number, leadership)


class Worker:
    def __init__(self, orders: WorkerConfig) -> None:
        self._config = orders
        self._chance = random.Random(orders.seed)
        self._finished = threading.Event()
        self._observer = StoreObserver(self._recorder(orders.client))
        self._drivers = _drivers(orders)
        self._children = 0
        for driver in self._drivers:
            self._observer.watch(driver.client._engine.store)
            driver.actors = [self._actor(driver) for _ in range(orders.actors)]

    def run(self) -> None:
        """Work, and do what is said, until told to finish."""
        threads = [threading.Thread(target=_or_fail, args=(driver.run,)) for driver in self._drivers]
        for thread in threads:
            thread.start()
        for line in sys.stdin:
            match line.strip():
                case "finish":
                    self._finished.set()
                    for thread in threads:
                        thread.join()
                    _answer("finished")
                case "look":
                    with DistributedLock(self._config.url, **self._config.options) as locks:
                        _answer(json.dumps([repr(info) for info in locks.inspect()]))
                case order:
                    self._inject(order)
                    _answer("done")
        os._exit(0)  # whoever gave orders is gone

    def _inject(self, order: str) -> None:
        match order:
            case "block loop":
                self._chance.choice(self._drivers).block(self._chance.uniform(*BLOCKED))
            case "fork":
                self._fork()
            case "force release":
                self._force_release()
            case _:
                raise ValueError(f"{order!r} is no order")

    def _fork(self) -> None:
        self._children += 1
        self._chance.random()  # or each child would do what the last one did, and write the same values
        if pid := os.fork():
            _, status = os.waitpid(pid, 0)
            if code := os.waitstatus_to_exitcode(status):
                raise RuntimeError(f"a fork's child ended with {code}")
            return
        signal.alarm(CHILD_TIMEOUT)
        _or_fail(self._run_child)
        os._exit(0)

    def _force_release(self) -> None:
        """Take a name away from whoever holds it, as a stranger."""
        name = self._chance.choice(NAMES)
        recorder = self._observer.recorder
        number = recorder.evict(name)
        info = None
        with suppress(StoreError), DistributedLock(self._config.url, retry=RETRY, **self._config.options) as stranger:
            info = stranger.force_release(name)
        recorder.evicted(number, [holder.fence for holder in info.holders] if info else [])

    def _run_child(self) -> None:
        """Find what the parent holds worthless here, and go on as a client of one's own."""
        parent = self._chance.choice(self._drivers)
        is_shared = parent.client._engine.store.capabilities.processes
        name = f"{self._config.client}-child{self._children}"
        self._observer.reset(self._recorder(name, ".jsonl" if is_shared else ".apart"))
        for actor in parent.actors:
            assert actor.handle is None or not actor.handle.is_held, "a fork's child holds what its parent does"
        driver = parent.in_child(self._config)
        if driver.client is not parent.client:
            self._observer.watch(driver.client._engine.store)
        actor = self._actor(driver, patience=0.5)
        if not is_shared:  # its fences mean nothing beside the parent's
            actor.orders = replace(self._config, workloads=[one for one in actor.orders.workloads if one != "register"])
        for _ in range(4):
            drive(actor.chance.choice(actor.stories())())
        driver.client.close()

    def _actor(self, driver: WorkerRuntime, patience: float | None = None) -> Actor:
        chance = random.Random(self._chance.random())
        return Actor(driver, self._observer, self._config, chance, patience, over=self._finished.is_set)

    def _recorder(self, client: str, suffix: str = ".jsonl") -> Recorder:
        return Recorder(Path(self._config.history) / f"{client}{suffix}", client)


def _answer(line: str) -> None:
    print(line, flush=True)


def main() -> None:
    orders = WorkerConfig(**json.loads(sys.argv[1]))
    if orders.module:
        import_module(orders.module)
    _or_fail(Worker(orders).run)


if __name__ == "__main__":
    main()
