"""Release what clients hold when a signal ends the process: `release_on` of a client.

Python calls a handler in the main thread, wherever that is. If it has interrupted a step of a client, the handler lets
that step end first.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from functools import partial
from signal import Signals
from types import FrameType
from typing import Any, Protocol

from lockstead.core import lifecycle
from lockstead.core.engine import Engine
from lockstead.core.keeper import log
from lockstead.core.runtime import drive
from lockstead.errors import ClosedError, InvalidInputError, LockError, UnsupportedError

ACCEPTED = (
    Signals.SIGTERM,
    Signals.SIGINT,
    Signals.SIGHUP,
    Signals.SIGQUIT,
    Signals.SIGUSR1,
    Signals.SIGUSR2,
    Signals.SIGXCPU,
)
"""Signals that end a process, unless it handles them."""

FAILED = "a signal ends the process, but not all locks could be released: they expire after their ttl"

Work = Callable[[bool], Coroutine[Any, Any, None]]
"""Release everything; the argument is whether background work can be awaited."""
Ends = Callable[[], Any]
"""How to stop candidates and terms: of one client."""


class Finishing(Protocol):
    """A runtime whose clients can be ended by a handler."""

    def finish(self, work: Work, then: Callable[[bool], None]) -> None:
        """Do the work and call `then`, with True unless it was interrupted and has to be repeated.

        Called by a signal handler, in the main thread.
        """
        ...


def finish(work: Coroutine[Any, Any, None], then: Callable[[bool], None]) -> None:
    """Do the work here; an exception of another signal's handler interrupts it."""
    is_done = False
    try:
        drive(work)
        is_done = True
    except Exception:
        log.exception(FAILED)
        is_done = True
    finally:
        then(is_done)


def finished(task: asyncio.Task[None], then: Callable[[bool], None]) -> None:
    """Log the failure of the work in a task, and call `then`."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error(FAILED, exc_info=error)
    then(not task.cancelled())


class _Client:
    def __init__(self, engine: Engine, runtime: Finishing, running: Iterable[Ends]) -> None:
        self.engine = engine
        self.runtime = runtime
        self._running = running
        self.has_begun = False

    async def end(self, can_wait: bool) -> None:  # noqa: FBT001 (Work)
        try:
            for stop in tuple(self._running) if can_wait else ():
                with suppress(LockError):
                    await stop()
        finally:
            await self.engine.end(lifecycle.EXIT_BUDGET)


class _Handler:
    """The handler of one signal, for all clients that asked for it."""

    def __init__(self, number: Signals, before: Any) -> None:
        self._number = number
        self._before = before
        self._clients: list[_Client] = []

    def add(self, client: _Client) -> None:
        others = [other for other in self._clients if not other.engine.is_closed and other.engine is not client.engine]
        self._clients = [*others, client]

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if callable(self._before):  # it decides when work stops: nothing may be released before that
            self._before(number, frame)
            return
        for client in self._clients:
            if client.has_begun:
                continue
            if client.engine.is_nested():
                self._come_again(client.engine)
                return
            client.has_begun = True
            client.runtime.finish(client.end, partial(self._ended, client))
        self._end_if_done()

    def _ended(self, client: _Client, is_done: bool) -> None:  # noqa: FBT001 (a callback)
        client.has_begun = is_done
        if is_done:
            self._clients = [other for other in self._clients if other is not client]
        if threading.current_thread() is threading.main_thread() and is_done:
            self._end_if_done()
        else:
            self._signal_main_thread()

    def _end_if_done(self) -> None:
        if not self._clients:
            signal.signal(self._number, signal.SIG_DFL)
            signal.raise_signal(self._number)
            os._exit(128 + self._number)  # process 1 of a container, which no signal ends by default

    def _come_again(self, engine: Engine) -> None:
        """Continue as soon as the step that was interrupted has ended: in a busy thread, another one begins soon."""
        before = sys.getprofile()

        def at_each_return(frame: FrameType, *_: object) -> None:
            if not engine.is_nested():
                sys.setprofile(before)
                self(self._number, frame)

        sys.setprofile(at_each_return)

    def _signal_main_thread(self) -> None:
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, self._number)


def release_on(numbers: Iterable[int], engine: Engine, runtime: Finishing, running: Iterable[Ends]) -> None:
    """Handle these signals, and release what the client holds before the process ends by one of them."""
    signals = check_signals(numbers)
    if threading.current_thread() is not threading.main_thread():
        msg = "release_on handles signals, which Python allows in the main thread only: call it there"
        raise UnsupportedError(msg)
    if engine.is_closed:
        msg = "this client is closed: create a new one"
        raise ClosedError(msg)
    for number in signals:
        handler = signal.getsignal(number)
        if handler is signal.SIG_IGN:  # nohup, and background jobs of a shell: the process goes on
            continue
        if handler is None:
            msg = f"another library handles {number.name} without Python: call close() in its handler"
            raise UnsupportedError(msg)
        if not isinstance(handler, _Handler):
            handler = _Handler(number, handler)
            signal.signal(number, handler)
        handler.add(_Client(engine, runtime, running))


def check_signals(numbers: Iterable[int]) -> list[Signals]:
    """Accept signals that end a process."""
    signals = [Signals(number) for number in numbers if number in ACCEPTED]
    if not signals or len(signals) != len(tuple(numbers)):
        names = ", ".join(number.name for number in ACCEPTED)
        msg = f"release_on takes signals that end a process, as in release_on(signal.SIGTERM): one or more of {names}"
        raise InvalidInputError(msg)
    return signals
