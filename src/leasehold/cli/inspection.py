"""`leasehold ls`, `show` and `release`: who holds what, and how to take it away."""

from __future__ import annotations

import json
import shutil
import sys
from argparse import Namespace
from datetime import UTC, datetime

from leasehold._info import LockInfo
from leasehold.cli.client import open_client
from leasehold.cli.outcome import Exit, Failure
from leasehold.cli.text import BOLD, humane, painted, pairs, table, takes_colour, visible

COLUMNS = ("NAME", "HOLDER", "FENCE", "SINCE", "EXPIRES IN", "WAITING", "METADATA")
SESSION_COLUMNS = ("PID", "APPLICATION", "ADDRESS")
"""Only where the store knows the connections its locks came by."""
SHRINKABLE = (COLUMNS.index("NAME"), COLUMNS.index("HOLDER"), COLUMNS.index("METADATA"))


def ls(arguments: Namespace) -> int:
    """List the locks that are held."""
    with open_client(arguments.url) as locks:
        found = locks.inspect(arguments.prefix)
    if arguments.json:
        print(json.dumps([info.as_json() for info in found], indent=2))
    elif not found:
        print(f"nothing is locked under {arguments.prefix!r}" if arguments.prefix else "nothing is locked")
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        rows = [COLUMNS, *map(_row, found)]
        if any(info.session for info in found):
            rows = [(*row, *more) for row, more in zip(rows, [SESSION_COLUMNS, *map(_session, found)], strict=True)]
        header, *lines = table(rows, width=width, shrinkable=SHRINKABLE)
        print(painted(header, BOLD, wanted=takes_colour(sys.stdout)))
        for line in lines:
            print(line)
    return 0


def show(arguments: Namespace) -> int:
    """Tell who holds one lock."""
    with open_client(arguments.url) as locks:
        info = locks.info(arguments.name)
    if info is None:
        raise _free(arguments.name)
    if arguments.json:
        print(json.dumps(info.as_json(), indent=2))
    else:
        for key, value in (
            ("name", info.name),
            ("holder", info.holder_id),
            ("fence", _fence(info)),
            ("since", f"{_moment(info.acquired_at)} ({humane(held_for(info))} ago)"),
            ("expires", _expiry(info)),
            ("waiting", str(info.waiting)),
            ("metadata", pairs(info.metadata) or "none"),
            *([("session", "pid {} of {!r} from {}".format(*_session(info)))] if info.session else []),
        ):
            print(f"{key:<9} {visible(value)}")
    return 0


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
        print(
            f"took {info.name!r} from {visible(info.holder_id)}, who held it for {humane(held_for(info))} "
            f"(fence {_fence(info)}); if alive, that one learns of it at its next renewal"
        )
    return 0


def held_for(info: LockInfo) -> float:
    return (datetime.now(UTC) - info.acquired_at).total_seconds()


def _left(info: LockInfo) -> str:
    if info.expires_at is None:
        return "with its session"
    return humane((info.expires_at - datetime.now(UTC)).total_seconds())


def _expiry(info: LockInfo) -> str:
    if info.expires_at is None:
        return _left(info)
    return f"{_moment(info.expires_at)} (in {_left(info)} unless renewed)"


def _fence(info: LockInfo) -> str:
    return str(info.fence) if info.fence else "-"


def _row(info: LockInfo) -> tuple[str, ...]:
    return (
        info.name,
        info.holder_id,
        _fence(info),
        f"{humane(held_for(info))} ago",
        _left(info),
        str(info.waiting),
        pairs(info.metadata),
    )


def _session(info: LockInfo) -> tuple[str, str, str]:
    if info.session is None:
        return "-", "-", "-"
    return str(info.session.pid), info.session.application or "-", info.session.address or "local"


def _moment(moment: datetime) -> str:
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _free(name: str) -> Failure:
    return Failure(Exit.FREE, f"{name!r} is free", name=name)
