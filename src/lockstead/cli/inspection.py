"""`lockstead ls`, `show` and `release`: list the locks held, describe one, release one by force."""

from __future__ import annotations

import json
import shutil
import sys
from argparse import Namespace
from collections.abc import Sequence
from datetime import UTC, datetime

from lockstead.cli.client import open_client
from lockstead.cli.outcome import Exit, Failure
from lockstead.cli.text import BOLD, format_duration, format_metadata, format_table, styled, takes_colour
from lockstead.core.model import WHOLE
from lockstead.core.quoting import escaped
from lockstead.primitives.info import Holder, LockInfo

COLUMNS = ("NAME", "HOLDER", "FENCE", "SINCE", "EXPIRES IN", "WAITING", "METADATA")
SESSION_COLUMNS = ("PID", "APPLICATION", "ADDRESS")
"""Only if the store reports the connections of its holders, as PostgreSQL does."""
SHARE_COLUMN = ("HOLDS",)
"""Only if something other than a plain lock is held, or a name is reserved."""
SHRINKABLE = (COLUMNS.index("METADATA"), COLUMNS.index("HOLDER"), COLUMNS.index("NAME"))
DROPPABLE = (COLUMNS.index("METADATA"), COLUMNS.index("FENCE"))
"""What `show` and --json show too; the name of a lock is cut only where nothing else is left to cut."""


def ls(arguments: Namespace) -> int:
    """List the locks that are held, and the records that cannot be read."""
    with open_client(arguments.url) as locks:
        found = locks.inspect(arguments.prefix)
    held = [(info, holder) for info in found for holder in info.holders]
    damages = [info for info in found if info.damage is not None]
    if arguments.json:
        print(json.dumps([info.as_json() for info in found], indent=2))
    elif held:
        _print_table(held)
    elif not damages:
        print(f"nothing is locked under {arguments.prefix!r}" if arguments.prefix else "nothing is locked")
    if not damages:
        return 0
    if not arguments.json:
        for info in damages:
            print(f"lockstead: {escaped(info.damage or '')}", file=sys.stderr)
    return Exit.DAMAGED


def _print_table(held: Sequence[tuple[LockInfo, Holder]]) -> None:
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    rows = [COLUMNS, *(_row(info, holder) for info, holder in held)]
    if any(_share(info, holder) for info, holder in held):
        shares = [SHARE_COLUMN, *((_share(info, holder) or "all",) for info, holder in held)]
        rows = [(*row, *more) for row, more in zip(rows, shares, strict=True)]
    if any(holder.session for _, holder in held):
        sessions = [SESSION_COLUMNS, *(_session(holder) for _, holder in held)]
        rows = [(*row, *more) for row, more in zip(rows, sessions, strict=True)]
    header, *lines = format_table(rows, width=width, shrinkable=SHRINKABLE, droppable=DROPPABLE)
    print(styled(header, BOLD, wanted=takes_colour(sys.stdout)))
    for line in lines:
        print(line)


def show(arguments: Namespace) -> int:
    """Describe the holders of one lock."""
    with open_client(arguments.url) as locks:
        info = locks.info(arguments.name)
    if info is None:
        raise _free(arguments.name)
    if arguments.json:
        print(json.dumps(info.as_json(), indent=2))
    else:
        lines = [("name", info.name)]
        for holder in info.holders:
            share = _share(info, holder)
            lines += [
                ("holder", holder.holder_id),
                *([("holds", share)] if share else []),
                ("fence", _fence(holder)),
                ("since", f"{_local_time(holder.acquired_at)} ({format_duration(held_for(holder))} ago)"),
                ("expires", _expiry(holder)),
                ("metadata", format_metadata(holder.metadata) or "none"),
                *([("session", "pid {} of {!r} from {}".format(*_session(holder)))] if holder.session else []),
            ]
        damage = [] if info.damage is None else [("damage", info.damage)]
        for key, value in (*lines, ("waiting", str(info.waiting)), *damage):
            print(f"{key:<9} {escaped(value)}")
    return 0 if info.damage is None else Exit.DAMAGED


def release(arguments: Namespace) -> int:
    """Release a lock on its holder's behalf."""
    name = arguments.name
    if not arguments.force:
        with open_client(arguments.url) as locks:
            raise _unforced(name, locks.info(name))
    with open_client(arguments.url) as locks:
        info = locks.force_release(name)
    if info is None:
        raise _free(name)
    if arguments.json:
        print(json.dumps(info.as_json(), indent=2))
    else:
        for holder in info.holders:
            print(f"released {info.name!r}, {past(holder)} (fence {_fence(holder)})")
        if info.damage is not None:
            print(f"removed a record that could not be read: {escaped(info.damage)}")
        if not all(holder.reserved for holder in info.holders):
            print("a holder that is still running notices the loss at its next renewal")
    return 0


def _unforced(name: str, info: LockInfo | None) -> Failure:
    """Name the holders, and explain what --force does to them."""
    if info is None:
        return _free(name)
    holders = ", ".join(f"{past(holder)} (fence {_fence(holder)})" for holder in info.holders) or "held by no client"
    msg = (
        f"{name!r} is {holders}. This takes it away and grants it to the next waiter. A holder notices only at its "
        "next renewal: until then both clients work, and only their fences distinguish them. Make sure that the holder "
        "is gone, then repeat the command with --force"
    )
    return Failure(Exit.BAD_INPUT, msg, name=name, holder=info.as_json())


def held_for(holder: LockInfo | Holder) -> float:
    return (datetime.now(UTC) - holder.acquired_at).total_seconds()


def _left(holder: Holder) -> str:
    if holder.expires_at is None:
        return "with its session"
    return format_duration((holder.expires_at - datetime.now(UTC)).total_seconds())


def _expiry(holder: Holder) -> str:
    if holder.expires_at is None:
        return _left(holder)
    unless = "" if holder.reserved else " unless renewed"
    return f"{_local_time(holder.expires_at)} (in {_left(holder)}{unless})"


def _fence(holder: LockInfo | Holder) -> str:
    return str(holder.fence) if holder.fence else "-"


def _share(info: LockInfo, holder: Holder) -> str:
    """Say how a name is held: reserved, shared, as a number of permits, or "" for a plain lock."""
    if holder.reserved:
        return "reserved"
    if info.capacity == WHOLE:
        return "read" if holder.weight < WHOLE else "write"
    return "" if info.capacity == 1 else f"{holder.weight} of {info.capacity}"


def _row(info: LockInfo, holder: Holder) -> tuple[str, ...]:
    return (
        info.name,
        holder.holder_id,
        _fence(holder),
        f"{format_duration(held_for(holder))} ago",
        _left(holder),
        str(info.waiting),
        format_metadata(holder.metadata),
    )


def _session(holder: Holder) -> tuple[str, str, str]:
    if holder.session is None:
        return "-", "-", "-"
    return str(holder.session.pid), holder.session.application or "-", holder.session.address or "local"


def past(holder: Holder) -> str:
    """Say which client holds or reserves a name, and since when."""
    holder_id = escaped(holder.holder_id)
    if holder.reserved:
        return f"reserved by {holder_id} for another {_left(holder)}"
    return f"held by {holder_id} for {format_duration(held_for(holder))}"


def _local_time(moment: datetime) -> str:
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _free(name: str) -> Failure:
    return Failure(Exit.FREE, f"{name!r} is free", name=name)
