"""Signals sent to this process, turned into something its main thread can wait for."""

from __future__ import annotations

import select
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from signal import Signals
from types import FrameType
from typing import Any, Self

ENDING = (Signals.SIGTERM, Signals.SIGINT, Signals.SIGHUP, Signals.SIGQUIT)
FORWARDED = (*ENDING, Signals.SIGUSR1, Signals.SIGUSR2)


class Interruption(BaseException):
    """A signal ended the wait for something."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class SignalQueue:
    """Catches, as long as it is entered, the signals to forward to a command, and wakes for SIGCHLD and SIGCONT.

    Python's wake-up descriptor and not sigwait: the client's own threads block no signals, and the kernel may hand one
    to any of them. Signals that were ignored before (nohup, background jobs of scripts) stay so. Main thread only.
    """

    def __enter__(self) -> Self:
        self._raising = False
        self._receiver, self._sender = socket.socketpair()
        self._sender.setblocking(False)
        self._wakeup_before = self._queue_signals()
        self._before: dict[Signals, Any] = {}
        for number in (*FORWARDED, Signals.SIGCONT):
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._caught)
        # ignored, children would vanish without a status
        self._before[Signals.SIGCHLD] = signal.signal(Signals.SIGCHLD, self._caught)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_before)
        self._receiver.close()
        self._sender.close()

    @contextmanager
    def raised(self) -> Iterator[None]:
        """Raise Interruption, from wherever the main thread is, when a signal asks this process to end; drop others.

        At once, if one has come already.
        """
        signal.set_wakeup_fd(-1)
        self._raising = True
        try:
            for number in self.wait(0):
                self._caught(number, None)
            yield
        finally:
            self._queue_signals()
            self._raising = False

    def wait(self, timeout: float) -> list[Signals]:
        """Sleep until a signal comes, `wake` is called or the time is over; return the signals to forward, in order."""
        if not select.select([self._receiver], [], [], max(timeout, 0.0))[0]:
            return []
        return [Signals(number) for number in self._receiver.recv(4096) if number in FORWARDED]

    def wake(self) -> None:
        """End a wait; from any thread, and harmless when there is none any more."""
        with suppress(OSError):
            self._sender.send(b"\0")

    def _queue_signals(self) -> int:
        return signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)

    def _caught(self, number: int, frame: FrameType | None) -> None:
        if self._raising and number in ENDING:
            raise Interruption(number)
