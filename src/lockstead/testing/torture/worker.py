"""A client process of the torture: actors that use one store in every possible way, and record the outcomes.

`python -m lockstead.testing.torture.worker CONFIG`, where CONFIG is a `WorkerConfig` as JSON. On stdin it receives
faults to carry out (`block loop`, `fork`, `force release`), `finish`, and `inspect`, which lists what is left in the
store; it answers each with a line. An actor is a thread or a task. The seed decides what every actor does, except where
that depends on other clients and the store.
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
from lockstead.core.model import WHOLE, Ask, PlaceState, Refusal, Renewal, Standing
from lockstead.core.runtime import drive
from lockstead.core.timing import margin
from lockstead.runtimes import clock
from lockstead.testing.torture import register
from lockstead.testing.torture.history import Kind, Recorder

T = TypeVar("T")
Callback = Callable[[Any], Awaitable[None]]

TTL_SHARES = (0.25, 0.5, 1.0)
"""The ttls of leases, as parts of the longest one allowed."""
RENEWED, LASTING = 0.8, 0.05
"""The share of holds that are renewed; and of those, the share that last for longer than a ttl."""
LONGEST_WORK = 4.0
"""Seconds: longer than the ttl of most leases without renewal, and than it may take to signal a loss."""
LOCKS = ("lock-0", "lock-1", "lock-2", "lock-3")
SHARED = "shared-0"
PERMITS, NUMBER_OF_PERMITS = "permits-0", 4
LEADER, TERM, GRACE, STOPPING = "leader-0", 2.0, 0.8, 0.4
"""The grace is twice the longest time that a leader takes to stop."""
JOB, KEYS = "job-0", ("once-0", "once-1")
AT_LEAST = 0.4
PERIODS = (0.2, 1.0)
"""Between these, for how many seconds an outcome of `once` is remembered: less than a ttl."""
RATE, LIMIT, BURST = "rate-0", 20, 5
NAMES = (*LOCKS, SHARED, PERMITS, LEADER, JOB, *KEYS)
"""All names that are held."""
RETRY = RetryPolicy(max_retries=4, max_delay=0.3)
BLOCKED = (0.1, 1.5)
"""Between these, how many seconds an event loop is blocked."""
CHILD_TIMEOUT = 20
"""Seconds after which a forked child that has not ended is killed."""


@dataclass(frozen=True, kw_only=True)
class WorkerConfig:
    """What a worker does, on which store, and where it records it."""

    client: str
    history: str
    url: str
    module: str
    """Imported before the store is opened."""
    options: dict[str, Any]
    workloads: list[str]
    runtimes: list[str]
    """Any of threads, asyncio and uvloop: each gets a client."""
    actors: int
    """How many of them use each client."""
    seed: int
    registers: str

    def dump(self) -> str:
        return json.dumps(asdict(self))


acquiring: ContextVar[Mapping[str, int]] = ContextVar("acquiring", default={})  # noqa: B039 - never mutated
"""By name, the numbers of the acquisitions that this thread or task makes."""


class StoreObserver:
    """Knows which place belongs to which acquisition, and records the store's answers about waiting places."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._numbers: dict[str, int] = {}

    def watch(self, store: Any) -> None:
        join, renew = store.join, store.renew

        async def recorded_join(ask: Ask, timeout: float) -> Standing | Refusal:
            asked = clock.now()
            if number := acquiring.get().get(ask.name):
                self._numbers[ask.owner] = number
            answer: Standing | Refusal = await join(ask, timeout)
            if isinstance(answer, Standing):
                self._note(ask.owner, asked, answer)
            return answer

        async def recorded_renew(renewals: Sequence[Renewal], timeout: float) -> list[Standing]:
            asked = clock.now()
            standings: list[Standing] = await renew(renewals, timeout)
            for renewal, standing in zip(renewals, standings, strict=True):
                if standing.state is not PlaceState.GONE:
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
        if number and standing.state is PlaceState.WAITING:
            self.recorder.waits(number, asked, standing.ticket)


class WorkerRuntime(Protocol):
    """What differs between threads and tasks. The actors' code is written once, and never suspends in a thread."""

    client: Any
    actors: list[Actor]

    async def sleep(self, seconds: float) -> None: ...
    async def done(self, result: Any) -> Any:
        """Await what a method of the client returned, if it is an awaitable."""
        ...

    async def inside(self, guard: Any, work: Callable[[Any], Awaitable[None]]) -> None:
        """Work in a guard's block."""
        ...

    async def cancelled_after(self, seconds: float, guard: Any) -> Any:
        """Acquire, and cancel it after `seconds`. Raises CancelledAcquireError then."""
        ...

    async def ask_registers(self, address: str, **request: Any) -> dict[str, Any]: ...
    def callback(self, function: Callback) -> Callable[[Any], Any]: ...
    def function(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Callable[[], Any]: ...
    def run(self) -> None:
        """Run all actors, and close the client when they have ended."""
        ...

    def block(self, seconds: float) -> None: ...
    def in_child(self, config: WorkerConfig) -> WorkerRuntime:
        """Return the runtime that a forked child uses."""
        ...


class CancelledAcquireError(Exception):
    pass


class FailureError(Exception):
    """Raised by work that fails on purpose."""


class Threads:
    def __init__(self, config: WorkerConfig, client: DistributedLock | None = None) -> None:
        self.client = client or DistributedLock(config.url, retry=RETRY, **config.options)
        self.actors: list[Actor] = []

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - every actor has its own thread

    async def done(self, result: Any) -> Any:
        return result

    async def inside(self, guard: Any, work: Callable[[Any], Awaitable[None]]) -> None:
        with guard as handle:
            await work(handle)

    async def cancelled_after(self, seconds: float, guard: Any) -> Any:
        return guard.acquire()  # a thread cannot be cancelled

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
        """Hold the interpreter lock, as a long call into a C library might."""
        ctypes.PyDLL(None).usleep(round(seconds * 1e6))

    def in_child(self, config: WorkerConfig) -> WorkerRuntime:
        return Threads(config, self.client)


class Loop:
    def __init__(self, config: WorkerConfig, new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
        self.client = AsyncDistributedLock(config.url, retry=RETRY, **config.options)
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

    def in_child(self, config: WorkerConfig) -> WorkerRuntime:
        return Threads(config)


def _make_runtimes(config: WorkerConfig) -> list[WorkerRuntime]:
    makers: dict[str, Callable[[], WorkerRuntime]] = {
        "threads": lambda: Threads(config),
        "asyncio": lambda: Loop(config, asyncio.new_event_loop),
        "uvloop": lambda: Loop(config, _uvloop()),
    }
    return [makers[name]() for name in config.runtimes]


def _uvloop() -> Callable[[], asyncio.AbstractEventLoop]:
    """Return uvloop's event loop, or asyncio's where uvloop is not installed."""
    with suppress(ImportError):
        import uvloop  # noqa: PLC0415 (may not be installed)

        return uvloop.new_event_loop
    return asyncio.new_event_loop


async def _as_coroutine(awaitable: Awaitable[T]) -> T:
    return await awaitable


def _or_fail(work: Callable[[], object]) -> None:
    """Run the work; end the process with a traceback if it raises."""
    try:
        work()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


@dataclass
class Actor:
    """A thread or task that runs one random action after another."""

    runtime: WorkerRuntime
    observer: StoreObserver
    config: WorkerConfig
    chance: random.Random
    max_wait: float | None = None
    """Seconds: the longest wait for any lock."""
    over: Callable[[], bool] = field(default=lambda: False)
    handle: Any = None
    """The handle it holds, if any."""

    @property
    def recorder(self) -> Recorder:
        return self.observer.recorder

    async def work(self) -> None:
        actions = self.actions()
        while not self.over():
            await self.runtime.sleep(self.chance.random() ** 2 * 0.05)
            await self.chance.choice(actions)()

    def actions(self) -> list[Callable[[], Coroutine[Any, Any, None]]]:
        actions: dict[str, list[Callable[[], Coroutine[Any, Any, None]]]] = {
            "lock": [self._lock, self._lock],
            "readwrite": [self._read_or_write],
            "semaphore": [self._permits],
            "multi": [self._several],
            "election": [self._campaign],
            "background": [self._campaign_in_background],
            "limiter": [self._consume],
            "register": [self._read],
            "singleton": [self._run_a_job],
            "once": [self._do_once],
        }
        return [action for workload in self.config.workloads for action in actions.get(workload, ())]

    def can(self, workload: str) -> bool:
        return workload in self.config.workloads

    async def _lock(self) -> None:
        name = self.chance.choice(LOCKS)
        await self._hold("lock", [name], lambda **options: self.runtime.client.lock(name, **options))

    async def _read_or_write(self) -> None:
        client = self.runtime.client
        if self.chance.random() < 0.6:
            await self._hold("read", [SHARED], lambda **options: client.read_lock(SHARED, **options), WHOLE, 1)
        else:
            await self._hold("write", [SHARED], lambda **options: client.write_lock(SHARED, **options), WHOLE, WHOLE)

    async def _permits(self) -> None:
        weight = self.chance.randint(1, NUMBER_OF_PERMITS)
        make = partial(self.runtime.client.semaphore, PERMITS, NUMBER_OF_PERMITS, weight)
        await self._hold("permit", [PERMITS], make, NUMBER_OF_PERMITS, weight)

    async def _several(self) -> None:
        names = self.chance.sample(LOCKS, 2)
        await self._hold("lock", names, lambda **options: self.runtime.client.multi_lock(names, **options))

    async def _hold(
        self, kind: Kind, names: Sequence[str], make: Callable[..., Any], capacity: int = 1, weight: int = 1
    ) -> None:
        """Acquire in one of several ways, use the lock if it was granted, and release it."""
        chance = self.chance
        way = chance.choice(("block", "block", "handle", "handle", "try", "cancel"))
        timeout = 0 if way == "try" else self._timeout()
        ttl = self._ttl()
        renew = chance.random() < RENEWED
        options: dict[str, Any] = {"ttl": ttl, "timeout": timeout, "renew": renew}
        at_least = chance.random() * AT_LEAST if self.can("at_least") and chance.random() < 0.1 else 0.0
        if at_least:
            options["at_least"] = at_least
        enter = None
        # A cancellable acquire runs in another task, so this one cannot re-enter it.
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
        """Make the work under a handle: record the grant, use the lock, and record that its release begins."""

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
        acquiring.set(numbers)
        try:
            if way == "block":
                await self.runtime.inside(guard, work)
            else:
                if way == "try":
                    handle = await self.runtime.done(guard.try_acquire())
                elif way == "cancel":
                    handle = await self.runtime.cancelled_after(self.chance.random() ** 2, guard)
                else:
                    handle = await self.runtime.done(guard.acquire())
                if handle is None:
                    self._ended(numbers, "refused")
                    return
                await work(handle)
                await self.runtime.done(handle.release())
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
            self.observer.forget(numbers)

    async def _use(
        self,
        numbers: Mapping[str, int],
        ttl: float,
        *,
        fenced: bool,
        enter: Callable[[], Any] | None,
        renewed: bool,
    ) -> None:
        """Work while it is held: mostly for a short time, sometimes for longer than its ttl."""
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
                    await self.runtime.sleep(longest * chance.random())  # held at the check, perhaps not at the write
                await self._write(name)
            elif luck < 0.45:
                await self._extend(ttl * (0.5 + chance.random() / 2))
            elif enter is not None and luck < 0.6:
                await self._enter_again(numbers, enter())
            await self.runtime.sleep(chance.random() * 0.02)
        if fenced:
            await self._write(name)

    async def _enter_again(self, numbers: Mapping[str, int], guard: Any) -> None:
        """Acquire re-entrantly what is held already, which adds no place."""
        with suppress(LockLostError, StoreError):  # the next check of the handle records it
            again = await self.runtime.done(guard.acquire())
            assert again.fence == self.handle.fence, "a re-entrant acquire made another hold"
            for number in numbers.values():
                self.recorder.check(number, again)
            await self.runtime.done(again.release())

    async def _extend(self, seconds: float) -> None:
        with suppress(LockLostError, StoreError):  # the next check of the handle records it
            await self.runtime.done(self.handle.extend(seconds))

    async def _write(self, name: str) -> None:
        await self.write(name, self.handle.fence if hasattr(self.handle, "fence") else self.handle.fences[name])

    async def write(self, name: str, fence: int) -> None:
        value = self.chance.randrange(10**12)
        number = self.recorder.write(name, value, fence)
        answer = await self.runtime.ask_registers(self.config.registers, name=name, fence=fence, value=value)
        self.recorder.wrote(number, "accepted" if answer["accepted"] else "refused")

    async def _read(self) -> None:
        name = self.chance.choice((*LOCKS, SHARED, LEADER, JOB))
        number = self.recorder.read(name)
        answer = await self.runtime.ask_registers(self.config.registers, name=name)
        self.recorder.got(number, answer["value"], answer["fence"])

    async def _campaign(self) -> None:
        """Campaign, lead if elected, and resign."""
        chance = self.chance
        timeout = self._timeout()
        number = self.recorder.acquire(LEADER, kind="leader", ttl=TERM, timeout=timeout)
        numbers = {LEADER: number}
        time_to_stop = STOPPING * chance.random()

        async def on_elected(_: Any) -> None:
            self.recorder.elected(number)

        async def on_lost(_: Any) -> None:
            self.recorder.deposed(number)
            await self.runtime.sleep(time_to_stop)
            self.recorder.stopped(number)

        election = self.runtime.client.election(
            LEADER,
            ttl=TERM,
            grace=GRACE,
            on_elected=self.runtime.callback(on_elected),
            on_lost=self.runtime.callback(on_lost),
        )
        work = self._make_work(numbers, TERM / 2, fenced=True)
        await self._acquire_and_work(numbers, chance.choice(("block", "handle")), election.lead(timeout), work)

    async def _campaign_in_background(self) -> None:
        """Be a candidate in the background for a while, whatever happens."""
        acquiring.set({})  # or the candidate's task would record its places under the last acquisition
        candidate = Candidate(self)
        candidate.election.start()
        await self.runtime.sleep(self.chance.uniform(0.2, self.max_wait or 1.5 * TERM))
        candidate.stop_checking()
        await self.runtime.done(candidate.election.stop())
        candidate.end()

    async def _run_a_job(self) -> None:
        """Start a singleton job, which one of many clients runs: through a handle, or as a decorated function."""
        ttl = self._ttl()
        at_least = self.chance.random() * AT_LEAST if self.can("at_least") else 0.0
        job = self.runtime.client.singleton(JOB, at_most=ttl, at_least=at_least)
        number = self.recorder.acquire(
            JOB, kind="job", ttl=ttl, queue=False, timeout=0.0, renew=False, at_least=at_least
        )
        if self.chance.random() < 0.5:
            numbers = {JOB: number}
            await self._acquire_and_work(numbers, "try", job, self._make_work(numbers, ttl, fenced=True))
        else:
            recorded = RecordedCall(self, number, ttl)
            await recorded.run(job(self.runtime.function(recorded.work)))
            if recorded.has_run:
                self.recorder.released(number)
            elif recorded.was_skipped:
                self.recorder.ended(number, "refused")

    async def _do_once(self) -> None:
        """Run the work of `once`, fail at it, or get its remembered outcome."""
        chance = self.chance
        key, ttl, period, timeout = chance.choice(KEYS), self._ttl(), chance.uniform(*PERIODS), self._timeout()
        once = self.runtime.client.once(key, period, ttl=ttl, timeout=timeout)
        number = self.recorder.acquire(key, kind="once", ttl=ttl, queue=False, timeout=timeout, period=period)
        recorded = RecordedCall(self, number, ttl, chance.randrange(10**12), fails=chance.random() < 0.2)
        outcome = await recorded.run(partial(once.run, self.runtime.function(recorded.work)))
        if outcome is not None and not outcome.ran:
            self.recorder.remembered(number, outcome.value)
        elif outcome is not None:
            found = None
            with suppress(StoreError):
                found = await self.runtime.done(once.outcome())
            self.recorder.released(number, "done" if found and found.value == recorded.value else "error")

    def _ttl(self) -> float:
        ttl: float = self.config.options["ttl"] * self.chance.choice(TTL_SHARES)
        return ttl

    def _timeout(self) -> float | None:
        timeout = self.chance.choice((None, 0.05, 0.5, 2.0))
        return self.max_wait if timeout is None or self.max_wait is not None else timeout

    async def _consume(self) -> None:
        cost = self.chance.randint(1, 3)
        limiter = self.runtime.client.rate_limiter(RATE, LIMIT, 1.0, BURST)
        for _ in range(self.chance.randint(1, 6)):
            number = self.recorder.consume(RATE, cost, interval=1 / LIMIT, burst=BURST)
            try:
                if self.chance.random() < 0.3:
                    await self.runtime.done(limiter.acquire(cost, timeout=0.5))
                    self.recorder.consumed(number, allowed=True)
                else:
                    decision = await self.runtime.done(limiter.try_acquire(cost))
                    self.recorder.consumed(number, decision.allowed, decision.retry_after)
            except RateLimitError as error:
                self.recorder.consumed(number, allowed=False, retry_after=error.retry_after)
            except StoreError:
                return

    def _granted(self, numbers: Mapping[str, int], handle: Any) -> None:
        self.handle = handle
        for name, number in numbers.items():
            self.recorder.granted(number, handle, handle.fences[name] if hasattr(handle, "fences") else handle.fence)

    def _check(self, numbers: Mapping[str, int]) -> bool:
        checks = [self.recorder.check(number, self.handle) for number in numbers.values()]
        return all(checks)

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
    """A function that gets no handle: how long the lock is held is deduced from the time of the request."""

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
    def has_run(self) -> bool:
        """Whether the function was called, and the call returned without an error."""
        return self._began and self._returned

    @property
    def was_skipped(self) -> bool:
        """Whether it was not called, because another client runs it."""
        return not self._began and self._returned

    async def work(self) -> Any:
        """Run as the function."""
        recorder = self._actor.recorder
        self._began = True
        recorder.granted(self._number, self, 0)
        value = None
        try:
            await self._actor.runtime.sleep(self._seconds)
            if self._fails:
                raise FailureError
            value = self.value
        finally:
            recorder.release(self._number, value)
        return self.value

    async def run(self, call: Callable[[], Any]) -> Any:
        """Call the wrapper of the function, and record why the function was not called, or failed."""
        recorder, number = self._actor.recorder, self._number
        try:
            result = await self._actor.runtime.done(call())
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
    """A candidate in the background. Each of its terms is recorded as a separate acquisition."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._chance = random.Random(actor.chance.random())
        self._mutex = threading.Lock()
        self._checks = True
        self._is_elected = False
        self._number = self._begin_term()
        callback = actor.runtime.callback
        self.election = actor.runtime.client.election(
            LEADER, ttl=TERM, grace=GRACE, on_elected=callback(self._on_elected), on_lost=callback(self._on_lost)
        )

    def stop_checking(self) -> None:
        """Record no more checks: the lock is about to be released, and a check would show a loss."""
        with self._mutex:
            self._checks = False

    def end(self) -> None:
        """Record that it was stopped."""
        if not self._is_elected:
            self._actor.recorder.ended(self._number, "cancelled")

    def _begin_term(self) -> int:
        return self._actor.recorder.acquire(LEADER, kind="leader", ttl=TERM)

    async def _on_elected(self, leadership: Any) -> None:
        """Work for a while; then continue to lead, resign, or fail."""
        recorder, number, chance = self._actor.recorder, self._number, self._chance
        recorder.elected(number)
        self._is_elected = True
        recorder.granted(number, leadership, leadership.fence)
        until = clock.now() + chance.random() ** 2 * TERM
        while clock.now() < until and self._check(number, leadership):
            if self._actor.can("register"):
                await self._actor.write(LEADER, leadership.fence)
            await self._actor.runtime.sleep(chance.random() * 0.1)
        match chance.randrange(6):
            case 0:
                raise FailureError
            case 1 | 2:
                await self._actor.runtime.done(leadership.resign())

    async def _on_lost(self, leadership: Any) -> None:
        """Stop leading, and begin the record of the next term."""
        recorder, number = self._actor.recorder, self._number
        recorder.deposed(number)
        is_lost = leadership.lost.is_set()
        if is_lost:
            recorder.lost(number)
        else:
            recorder.release(number)
        await self._actor.runtime.sleep(STOPPING * self._chance.random())
        recorder.stopped(number)
        if not is_lost:
            recorder.released(number, "error")  # the release's outcome is not reported to on_lost
        self._is_elected, self._number = False, self._begin_term()

    def _check(self, number: int, leadership: Any) -> bool:
        with self._mutex:
            return self._checks and self._actor.recorder.check(number, leadership)


class Worker:
    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._chance = random.Random(config.seed)
        self._finished = threading.Event()
        self._observer = StoreObserver(self._recorder(config.client))
        self._runtimes = _make_runtimes(config)
        self._children = 0
        for runtime in self._runtimes:
            self._observer.watch(runtime.client._engine.store)
            runtime.actors = [self._actor(runtime) for _ in range(config.actors)]

    def run(self) -> None:
        """Work, and handle the commands on stdin until it is closed."""
        threads = [threading.Thread(target=_or_fail, args=(runtime.run,)) for runtime in self._runtimes]
        for thread in threads:
            thread.start()
        for line in sys.stdin:
            match line.strip():
                case "finish":
                    self._finished.set()
                    for thread in threads:
                        thread.join()
                    _answer("finished")
                case "inspect":
                    with DistributedLock(self._config.url, **self._config.options) as locks:
                        _answer(json.dumps([repr(info) for info in locks.inspect()]))
                case fault:
                    self._inject(fault)
                    _answer("done")
        os._exit(0)  # the runner is gone

    def _inject(self, fault: str) -> None:
        match fault:
            case "block loop":
                self._chance.choice(self._runtimes).block(self._chance.uniform(*BLOCKED))
            case "fork":
                self._fork()
            case "force release":
                self._force_release()
            case _:
                raise ValueError(f"unknown fault: {fault!r}")

    def _fork(self) -> None:
        self._children += 1
        self._chance.random()  # or each child would repeat the last one's actions, and write the same values
        if pid := os.fork():
            _, status = os.waitpid(pid, 0)
            if code := os.waitstatus_to_exitcode(status):
                raise RuntimeError(f"a forked child ended with {code}")
            return
        signal.alarm(CHILD_TIMEOUT)
        _or_fail(self._run_child)
        os._exit(0)

    def _force_release(self) -> None:
        """Release a name by force, as another client."""
        name = self._chance.choice(NAMES)
        recorder = self._observer.recorder
        number = recorder.force_release(name)
        info = None
        with suppress(StoreError), DistributedLock(self._config.url, retry=RETRY, **self._config.options) as other:
            info = other.force_release(name)
        recorder.force_released(number, [holder.fence for holder in info.holders] if info else [])

    def _run_child(self) -> None:
        """Check that the parent's handles are not held here, and continue as a separate client."""
        parent = self._chance.choice(self._runtimes)
        is_shared = parent.client._engine.store.capabilities.processes
        name = f"{self._config.client}-child{self._children}"
        self._observer.reset(self._recorder(name, ".jsonl" if is_shared else ".apart"))
        for actor in parent.actors:
            assert actor.handle is None or not actor.handle.is_held, "a forked child holds its parent's lock"
        runtime = parent.in_child(self._config)
        if runtime.client is not parent.client:
            self._observer.watch(runtime.client._engine.store)
        actor = self._actor(runtime, max_wait=0.5)
        if not is_shared:  # its fences cannot be compared with the parent's
            actor.config = replace(self._config, workloads=[one for one in actor.config.workloads if one != "register"])
        for _ in range(4):
            drive(actor.chance.choice(actor.actions())())
        runtime.client.close()

    def _actor(self, runtime: WorkerRuntime, max_wait: float | None = None) -> Actor:
        chance = random.Random(self._chance.random())
        return Actor(runtime, self._observer, self._config, chance, max_wait, over=self._finished.is_set)

    def _recorder(self, client: str, suffix: str = ".jsonl") -> Recorder:
        return Recorder(Path(self._config.history) / f"{client}{suffix}", client)


def _answer(line: str) -> None:
    print(line, flush=True)


def main() -> None:
    config = WorkerConfig(**json.loads(sys.argv[1]))
    if config.module:
        import_module(config.module)
    _or_fail(Worker(config).run)


if __name__ == "__main__":
    main()
