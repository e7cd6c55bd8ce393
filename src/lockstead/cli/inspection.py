"""`lockstead ls`, `show` and `release`: who holds what, and how to take it away."""

from __future__ import annotations

import json
import shutil
import sys
from argparse import Namespace
from collections.abc import Sequence
from datetime import UTC, datetime

from lockstead.cli.client import open_client
from lockstead.cli.outcome import Exit, Failure
from lockstead.cli.text import BOLD, escaped, format_duration, pairs, styled, table, takes_colour
from lockstead.core.model import WHOLE
from lockstead.primitives.info import Holder, LockInfo

COLUMNS = ("NAME", "HOLDER", "FENCE", "SINCE", "EXPIRES IN", "WAITING", "METADATA")
SESSION_COLUMNS = ("PID", "APPLICATION", "ADDRESS")
"""Only where the store knows the connections its locks came by."""
SHARE_COLUMN = ("HOLDS",)
"""Only where something else than a lock is held, or left taken."""
SHRINKABLE = (COLUMNS.index("NAME"), COLUMNS.index("HOLDER"), COLUMNS.index("METADATA"))


def ls(arguments: Namespace) -> int:
    """List the locks that are held, and what cannot be read."""
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
    header, *lines = table(rows, width=width, shrinkable=SHRINKABLE)
    print(styled(header, BOLD, wanted=takes_colour(sys.stdout)))
    for line in lines:
        print(line)


def show(arguments: Namespace) -> int:
    """Tell who holds one lock."""
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
                ("since", f"{_moment(holder.acquired_at)} ({format_duration(held_for(holder))} ago)"),
                ("expires", _expiry(holder)),
                ("metadata", pairs(holder.metadata) or "none"),
                *([("session", "pid {} of {!r} from {}".format(*_session(holder)))] if holder.session else []),
            ]
        damage = [] if info.damage is None else [("damage", info.damage)]
        for key, value in (*lines, ("waiting", str(info.waiting)), *damage):
            print(f"{key:<9} {escaped(value)}")
    return 0 if info.damage is None else Exit.DAMAGED


def release(arguments: Namespace) -> int:
    """Take a lock away from its holder."""
    name = arguments.name
    if not arguments.force:
        msg = (
            f"this takes {name!r} away from whoever holds it and gives it to the next in line. The holder learns of "
            "it only at its next renewal: until then both work, and only a fence can tell them apart. Be sure that "
            "the holder is gone, then repeat it with --force"
        )
        raise Failure(Exit.BAD_INPUT, msg, name=name)
    with open_client(arguments.url) as locks:
        info = locks.force_release(name)
    if info is None:
        raise _free(name)
    if arguments.json:
        print(json.dumps(info.as_json(), indent=2))
    else:
        for holder in info.holders:
            print(f"took {info.name!r} from {escaped(holder.holder_id)}, who {_past(holder)} (fence {_fence(holder)})")
        if info.damage is not None:
            print(f"cleared what could not be read: {escaped(info.damage)}")
        if not all(holder.reserved for holder in info.holders):
            print("whoever of them is alive learns of it at the next renewal")
    return 0


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
    return f"{_moment(holder.expires_at)} (in {_left(holder)}{unless})"


def _fence(holder: LockInfo | Holder) -> str:
    return str(holder.fence) if holder.fence else "-"


def _share(info: LockInfo, holder: Holder) -> str:
    """Tell what somebody holds of a name, if not simply a lock."""
    if holder.reserved:
        return "left taken"
    if info.capacity == WHOLE:
        return "reads" if holder.weight < WHOLE else "writes"
    return "" if info.capacity == 1 else f"{holder.weight} of {info.capacity}"


def _row(info: LockInfo, holder: Holder) -> tuple[str, ...]:
    return (
        info.name,
        holder.holder_id,
        _fence(holder),
        f"{format_duration(held_for(holder))} ago",
        _left(holder),
        str(info.waiting),
        pairs(holder.metadata),
    )


def _session(holder: Holder) -> tuple[str, str, str]:
    if holder.session is None:
        return "-", "-", "-"
    return str(holder.session.pid), holder.session.application or "-", holder.session.address or "local"


def _past(holder: Holder) -> str:
    if holder.reserved:
        return f"was done with it, and had left it taken for another {_left(holder)}"
    return f"held it for {format_duration(held_for(holder))}"


def _moment(moment: datetime) -> str:
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _free(name: str) -> Failure:
    return Failure(Exit.FREE, f"{name!r} is free", name=name)
