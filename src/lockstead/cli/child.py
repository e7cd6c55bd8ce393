"""The command that `lockstead run` or `elect` runs, in a process group of its own."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from signal import Signals
from typing import Self

from lockstead.cli.terminal import Terminal

PR_SET_PDEATHSIG = 1

FOR_COMMAND_ALONE = (Signals.SIGUSR1, Signals.SIGUSR2)
"""Signals that kill every program without a handler for them: only the command is known to expect them."""
TERMINAL_ACCESS = (Signals.SIGTTIN, Signals.SIGTTOU)
"""Signals that stop a group when it uses the terminal from the background."""
SETTLE_TIME = 0.01
"""Seconds for other threads to finish what they are doing, and for the kernel to stop this one."""


class Child:
    """One running command.

    Not promised: processes it leaves running when it ends are not stopped; a descendant that leaves the process group
    (setsid) or runs as another user (sudo) cannot be stopped; and when this process is killed, the kernel kills the
    command (on Linux) but not its descendants.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], renew: Callable[[], bool]) -> None:
        """Start it. Raises OSError if it cannot be started.

        `renew` is called before and after a stop by the terminal (Ctrl-Z); if it returns False afterwards, the command
        is killed instead of resumed.
        """
        self._renew = renew
        self._status: int | None = None
        self._forwarded: set[Signals] = set()
        self._terminal = Terminal()
        self._has_terminal = self._terminal.is_spare()
        # While the command has the terminal, this process is in the background: SIGTTOU would stop it when it writes
        # or takes the terminal back.
        self._on_background_write = signal.signal(Signals.SIGTTOU, signal.SIG_IGN) or signal.SIG_DFL
        try:
            # Other threads may hold interpreter locks at the fork, so between fork and exec only a few system calls are
            # made, resolved beforehand. The store closes its file around the fork by itself.
            self._process = subprocess.Popen(  # noqa: S603 - the user's own command
                command,
                env=dict(environment),
                process_group=0,
                preexec_fn=self._make_preexec(),  # noqa: PLW1509 (see above)
            )
        except BaseException:
            self._restore()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._status is None:
            self.signal_group(Signals.SIGKILL)
            self._process.wait()
        self._restore()

    @property
    def status(self) -> int:
        """The exit code, or the negative number of the signal that ended it."""
        assert self._status is not None
        return self._status

    @property
    def was_interrupted_from_terminal(self) -> bool:
        """Whether it was ended by Ctrl-C, which the terminal sent to the command's group alone."""
        by_interrupt = self._status == -Signals.SIGINT
        return by_interrupt and self._has_terminal and Signals.SIGINT not in self._forwarded

    def was_forwarded(self, *numbers: Signals) -> bool:
        """Return whether any of these signals was passed on."""
        return not self._forwarded.isdisjoint(numbers)

    def has_ended(self) -> bool:
        """Check without waiting; if the terminal has stopped the command, stop this process too until it is resumed."""
        pid, status = os.waitpid(self._process.pid, os.WNOHANG | (os.WUNTRACED if self._terminal.is_there else 0))
        if pid and os.WIFSTOPPED(status):
            self._stop_with_command(Signals(os.WSTOPSIG(status)))
        elif pid:
            self._status = self._process.returncode = os.waitstatus_to_exitcode(status)
            if self._has_terminal and self._status < 0:
                self._terminal.restore_modes()
        return self._status is not None

    def forward(self, number: Signals) -> None:
        """Pass a signal on: to the whole group, or to the command alone if only the command may expect it."""
        self._forwarded.add(number)
        if number in FOR_COMMAND_ALONE:
            with suppress(PermissionError):
                os.kill(self._process.pid, number)
        else:
            self.signal_group(number)

    def signal_group(self, number: Signals) -> None:
        """Signal the command and its descendants; also after its end, for as long as any descendants are left.

        Safe after the end: a group number is not reused while a process of the group exists, nor afterwards before
        all other numbers were used.
        """
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def _stop_with_command(self, number: Signals) -> None:
        """Stop too when the terminal has stopped the command, so that the shell shows its prompt; then resume both."""
        if number is Signals.SIGSTOP:  # not sent by the terminal: its sender has to resume the command
            return
        only_needs_terminal = number in TERMINAL_ACCESS and self._terminal.is_ours()
        if not only_needs_terminal and not self._stop_our_job():
            self.signal_group(Signals.SIGKILL)
            return
        if self._terminal.is_ours():
            self._terminal.set_foreground(self._process.pid)
            self._has_terminal = True
        self.signal_group(Signals.SIGCONT)

    def _stop_our_job(self) -> bool:
        """Stop until the shell resumes this job; return whether the lock is still held, as renewals stop meanwhile.

        The kernel does not stop a job that no shell could resume. A renewal just before makes sure that none is under
        way: a process that is stopped in the middle of a transaction locks every other process out of SQLite.
        """
        self._reclaim_terminal()
        self._renew()
        time.sleep(SETTLE_TIME)
        os.killpg(os.getpgrp(), Signals.SIGTSTP)
        time.sleep(SETTLE_TIME)
        return self._renew()

    def _restore(self) -> None:
        self._reclaim_terminal()
        signal.signal(Signals.SIGTTOU, self._on_background_write)

    def _reclaim_terminal(self) -> None:
        if self._has_terminal:
            self._terminal.set_foreground(os.getpgrp())
            self._has_terminal = False

    def _make_preexec(self) -> Callable[[], None]:
        """Make the function that runs in the new process just before it becomes the command."""
        parent = os.getpid()
        die_with_parent = _parent_death_signal()
        on_background_write = self._on_background_write
        terminal = self._terminal if self._has_terminal else None

        def prepare() -> None:
            die_with_parent()
            if os.getppid() != parent:  # the parent ended before the kernel was asked
                os.kill(os.getpid(), Signals.SIGKILL)
            if terminal is not None:
                terminal.set_foreground(os.getpid())
            signal.signal(Signals.SIGTTOU, on_background_write)

        return prepare


def _parent_death_signal() -> Callable[[], object]:
    """Return the call by which a process asks the kernel to be killed when its parent ends; on Linux only."""
    if sys.platform != "linux":
        return lambda: None
    prctl = ctypes.CDLL(None).prctl
    arguments = (PR_SET_PDEATHSIG, ctypes.c_ulong(Signals.SIGKILL))
    return lambda: prctl(*arguments)
