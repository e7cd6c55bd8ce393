"""The terminal on stdin: the command gets it, so that it behaves as if lockstead were not there."""

from __future__ import annotations

import os
import stat
import termios
from contextlib import suppress
from typing import Any

STDIN, STDOUT = 0, 1


class Terminal:
    """The controlling terminal, if stdin is it. Without one, or after a hang-up, every method does nothing."""

    def __init__(self) -> None:
        self._modes: list[Any] | None = None
        with _ignore_no_terminal():
            os.tcgetpgrp(STDIN)
            self._modes = termios.tcgetattr(STDIN)

    @property
    def is_there(self) -> bool:
        return self._modes is not None

    def is_ours(self) -> bool:
        """Return whether the job this process is part of is in the foreground."""
        with _ignore_no_terminal():
            return self.is_there and os.tcgetpgrp(STDIN) == os.getpgrp()
        return False

    def is_spare(self) -> bool:
        """Guess whether no other process of our job needs it: the reader of our output, such as a pager, might."""
        return self.is_ours() and not stat.S_ISFIFO(os.fstat(STDOUT).st_mode)

    def set_foreground(self, group: int) -> None:
        """Put a process group into the foreground. SIGTTOU must be ignored, or it stops the caller."""
        with _ignore_no_terminal():
            os.tcsetpgrp(STDIN, group)

    def restore_modes(self) -> None:
        """Undo what a command that was killed may have done to echo and line editing."""
        if self._modes is not None:
            with _ignore_no_terminal():
                termios.tcsetattr(STDIN, termios.TCSADRAIN, self._modes)


def _ignore_no_terminal() -> suppress:
    return suppress(OSError, termios.error)
