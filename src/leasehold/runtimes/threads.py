"""The driver for threads: its ports block, so the core's coroutines run to their end without suspending."""

from __future__ import annotations

import random
import socket
import threading
import time
from _thread import allocate_lock
from collections.abc import Callable, Coroutine, Hashable
from contextlib import AbstractContextManager, suppress
from math import inf
from typing import Any, TypeVar

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

    def spawn(self, work: Coroutine[Any, Any, None], name: str, if_cancelled: Callable[[], None] | None = None) -> None:
        threading.Thread(target=drive, args=(work,), name=name, daemon=True).start()

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
