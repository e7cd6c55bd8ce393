"""The runtime for simulation: virtual time, one seed, and processes that can be paused and killed.

A history is replayed exactly by its seed: nothing here reads a real clock or draws from shared randomness.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Coroutine, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from math import inf
from socket import socket
from typing import Any, Generic, TypeVar

from lockstead.core.runtime import Event, Gathered
from lockstead.runtimes.gather import gather_tasks

T = TypeVar("T")

JITTER = 0.0005
"""Seconds within which simultaneous events happen in any order."""


class Cancelled(BaseException):
    """Raised in a cancelled task at the point where it waits."""


class World:
    """A queue of scheduled events, and the clock that they advance."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.forger_random = random.Random(-seed - 1)
        """A separate generator, so that ineffective actions of other clients change no history."""
        self.now = 0.0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self.processes: list[Process] = []

    def after(self, delay: float, action: Callable[[], None]) -> None:
        if delay < inf:
            moment = self.now + delay + self.random.random() * JITTER
            heapq.heappush(self._queue, (moment, next(self._order), action))

    def step(self) -> bool:
        """Run the next event; False if none is left."""
        if not self._queue:
            return False
        self.now, _, action = heapq.heappop(self._queue)
        action()
        return True

    def end(self) -> None:
        """Drop every task and event that is left."""
        for process in self.processes:
            process.crash()
        self._queue.clear()


class Process:
    """A client process with a clock of its own. Messages it has sent are delivered even if it is paused or dead."""

    def __init__(self, world: World, name: str, rate: float = 1.0, offset: float = 0.0) -> None:
        self.world = world
        self.name = name
        self.crashed = False
        self.paused_until = 0.0
        self.current: Task[Any] | None = None
        self.tasks: dict[Task[Any], None] = {}  # in order, or a seed would not replay
        self._rate = rate
        self._offset = offset
        world.processes.append(self)

    def now(self) -> float:
        return self._offset + self._rate * self.world.now

    def pause(self, seconds: float) -> None:
        """Pause as by SIGSTOP: the clock runs on, nothing else does."""
        self.paused_until = max(self.paused_until, self.world.now + seconds)

    def crash(self) -> None:
        """Die as by SIGKILL: nothing runs here any more."""
        self.crashed = True
        for task in list(self.tasks):
            task.drop()

    def is_paused(self) -> bool:
        return self.world.now < self.paused_until

    def after(self, delay: float, action: Callable[[], None]) -> None:
        """Run `action` in this process, once the delay has passed on its clock; not while paused, nor once dead."""

        def attempt() -> None:
            if self.is_paused():
                self.world.after(self.paused_until - self.world.now, attempt)
            elif not self.crashed:
                action()

        self.world.after(delay / self._rate, attempt)

    def start(self, work: Coroutine[Any, Any, T]) -> Task[T]:
        return Task(self, work)


class Parking(Generic[T]):
    """Suspends the task that awaits it until `wake` is called."""

    def __init__(self) -> None:
        self._task: Task[Any] | None = None
        self._result: tuple[T] | None = None

    def wake(self, result: T) -> None:
        if self._result is None:
            self._result = (result,)
            if self._task is not None:
                self._task.resume(self)

    def __await__(self) -> Any:
        if self._result is None:
            self._task = yield self
        assert self._result is not None
        return self._result[0]


class Task(Generic[T]):
    """A coroutine in a process."""

    def __init__(self, process: Process, work: Coroutine[Any, Any, T]) -> None:
        self.process = process
        self.done: Parking[None] = Parking()
        self.result: T | None = None
        self.error: BaseException | None = None
        self.finished = False
        self.on_end: Callable[[], None] | None = None
        self._work = work
        self._parked_on: Parking[Any] | None = None
        self._cancelled = False
        process.tasks[self] = None
        process.after(0, lambda: self._advance(None))
        if process.crashed:
            self.drop()

    def drop(self) -> None:
        """Close the coroutine wherever it is."""
        self._work.close()
        self.process.tasks.pop(self, None)

    def outcome(self) -> T:
        """Return what a finished task returned, or raise what it raised."""
        assert self.finished
        if self.error is not None:
            raise self.error
        return self.result  # type: ignore[return-value]

    def cancel(self) -> None:
        """Throw `Cancelled` into the task where it waits next."""
        if not self.finished:
            self._cancelled = True
            if self._parked_on is not None:
                self.resume(self._parked_on)

    def resume(self, parking: Parking[Any]) -> None:
        def advance() -> None:
            if self._parked_on is parking:
                self._advance(self)

        self.process.after(0, advance)

    def _advance(self, value: object) -> None:
        self._parked_on = None
        self.process.current = self
        try:
            if self._cancelled:
                self._cancelled = False
                self._parked_on = self._work.throw(Cancelled())
            else:
                self._parked_on = self._work.send(value)
        except StopIteration as done:
            self._finish(done.value, None)
            return
        except BaseException as error:
            self._finish(None, error.with_traceback(None))  # its frames would keep handles alive
            return
        finally:
            self.process.current = None
        assert self._parked_on is not None
        self._parked_on._task = self  # noqa: SLF001 - the task and its parking are one mechanism
        if self._cancelled or self._parked_on._result is not None:  # noqa: SLF001 (as above)
            self.resume(self._parked_on)

    def _finish(self, result: T | None, error: BaseException | None) -> None:
        self.result, self.error, self.finished = result, error, True
        self.process.tasks.pop(self, None)
        self.done.wake(None)
        if self.on_end is not None:
            self.on_end()


class _SimulatedEvent:
    def __init__(self, process: Process) -> None:
        self._process = process
        self._is_set = False
        self._waiter: Parking[None] | None = None

    def set(self) -> None:
        self._is_set = True
        if self._waiter is not None:
            self._waiter.wake(None)

    async def wait(self, timeout: float) -> bool:
        if not self._is_set:
            waiter = self._waiter = Parking()
            self._process.after(max(timeout, 0.0), lambda: waiter.wake(None))
            try:
                await waiter
            finally:
                self._waiter = None
        was_set, self._is_set = self._is_set, False
        return was_set


class SimulatedRuntime:
    """Ports that park on virtual time."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._random = process.world.random

    def now(self) -> float:
        return self._process.now()

    def random(self) -> float:
        return self._random.random()

    def event(self) -> Event:
        return _SimulatedEvent(self._process)

    def bind(self) -> None:
        """Accept any context."""

    def mutex(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def is_nested(self, mutex: AbstractContextManager[Any]) -> bool:
        return False

    def check(self, mutex: AbstractContextManager[Any]) -> None:
        """Accept any call."""

    def context(self) -> Hashable:
        return self._process.current

    def in_event_loop(self) -> bool:
        return False

    def must_release(self, opened_by: Hashable) -> bool:
        return opened_by is not None and opened_by == self._process.current

    def spawn(
        self, work: Callable[[], Coroutine[Any, Any, None]], name: str, if_cancelled: Callable[[], None] | None = None
    ) -> None:
        self._process.start(work())

    def call_later(self, seconds: float, action: Callable[[], None]) -> None:
        self._process.after(seconds, action)

    def call_in_owner(self, action: Callable[[], None]) -> None:
        action()

    async def sleep(self, seconds: float) -> None:
        parking: Parking[None] = Parking()
        self._process.after(seconds, lambda: parking.wake(None))
        await parking

    async def shield(self, work: Coroutine[Any, Any, T]) -> T:
        task = self._process.start(work)
        await task.done
        return task.outcome()

    async def gather(self, requests: Gathered[T], numbers: Sequence[int], grace: float) -> None:
        def start(work: Any, ended: Callable[[Any], None]) -> None:
            task = self._process.start(work)
            task.on_end = lambda: ended(task.result if task.error is None else task.error)

        await gather_tasks(self, start, requests, numbers, grace)

    async def offload(self, function: Callable[[], T]) -> T:
        return function()

    def listen(self, datagrams: socket, on_message: Callable[[bytes], object]) -> Callable[[], None]:
        msg = "there are no sockets in a simulation"
        raise NotImplementedError(msg)
