"""What a server tells of itself that matters to locks."""

from __future__ import annotations

import time
from collections.abc import Iterator

from lockstead.core.model import Finding
from lockstead.stores.postgres.address import Address
from lockstead.stores.postgres.libpq import Row
from lockstead.stores.postgres.table.schema import VERSION

MAX_NOTIFY_QUEUE_USAGE = 0.5
"""The part of the NOTIFY queue above which the functions do not add to it: see line_settle."""
SKEW = 1.0
"""Seconds between a server's clock and ours that are worth a word."""

QUESTION = """\
SELECT
    pg_catalog.current_setting('server_version'), pg_catalog.pg_is_in_recovery(),
    extract(epoch FROM pg_catalog.clock_timestamp()), s.version,
    pg_catalog.current_setting('fsync'), pg_catalog.current_setting('full_page_writes'),
    pg_catalog.current_setting('synchronous_commit'), pg_catalog.current_setting('transaction_isolation'),
    pg_catalog.pg_notification_queue_usage(),
    (
        SELECT pg_catalog.string_agg(p.proname, ', ' ORDER BY p.proname)
        FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) p.pronamespace
        WHERE n.nspname OPERATOR(pg_catalog.=) $1 AND p.prosqlbody IS NULL AND NOT EXISTS (
            SELECT FROM pg_catalog.unnest(p.proconfig) AS c (setting)
            WHERE pg_catalog.starts_with(c.setting, 'search_path=')
        )
    ),
    (
        SELECT pg_catalog.string_agg(c.relname, ', ' ORDER BY c.relname)
        FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
        WHERE n.nspname OPERATOR(pg_catalog.=) $1 AND c.relkind OPERATOR(pg_catalog.=) 'r'
            AND c.relpersistence OPERATOR(pg_catalog.=) 'u'
    )
FROM (SELECT) one LEFT JOIN {schema}.lock_state s ON true"""


def findings(address: Address, answer: Row, *, cannot_listen: bool) -> Iterator[Finding]:
    """Judge the answer to `QUESTION`."""
    subject = str(address)
    version, is_standby, clock, schema, fsync, full_pages, commit, isolation, queued, unsafe, unlogged = (
        "" if value is None else value.decode() for value in answer
    )
    role = "standby" if is_standby == "t" else "primary"
    yield Finding("ok", subject, f"PostgreSQL {version}, {role}, lease table of version {schema or 'unknown'}")
    if is_standby == "t":
        msg = "this is a standby, which grants nothing: name all servers, and add target_session_attrs=read-write"
        yield Finding("error", subject, msg)
    if unlogged:
        msg = f"a crash empties what is UNLOGGED, and then two hold: ALTER TABLE … SET LOGGED for {unlogged}"
        yield Finding("error", subject, msg)
    yield from _outdated(address, int(schema or 0), unsafe)
    for setting, value in (("fsync", fsync), ("full_page_writes", full_pages)):
        if value == "off":
            msg = f"{setting}=off: after a crash, locks may be gone or come back: set it on"
            yield Finding("error", subject, msg)
    if commit == "off":
        msg = "synchronous_commit=off: a crash may take back the newest grants: set it on for this role"
        yield Finding("warning", subject, msg)
    if isolation != "read committed":
        msg = f"default_transaction_isolation={isolation}: no lock is granted: set it to read committed for this role"
        yield Finding("error", subject, msg)
    yield from _congestion(subject, float(queued))
    if abs(ahead := float(clock) - time.time()) > SKEW:
        yield Finding("warning", subject, f"its clock is {ahead:+.1f} s off this machine's")
    if cannot_listen:
        msg = (
            "a pooler stands before it, and LISTEN hears nothing through one that pools transactions, so that waiters "
            "ask again and again: name the server itself with listen=postgresql://…, or vouch with pooler=session "
            "that it pools sessions"
        )
        yield Finding("warning", subject, msg)


def _congestion(subject: str, queued: float) -> Iterator[Finding]:
    if queued >= MAX_NOTIFY_QUEUE_USAGE:
        msg = (
            f"its NOTIFY queue is {queued:.0%} full, so that waiters ask again and again: end the session that listens "
            "in a transaction that stays open (the server's log names it)"
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
            f"these functions use the search_path of their caller, in which another role may have planted something: "
            f"run `lockstead migrate` ({unsafe})"
        )
        yield Finding("error", str(address), msg)
