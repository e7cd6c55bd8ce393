"""The driver for threads: its ports block, so the core's coroutines run to their end without suspending."""

from __future__ import annotations

import random
import select
import socket
import threading
import time
import types
from _thread import allocate_lock
from collections.abc import Callable, Coroutine, Generator, Hashable, Sequence
from contextlib import AbstractContextManager, suppress
from math import ceil, inf
from typing import Any, Generic, TypeVar

from leasehold._runtime import Bell, drive
from leasehold.runtimes import _clock

T = TypeVar("T")


class _ThreadBell:
    """A lock used as a latch: locked until rung."""

    __slots__ = ("_latch",)

    def __init__(self) -> None:
        self._latch = allocate_lock()
        self._latch.acquire()

    def ring(self) -> None:
        with suppress(RuntimeError):  # it was rung already
            self._latch.release()

    async def wait(self, timeout: float) -> bool:
        if timeout == inf:
            return self._latch.acquire()
        return self._latch.acquire(timeout=min(max(timeout, 0.0), threading.TIMEOUT_MAX))


class _Gathering(Generic[T]):
    """Works run side by side by one thread: whichever has something to read goes on."""

    def __init__(self, works: Sequence[Coroutine[Any, Any, T]]) -> None:
        self.results: list[T | None] = [None] * len(works)
        self._works = dict(enumerate(works))
        self._waiting: dict[int, tuple[socket.socket, float]] = {}

    def is_over(self) -> bool:
        return not self._works

    def begin(self) -> None:
        for number in list(self._works):
            self._step(number)

    def poll(self, until: float) -> None:
        """Take every work that can go on one step further; wait for the first, but not beyond `until`."""
        ready = [number for number, (sock, _) in self._waiting.items() if _has_decrypted(sock)]
        if not ready:
            now = _clock.now()
            until = min(until, *(deadline for _, deadline in self._waiting.values()))
            poller = select.poll()
            for sock, _ in self._waiting.values():
                if sock.fileno() >= 0:
                    poller.register(sock, select.POLLIN)
            heard = {fd for fd, _ in poller.poll(None if until == inf else ceil(max(until - now, 0.0) * 1000))}
            now = _clock.now()
            ready = [
                number
                for number, (sock, deadline) in self._waiting.items()
                if sock.fileno() in heard or sock.fileno() < 0 or deadline <= now
            ]
        for number in ready:
            self._step(number)

    async def finish(self) -> None:
        """Go on to the end of all, those that have not begun included."""
        for number in [number for number in self._works if number not in self._waiting]:
            self._step(number)
        while not self.is_over():
            self.poll(inf)

    def _step(self, number: int) -> None:
        self._waiting.pop(number, None)
        work = self._works.pop(number)
        outer, _here.gathering = _here.gathering, True
        try:
            self._waiting[number] = work.send(None)
        except StopIteration as done:
            self.results[number] = done.value
        else:
            self._works[number] = work
        finally:
            _here.gathering = outer


class _Here(threading.local):
    gathering = False
    """Whether whoever runs in this thread may yield until its socket has something to read."""


_here = _Here()


@types.coroutine
def _until_readable(sock: socket.socket, deadline: float) -> Generator[tuple[socket.socket, float], None, None]:
    yield sock, deadline


def _has_decrypted(sock: socket.socket) -> bool:
    """Tell whether a TLS socket has read ahead: its descriptor then looks as if there were nothing to read."""
    pending = getattr(sock, "pending", None)
    return pending is not None and sock.fileno() >= 0 and pending() > 0


class ThreadRuntime:
    """Blocking ports."""

    now = staticmethod(_clock.now)
    random = staticmethod(random.random)

    def bell(self) -> Bell:
        return _ThreadBell()

    def mutex(self) -> AbstractContextManager[Any]:
        return threading.Lock()

    def __init__(self) -> None:
        self._here = threading.local()

    def context(self) -> Hashable:
        """Name the thread by a token of its own: a thread's number is used again as soon as it ends."""
        if not hasattr(self._here, "token"):
            self._here.token = object()
        token: Hashable = self._here.token
        return token

    def spawn(
        self, work: Callable[[], Coroutine[Any, Any, None]], name: str, if_cancelled: Callable[[], None] | None = None
    ) -> None:
        threading.Thread(target=lambda: drive(work()), name=name, daemon=True).start()

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        timer = threading.Timer(seconds, action)
        timer.daemon = True
        timer.start()

    def at_home(self, action: Callable[[], None]) -> None:
        action()

    async def sleep(self, seconds: float) -> None:
        time.sleep(max(seconds, 0.0))

    async def shield(self, work: Coroutine[Any, Any, T]) -> T:
        return await work

    async def gather(
        self, works: Sequence[Coroutine[Any, Any, T]], decided: Callable[[Sequence[T | None]], bool], grace: float
    ) -> list[T | None]:
        """Run works in this very thread. Those that wait by `readable` overlap, the others come one after another."""
        gathering = _Gathering(works)
        until = inf
        try:
            gathering.begin()
            while not gathering.is_over():
                if until == inf and decided(gathering.results):
                    until = self.now() + grace
                if self.now() >= until:
                    break
                gathering.poll(until)
        finally:
            if not gathering.is_over():
                try:
                    self.spawn(gathering.finish, "leasehold-stragglers")
                except RuntimeError:  # no more threads to be had
                    await gathering.finish()
        return list(gathering.results)

    def is_gathering(self) -> bool:
        """Tell whether this thread has other works to run while one waits by `readable`."""
        return _here.gathering

    async def readable(self, sock: socket.socket, deadline: float) -> None:
        """Let the other works of a `gather` run until there is something to read.

        Anywhere else it returns at once: the caller's own `recv` waits. Raises TimeoutError after the deadline.
        """
        if _here.gathering:
            await _until_readable(sock, deadline)
            if self.now() >= deadline:
                raise TimeoutError

    async def offload(self, function: Callable[[], T]) -> T:
        return function()

    def listen(self, datagrams: socket.socket, on_message: Callable[[bytes], object]) -> Callable[[], None]:
        stopped = False

        def receive() -> None:
            with datagrams:
                while not stopped:
                    if message := datagrams.recv(512):
                        on_message(message)

        def stop() -> None:
            nonlocal stopped
            stopped = True
            with suppress(OSError):
                datagrams.shutdown(socket.SHUT_RD)

        threading.Thread(target=receive, name="leasehold-bell", daemon=True).start()
        return stop
