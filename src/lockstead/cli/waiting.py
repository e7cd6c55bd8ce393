"""What `run` and `elect` print on a terminal before they wait."""

from __future__ import annotations

import sys
from contextlib import suppress

from lockstead.blocking import DistributedLock
from lockstead.cli.inspection import past
from lockstead.errors import StoreError


def announce(locks: DistributedLock, name: str, what: str) -> None:
    """Print what is waited for, and which client holds it; nothing if that is no client, or stderr no terminal.

    Not promised: that the holder is still the same once the wait begins.
    """
    if sys.stderr is None or not sys.stderr.isatty():
        return
    info = None
    with suppress(StoreError):  # which the request that follows raises, or retries
        info = locks.info(name)
    if info is not None and info.holders:
        behind = f", with {info.waiting} waiting" if info.waiting else ""
        print(f"lockstead: waiting {what} {name!r}, {past(info.holders[0])}{behind}", file=sys.stderr, flush=True)
