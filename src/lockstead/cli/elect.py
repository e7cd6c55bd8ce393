"""`lockstead elect NAME -- CMD`: run a command on the leader of many machines, and on another when that one fails."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from lockstead.blocking import DistributedLock, LockHandle
from lockstead.cli.client import open_client
from lockstead.cli.parser import parse_metadata
from lockstead.cli.signals import Interruption, SignalQueue
from lockstead.cli.supervisor import Supervisor, ended_by, log, release, resolve_grace
from lockstead.cli.waiting import announce
from lockstead.errors import LockAcquisitionError, LockLostError, StoreError

RETRY_DELAY = 1.0
"""Seconds to wait before the next campaign when the store did not answer."""


def elect(arguments: Namespace) -> int:
    """Campaign, run the command while leading, campaign again if leadership is lost; return the code to exit with."""
    grace = resolve_grace(arguments.grace, arguments.ttl)
    metadata = parse_metadata(arguments.metadata)
    with SignalQueue() as signals, open_client(arguments.url, arguments.ttl) as locks:
        locks.info(arguments.name)  # a store unreachable at the start is an error to report, not an outage to wait out
        while True:
            try:
                with signals.raised():
                    if not arguments.json:
                        announce(locks, arguments.name, "to lead")
                    handle = _campaign(locks, signals, arguments.name, metadata)
            except Interruption as interruption:
                return ended_by(interruption)
            try:
                end = Supervisor(handle, signals, grace, arguments.ttl, None).run(arguments.command_line)
            except LockLostError as error:
                log.warning("%s; campaigning again", error)
                continue
            if not end.why_stopped or end.was_signalled_to_end:
                release(handle, end)
                break
            log.warning("%s; %s; campaigning again", end.why_stopped, end.describe())
            with suppress(LockLostError, StoreError):
                handle.release()
    return end.exit_code()


def _campaign(locks: DistributedLock, signals: SignalQueue, name: str, metadata: Mapping[str, Any]) -> LockHandle:
    """Wait until elected, through any outage of the store."""
    while True:
        try:
            return locks.acquire(name, metadata=metadata, on_lost=lambda _: signals.wake())
        except (StoreError, LockAcquisitionError) as error:
            if isinstance(error, StoreError) and not error.transient:
                raise
            log.warning("%s; campaigning for %r again in %g s", error, name, RETRY_DELAY)
        time.sleep(RETRY_DELAY)
