"""`lockstead run NAME -- CMD`: hold a lock while a command runs."""

from __future__ import annotations

from argparse import Namespace
from math import inf

from lockstead.blocking import DistributedLock
from lockstead.cli.client import open_client
from lockstead.cli.inspection import held_for
from lockstead.cli.outcome import Exit, Failure
from lockstead.cli.parser import parse_metadata
from lockstead.cli.signals import Interruption, SignalQueue
from lockstead.cli.supervisor import Supervisor, ended_by, release, resolve_grace
from lockstead.cli.text import format_duration
from lockstead.cli.waiting import announce
from lockstead.errors import LockAcquisitionError, StoreError


def run(arguments: Namespace) -> int:
    """Acquire, run the command, release; return the code to exit with."""
    ttl = min(arguments.ttl, inf if arguments.max_hold is None else arguments.max_hold)
    grace = resolve_grace(arguments.grace, ttl)
    metadata = parse_metadata(arguments.metadata)
    with SignalQueue() as signals, open_client(arguments.url, arguments.ttl) as locks:
        try:
            with signals.raised():
                if arguments.timeout != 0 and not arguments.json:
                    announce(locks, arguments.name, "for")
                handle = locks.acquire(
                    arguments.name,
                    timeout=arguments.timeout,
                    metadata=metadata,
                    max_hold=arguments.max_hold,
                    at_least=arguments.at_least,
                    on_lost=lambda _: signals.wake(),
                )
        except Interruption as interruption:
            return ended_by(interruption)
        except LockAcquisitionError as error:
            raise _busy(locks, error) from error
        end = Supervisor(handle, signals, grace, ttl, arguments.max_hold).run(arguments.command_line)
        release(handle, end)
    return end.exit_code()


def _busy(locks: DistributedLock, error: LockAcquisitionError) -> Failure:
    """Add to a refusal what an inspection says about the holder."""
    try:
        info = locks.info(error.name)
    except StoreError:
        info = None
    message, action, rest = str(error).partition("; raise ")
    if info is not None and info.holder_id == error.holder and not info.holders[0].reserved:
        message += f", for {format_duration(held_for(info))} now"
        if info.waiting:
            message += f", with {info.waiting} waiting"
    return Failure(Exit.BUSY, f"{message}{action}{rest}", name=error.name, holder=info and info.as_json())
