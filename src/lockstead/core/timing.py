"""The protocol's durations, in seconds, and the arithmetic of trust windows."""

from __future__ import annotations

from lockstead.core.retry import RetryPolicy

HEARTBEAT = 3.0
"""How long a waiting place outlives its client: a dead waiter delays the line for that long, not for a ttl. On SQLite
on Linux its place is removed at once."""

REQUEST_TIMEOUT = 5.0
"""How long one request may take before its outcome counts as unknown."""
MIN_REQUEST_TIMEOUT = 0.25
"""The shortest timeout of a request, even if its caller has less time left: a known outcome is worth the delay."""
INSPECTION_TIMEOUT = 5.0
"""How long a store may take for each request of an inspection, examination, repair or sweep: the caller gives these no
timeout."""
LATE_REQUEST_WINDOW = 30.0
"""How long a request whose outcome is unknown may still arrive, say from the buffers of a server that was stopped."""

EXTEND_RETRY_DELAYS = (0.005, 0.02, 0.1)
"""The pauses before each retry of an extension whose outcome is unknown."""
POLLING = RetryPolicy(retry_delay=0.005, max_delay=0.1)
"""How often a waiter polls a store that does not wake it."""
CLEANUP_BUDGET = 0.5
"""How long undoing a multi-lock that was not acquired may block the caller; the keeper releases the rest."""

BATCH = 500
"""How many renewals go into one request (a number, not a duration): a server runs nothing else meanwhile."""
RENEWAL_TIMEOUT_SHARE = 1 / 6
"""The part of a lease's duration that a request of the renewal loop may take: two more fit into the trust window."""
KEEPER_IDLE_TIMEOUT = 2.0
"""How long the renewal loop keeps running with no lease to keep."""
MAX_IDLE_SLEEP = 1.0
MIN_IDLE_SLEEP = 0.1
"""With no lease to keep, the loop sleeps for as long as recent leases would have let it: so a series of short holds
does not wake it once for each."""
KEEPER_RESTART_DELAY = 0.1
"""The pause before the renewal loop runs again after it failed or was cancelled."""
CLOCK_STEP_THRESHOLD = 0.25
"""How far the store's clock may get ahead of ours, or behind it, between two renewals before a step is logged."""

# Shares of a ttl or of a heartbeat, by which each lease sets its own due times.
RENEW_AHEAD, RENEW_JITTER = 0.6, 0.1
"""A held lease is renewed when these shares of its ttl are left: after about a third of it. The jitter differs between
clients, so that they do not renew in step."""
BEAT_AFTER, BEAT_JITTER = 0.27, 0.06
"""A waiting place is renewed after about a third of its heartbeat."""
SLACK = 1 / 12
"""A lease that is due within this share of its duration is renewed along with one that is due now."""
RETRY_AFTER = 1 / 10
"""The share of the heartbeat after which a request whose outcome is unknown is repeated."""
CLAIM_AHEAD = 1 / 3
"""The share of the heartbeat that must be left to accept a pushed grant: its ttl is claimed within that time."""


DRIFT = 0.01
"""How much faster or slower than ours the store's clock may run."""
MAX_SIGNAL_DELAY = 0.01
"""How late a loss may be signalled: twice as long as a busy thread may keep the interpreter, by its switch interval."""


def margin(duration: float) -> float:
    """Bound the drift between our clock and the store's over a duration, plus how late a loss may be signalled."""
    return DRIFT * duration + MAX_SIGNAL_DELAY


def request_timeout(left: float) -> float:
    """Return how long one request may take whose caller has that much time left."""
    return REQUEST_TIMEOUT if left >= REQUEST_TIMEOUT else max(left, MIN_REQUEST_TIMEOUT)
