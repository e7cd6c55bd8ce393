"""The runtime for threads: its ports block, so the core's coroutines run to their end without suspending.

It treats gevent's greenlets as threads. `gevent.monkey.patch_all()` replaces names in the standard library's modules,
so every blocking name is looked up there when it is used: `threading.Lock`, never a `Lock` imported before.
"""

from __future__ import annotations

import random
import select
import socket
import sys
import threading
import time
import types
from collections.abc import Callable, Coroutine, Generator, Hashable, Sequence
from contextlib import AbstractContextManager, suppress
from math import inf
from typing import Any, TypeVar

from lockstead.core.runtime import NESTED, Event, Gathered
from lockstead.errors import NestedCallError, UnsupportedError
from lockstead.runtimes import clock, nesting, signals
from lockstead.runtimes.gather import ThreadGathering
from lockstead.runtimes.workers import IDLE_NAME, Workers, start

T = TypeVar("T")

WITHOUT_CALLBACKS = {IDLE_NAME, "lockstead-keeper", "lockstead-notify", "lockstead-renewal"}
"""The threads of ours that never call a function of the user, which might release something."""


class _ThreadEvent:
    """An auto-reset event made of a lock, which is locked while the event is not set."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        with suppress(RuntimeError):  # it is set already
            self._lock.release()

    async def wait(self, timeout: float) -> bool:
        if timeout == inf:
            return self._lock.acquire()
        return self._lock.acquire(timeout=min(max(timeout, 0.0), threading.TIMEOUT_MAX))


def native_poll() -> type[select.poll]:
    """Return the system's own poll. gevent's, which lets other greenlets run, supports POLLIN and POLLOUT only."""
    monkey = sys.modules.get("gevent.monkey")
    found: type[select.poll] = monkey.get_original("select", "poll") if monkey is not None else select.poll
    return found


def _refuse_eventlet() -> None:
    patcher = sys.modules.get("eventlet.patcher")
    if patcher is not None and (patcher.is_monkey_patched("thread") or patcher.is_monkey_patched("socket")):
        msg = (
            "lockstead does not work under eventlet.monkey_patch(), which takes select.poll away: "
            "use gevent (monkey.patch_all()), threads or asyncio"
        )
        raise UnsupportedError(msg)


class ThreadRuntime:
    """Blocking ports. Belongs to the kind of threads that exists when it is created: the system's, or greenlets."""

    now = staticmethod(clock.now)
    random = staticmethod(random.random)

    def event(self) -> Event:
        return _ThreadEvent()

    def mutex(self) -> AbstractContextManager[Any]:
        return threading.RLock()

    def is_nested(self, mutex: AbstractContextManager[Any]) -> bool:
        is_owned: bool = mutex._is_owned()  # type: ignore[attr-defined]  # noqa: SLF001 (as threading.Condition does)
        step = nesting.here.__dict__.get("step")
        return is_owned or (step is not None and step.locked())

    def check(self, mutex: AbstractContextManager[Any]) -> None:
        if threading.Lock is not self._lock_type:
            self.bind()
        step = nesting.here.__dict__.get("step")  # as in `is_nested`, without a call
        if mutex._is_owned() or (step is not None and step.locked()):  # type: ignore[attr-defined]  # noqa: SLF001 (as above)
            raise NestedCallError(NESTED)

    def __init__(self) -> None:
        _refuse_eventlet()
        self._lock_type = threading.Lock
        self._workers = Workers()
        self._here = threading.local()
        self.gathering: set[Hashable] = set()
        """The threads, by their context, in which a coroutine may yield until its socket has something to read."""

    def bind(self) -> None:
        """Raise if the threads were patched since: locks of real threads would block every greenlet."""
        if threading.Lock is not self._lock_type:
            _refuse_eventlet()
            msg = (
                "the standard library was patched (gevent.monkey.patch_all()) after this client was created: patch "
                "first, at the very start of the program, or create the client afterwards"
            )
            raise UnsupportedError(msg)

    def context(self) -> Hashable:
        """Identify the thread by a token of its own: a thread's number is reused as soon as it ends."""
        try:
            token: Hashable = self._here.token
        except AttributeError:
            token = self._here.token = object()
        return token

    def in_event_loop(self) -> bool:
        asyncio = sys.modules.get("asyncio")  # a program that runs a loop has imported it
        return asyncio is not None and asyncio._get_running_loop() is not None  # noqa: SLF001 (None, not an exception)

    def must_release(self, opened_by: Hashable) -> bool:
        here = threading.get_ident()
        if opened_by == here:
            return True
        if "gevent.monkey" in sys.modules:  # there may be greenlets that nothing lists
            return False
        own = {thread.ident for thread in threading.enumerate() if thread.name in WITHOUT_CALLBACKS}
        return not sys._current_frames().keys() - own - {here}  # noqa: SLF001 (it also has threads that C code started)

    def spawn(
        self, work: Callable[[], Coroutine[Any, Any, None]], name: str, if_cancelled: Callable[[], None] | None = None
    ) -> None:
        self.bind()
        self._workers.run((work, name))

    def call_later(self, seconds: float, action: Callable[[], None]) -> None:
        timer = threading.Timer(seconds, action)
        timer.daemon = True
        start(timer)

    def call_in_owner(self, action: Callable[[], None]) -> None:
        action()

    async def sleep(self, seconds: float) -> None:
        time.sleep(max(seconds, 0.0))

    async def shield(self, work: Coroutine[Any, Any, T]) -> T:
        return await work

    async def gather(self, requests: Gathered[T], numbers: Sequence[int], grace: float) -> None:
        """Run all in this thread. Those that wait by `readable` or are `InFlight` overlap, the others do not."""
        await ThreadGathering(self, requests).run(numbers, grace)

    def is_gathering(self) -> bool:
        """Return whether this thread has other coroutines to run while one waits by `readable`."""
        return bool(self.gathering) and getattr(self._here, "token", None) in self.gathering

    @types.coroutine
    def readable(self, sock: socket.socket, deadline: float) -> Generator[tuple[socket.socket, float], None, None]:
        """Let the other coroutines of a `gather` run until there is something to read. Only while `is_gathering`.

        Raises TimeoutError after the deadline.
        """
        yield sock, deadline
        if self.now() >= deadline:
            raise TimeoutError

    def finish(self, work: Callable[[bool], Coroutine[Any, Any, None]], then: Callable[[bool], None]) -> None:
        """Do the work for a signal handler: see `runtimes.signals`."""
        signals.finish(work(True), then)

    async def offload(self, function: Callable[[], T]) -> T:
        return function()

    def listen(self, datagrams: socket.socket, on_message: Callable[[bytes], object]) -> Callable[[], None]:
        stopped = False

        def receive() -> None:
            with datagrams, suppress(OSError):  # closed meanwhile, or in a forked child, where greenlets run on
                while not stopped:
                    if message := datagrams.recv(512):
                        on_message(message)

        def stop() -> None:
            nonlocal stopped
            stopped = True
            with suppress(OSError):
                datagrams.shutdown(socket.SHUT_RD)

        start(threading.Thread(target=receive, name="lockstead-notify", daemon=True))
        return stop
