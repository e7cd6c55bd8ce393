"""Which machine this is, and which boot of it."""

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
    """Name this boot, or nothing where the system does not tell."""
    return _read("/proc/sys/kernel/random/boot_id") if sys.platform == "linux" else ""


def shared_clock() -> Callable[[], float]:
    """Choose the clock all processes of this machine agree on.

    The boot clock is only comparable within one boot. Where the boot has no name the wall clock must do:
    then a forward step of it may end leases early.
    """
    return clock.now if boot_id() else time.time
