"""Identify this machine, and its current boot."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

from lockstead.runtimes import clock


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except OSError:
        return ""


def machine_id() -> str:
    return _read("/etc/machine-id") or _read("/var/lib/dbus/machine-id") or socket.gethostname()


def boot_id() -> str:
    """Return the id of this boot; empty where the system has none."""
    return _read("/proc/sys/kernel/random/boot_id") if sys.platform == "linux" else ""


def shared_clock() -> Callable[[], float]:
    """Choose the clock that all processes of this machine share.

    The boot clock is only comparable within one boot. Where the boot has no id, it is the wall clock: then a forward
    step of it may expire leases early.
    """
    return clock.now if boot_id() else time.time
