"""Judge the settings of a server, and the state of its lease table, for `lockstead doctor`."""

from __future__ import annotations

import time
from collections.abc import Iterator

from lockstead.core.model import Finding
from lockstead.stores.postgres.address import Address
from lockstead.stores.postgres.libpq import Row
from lockstead.stores.postgres.table.schema import VERSION

MAX_NOTIFY_QUEUE_USAGE = 0.5
"""The used part of the NOTIFY queue from which on the functions add nothing to it: see line_settle."""
MAX_CLOCK_SKEW = 1.0
"""Seconds between the clocks of the server and of this machine from which on `doctor` warns."""


def findings(address: Address, answer: Row, *, cannot_listen: bool) -> Iterator[Finding]:
    """Judge the answer to the statement `examine`."""
    subject = str(address)
    version, is_standby, clock, schema, fsync, full_pages, commit, isolation, queued, unsafe, unlogged = (
        "" if value is None else value.decode() for value in answer
    )
    role = "standby" if is_standby == "t" else "primary"
    yield Finding("ok", subject, f"PostgreSQL {version}, {role}, lease table of version {schema or 'unknown'}")
    if is_standby == "t":
        msg = "this is a standby, which grants no lock: name all servers, and add target_session_attrs=read-write"
        yield Finding("error", subject, msg)
    if unlogged:
        msg = f"a crash empties UNLOGGED tables, and then two clients hold: ALTER TABLE … SET LOGGED for {unlogged}"
        yield Finding("error", subject, msg)
    yield from _outdated(address, int(schema or 0), unsafe)
    for setting, value in (("fsync", fsync), ("full_page_writes", full_pages)):
        if value == "off":
            msg = f"{setting}=off: after a crash, locks may be gone, or held again: set it on"
            yield Finding("error", subject, msg)
    if commit == "off":
        msg = "synchronous_commit=off: a crash may undo the newest grants: set it on for this role"
        yield Finding("warning", subject, msg)
    if isolation != "read committed":
        msg = f"default_transaction_isolation={isolation}: no lock is granted: set it to read committed for this role"
        yield Finding("error", subject, msg)
    yield from _congestion(subject, float(queued))
    if abs(ahead := float(clock) - time.time()) > MAX_CLOCK_SKEW:
        yield Finding("warning", subject, f"its clock is {ahead:+.1f} s off this machine's: synchronise both with NTP")
    if cannot_listen:
        msg = (
            "there is a pooler before it, and LISTEN receives nothing through one that pools transactions, so that "
            "waiters poll: name the server itself with listen=postgresql://…, or declare with pooler=session that it "
            "pools sessions"
        )
        yield Finding("warning", subject, msg)


def _congestion(subject: str, queued: float) -> Iterator[Finding]:
    if queued >= MAX_NOTIFY_QUEUE_USAGE:
        msg = (
            f"its NOTIFY queue is {queued:.0%} full, so that waiters poll: end the session that listens in a "
            "transaction that stays open (the server's log names it)"
        )
        yield Finding("warning", subject, msg)


def _outdated(address: Address, schema: int, unsafe: str) -> Iterator[Finding]:
    if schema > VERSION:
        msg = f"its lease table is of version {schema}, newer than this lockstead's {VERSION}: upgrade lockstead"
        yield Finding("error", str(address), msg)
    elif schema < VERSION:
        yield Finding("error", str(address), address.if_missing)
    elif unsafe:
        msg = (
            "these functions use the search_path of their caller, in which another role may have created objects that "
            f"they would run: run `lockstead migrate` ({unsafe})"
        )
        yield Finding("error", str(address), msg)
