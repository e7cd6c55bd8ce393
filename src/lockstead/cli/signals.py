"""Signals sent to this process, as a queue that its main thread can wait on."""

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
    """A signal interrupted a wait."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class SignalQueue:
    """Inside its `with` block, catches the signals to forward to a command, and wakes up for SIGCHLD and SIGCONT.

    It uses Python's wake-up descriptor, not sigwait: the client's own threads block no signals, and the kernel may
    deliver one to any of them. Signals that were ignored before (nohup, background jobs of scripts) stay ignored.
    Main thread only.
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
        # if it were ignored, children would end without a status to wait for
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
        """Raise Interruption in the main thread when a signal asks this process to end; drop other signals.

        A signal that is queued already raises at once.
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
        """Wait for a signal, a call of `wake` or the timeout; return the signals to forward, in order."""
        if not select.select([self._receiver], [], [], max(timeout, 0.0))[0]:
            return []
        return [Signals(number) for number in self._receiver.recv(4096) if number in FORWARDED]

    def wake(self) -> None:
        """End the wait; from any thread, also after the `with` block."""
        with suppress(OSError):
            self._sender.send(b"\0")

    def _queue_signals(self) -> int:
        return signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)

    def _caught(self, number: int, frame: FrameType | None) -> None:
        if self._raising and number in ENDING:
            raise Interruption(number)
