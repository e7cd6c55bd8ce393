"""Forked children that do one thing and end; what goes wrong there shows as a traceback."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable


def in_child(work: Callable[[], object]) -> int:
    """Fork, do the work in the child, and return the child's pid."""
    if pid := os.fork():
        return pid
    try:
        work()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def succeeds(pid: int) -> None:
    """Wait for a child, which must not have failed."""
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status == 0, f"the child ended with {status}"
