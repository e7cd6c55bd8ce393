"""`lockstead elect NAME -- CMD`: run a command on one machine of many, and on another when that one fails."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from lockstead.blocking import DistributedLock, LockHandle
from lockstead.cli.client import open_client
from lockstead.cli.signals import Interruption, SignalQueue
from lockstead.cli.supervisor import Guard, ended_by, log, parse_metadata, release, resolve_grace
from lockstead.errors import LockAcquisitionError, LockLostError, StoreError

PAUSE = 1.0
"""How long to wait before standing again when the store did not answer."""


def elect(arguments: Namespace) -> int:
    """Stand for election, run the command while elected, stand again if that is lost; return the code to exit with."""
    grace = resolve_grace(arguments.grace, arguments.ttl)
    metadata = parse_metadata(arguments.metadata)
    with SignalQueue() as signals, open_client(arguments.url, arguments.ttl) as locks:
        locks.info(arguments.name)  # a store that was never there is a mistake to be told, not an outage to sit out
        while True:
            try:
                with signals.raised():
                    handle = _campaign(locks, signals, arguments.name, metadata)
            except Interruption as interruption:
                return ended_by(interruption)
            try:
                end = Guard(handle, signals, grace, arguments.ttl, None).run(arguments.command_line)
            except LockLostError as error:
                log.warning("%s; standing again", error)
                continue
            if not end.why_stopped or end.was_signalled_to_end:
                release(handle, end)
                break
            log.warning("%s; %s; standing again", end.why_stopped, end.describe())
            with suppress(LockLostError, StoreError):
                handle.release()
    return end.exit_code()


def _campaign(locks: DistributedLock, signals: SignalQueue, name: str, metadata: Mapping[str, Any]) -> LockHandle:
    """Wait to be elected, through any outage."""
    while True:
        try:
            return locks.acquire(name, metadata=metadata, on_lost=lambda _: signals.wake())
        except (StoreError, LockAcquisitionError) as error:
            if isinstance(error, StoreError) and not error.transient:
                raise
            log.warning("%s; standing again", error)
        time.sleep(PAUSE)
