"""The runtime for asyncio. It belongs to one loop, and moves to the next one once that is closed."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from math import inf
from typing import Any, Protocol, TypeVar, cast
from weakref import ReferenceType, ref

from lockstead.core import lifecycle
from lockstead.core.runtime import Event, Gathered, Runtime
from lockstead.core.store import Store
from lockstead.errors import LockError, StoreError, UnsupportedError
from lockstead.runtimes import clock, signals
from lockstead.runtimes.gather import gather_tasks, step

T = TypeVar("T")

OTHER_LOOP = (
    "this client belongs to another event loop: create one AsyncDistributedLock per loop; it moves to the next loop by "
    "itself once the former one is closed, unless a store was passed to it"
)

_running_loop = asyncio._get_running_loop  # noqa: SLF001 (None where there is none, without an exception)


class NoLoopError(UnsupportedError, RuntimeError):
    """No event loop of asyncio is running."""


def running_loop() -> asyncio.AbstractEventLoop:
    """Find the loop. Raises NoLoopError: also a RuntimeError, as clean-up at the interpreter's exit expects."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        msg = (
            "AsyncDistributedLock needs a running asyncio event loop: under trio, run a function that uses the "
            "blocking DistributedLock with trio.to_thread.run_sync; in a plain function, use asyncio.run"
        )
        raise NoLoopError(msg) from None


class _LoopEvent:
    """An event whose future is created only when a task waits."""

    __slots__ = ("_is_set", "_loop", "_thread", "_waiter")

    def __init__(self, loop: asyncio.AbstractEventLoop, thread: int) -> None:
        self._loop = loop
        self._thread = thread
        self._is_set = False
        self._waiter: asyncio.Future[None] | None = None

    def set(self) -> None:
        if threading.get_ident() == self._thread:
            self._set()
        else:
            with suppress(RuntimeError):  # the loop is closed, so no task waits
                self._loop.call_soon_threadsafe(self._set)

    def _set(self) -> None:
        self._is_set = True
        if not self._loop.is_closed():
            self._end_wait()

    def _end_wait(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self, timeout: float) -> bool:
        if not self._is_set and timeout > 0:
            self._waiter = self._loop.create_future()
            timer = None if timeout == inf else self._loop.call_later(timeout, self._end_wait)
            try:
                await self._waiter
            finally:
                self._waiter = None
                if timer is not None:
                    timer.cancel()
        was_set, self._is_set = self._is_set, False
        return was_set


class AsyncRuntime:
    """Ports that suspend. Without a running loop, at the interpreter's exit, all work runs inline."""

    now = staticmethod(clock.now)
    random = staticmethod(random.random)

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._worker: ThreadPoolExecutor | None = None
        self._lifetime: AsyncGenerator[None, None] | None = None
        self._client: ReferenceType[Movable] | None = None
        self._reopen: Callable[[Runtime], Store]
        lifecycle.at_fork(self, in_child="_forked")

    def event(self) -> Event:
        return _LoopEvent(self.bind(), self._thread)

    def mutex(self) -> AbstractContextManager[Any]:
        return threading.RLock()  # written in C: a nullcontext is two calls of Python functions

    def is_nested(self, mutex: AbstractContextManager[Any]) -> bool:
        return False

    def check(self, mutex: AbstractContextManager[Any]) -> None:
        if self._loop is None or self._loop is not _running_loop():
            self.bind()

    def context(self) -> Hashable:
        return asyncio.current_task()

    def in_event_loop(self) -> bool:
        return False

    def must_release(self, opened_by: Hashable) -> bool:
        # A handle without a block may be released by a task that a callback of the loop has yet to create.
        return opened_by is not None and opened_by is asyncio.current_task()

    def spawn(
        self, work: Callable[[], Coroutine[Any, Any, None]], name: str, if_cancelled: Callable[[], None] | None = None
    ) -> None:
        self.bind()
        task = self._task(work(), name)
        if if_cancelled is not None:
            task.add_done_callback(lambda task: if_cancelled() if task.cancelled() else None)

    def call_later(self, seconds: float, action: Callable[[], None]) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_later(seconds, action)

    def call_in_owner(self, action: Callable[[], None]) -> None:
        if self._loop is None or threading.get_ident() == self._thread:
            action()
        else:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(action)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def shield(self, work: Coroutine[Any, Any, T]) -> T:
        return await asyncio.shield(self._task(work, "lockstead-shield"))

    async def gather(self, requests: Gathered[T], numbers: Sequence[int], grace: float) -> None:
        if _running_loop() is not None:
            await gather_tasks(self, step, requests, numbers, grace)
            return
        for number in numbers:
            outcome: T | Exception
            try:
                outcome = await cast("Coroutine[Any, Any, T]", requests.send(number))  # it is no thread
            except Exception as error:
                outcome = error
            requests.take(number, outcome)

    def finish(self, work: Callable[[bool], Coroutine[Any, Any, None]], then: Callable[[bool], None]) -> None:
        """Do the work for a signal handler, which may have interrupted the loop: see `runtimes.signals`."""
        if self._loop is not None and self._loop.is_running():
            with suppress(RuntimeError):  # it was closed meanwhile
                self._loop.call_soon_threadsafe(self._start_finish, work, then)
                return
        signals.finish(work(False), then)

    def _start_finish(self, work: Callable[[bool], Coroutine[Any, Any, None]], then: Callable[[bool], None]) -> None:
        task = self._task(work(True), "lockstead-signal")
        task.add_done_callback(lambda task: signals.finished(task, then))

    async def offload(self, function: Callable[[], T]) -> T:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return function()
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, thread_name_prefix="lockstead-store")
        return await self.bind().run_in_executor(self._worker, function)

    def listen(self, datagrams: socket.socket, on_message: Callable[[bytes], object]) -> Callable[[], None]:
        loop = self.bind()

        def receive() -> None:
            with suppress(BlockingIOError):
                on_message(datagrams.recv(512))

        def stop() -> None:
            if not loop.is_closed():
                loop.remove_reader(datagrams)
            datagrams.close()

        datagrams.setblocking(False)
        loop.add_reader(datagrams, receive)
        return stop

    def _task(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        task = self.bind().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def bind(self) -> asyncio.AbstractEventLoop:
        """Bind to the running loop. Raises LockError while another is not closed, or if the client cannot follow."""
        loop = running_loop()
        if self._loop is not loop:
            self._move(loop)
        return loop

    def _move(self, loop: asyncio.AbstractEventLoop) -> None:
        client = None if self._client is None else self._client()
        former = self._loop
        if former is not None and (client is None or not former.is_closed()):
            raise LockError(OTHER_LOOP)
        store = None if former is None else self._reopened()  # first: after an error the next call moves
        self._loop, self._thread = loop, threading.get_ident()
        self._tasks = set()
        if self._worker is not None:
            self._worker.shutdown(wait=False)
            self._worker = None
        if client is None or self._client is None:
            return
        if store is not None:
            client.use_store(store)
        self._lifetime = lifetime(self._client)
        with suppress(StopIteration):
            self._lifetime.asend(None).send(None)  # from here on, the loop closes it at its end

    def _reopened(self) -> Store:
        try:
            return self._reopen(self)
        except OSError as error:
            msg = f"the store could not be opened again for this event loop: {error}; the next call retries"
            raise StoreError(msg) from error

    def let_follow(self, client: Movable, reopen: Callable[[Runtime], Store]) -> None:
        """Let a client, which is weakly referenced, be used in one loop after another, each time with a new store.

        `reopen` must not refer to this runtime: without a cycle, a client that is dropped ends its thread at once.
        """
        self._client, self._reopen = ref(client), reopen

    def _forked(self) -> None:
        """Bind anew in a child: the parent's loop is not closed there, but mostly does not run either."""
        self._loop = self._worker = self._lifetime = None
        self._tasks = set()


class Movable(Protocol):
    """A client that can be used in one loop after another."""

    async def disconnect(self) -> None:
        """Close all connections."""
        ...

    def use_store(self, store: Store) -> None:
        """Use this store from now on."""
        ...


async def lifetime(client: ReferenceType[Movable]) -> AsyncGenerator[None, None]:
    """Close the client's connections at the end of the loop: later, nothing can close them in order.

    `asyncio.run` and all its likes end every generator of a loop before they close it.
    """
    try:
        yield
    finally:
        if (found := client()) is not None:
            await found.disconnect()
