"""What each primitive asks of the line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from typing import Any, NamedTuple, TypedDict

from leasehold._input import Seconds, check_name, check_seconds, check_ttl, encode_metadata
from leasehold._model import Ask
from leasehold._retry import RetryPolicy

HEARTBEAT = 3.0
"""How long a waiting place outlives its client. A dead waiter holds the line up for that long, not for a ttl."""


class TryOptions(TypedDict, total=False):
    """How to take a lock."""

    ttl: Seconds
    """The lease's life; renewed while it is held. The client's default if not given."""
    metadata: Mapping[str, Any] | None
    """JSON shown to whoever inspects the lock."""
    max_hold: Seconds | None
    """Stop renewing this long after the grant, so that a stuck holder does not hold for ever."""
    renew: bool
    """Renew while held (the default), or let the lease end after one ttl unless extended by hand."""
    reentrant: bool
    """Let the same thread or task acquire the name again, through this client, without waiting for itself."""
    on_lost: Callable[[Any], Any] | None
    """Called once with the handle, in a thread or task of its own, if the lease is lost."""
    retry: RetryPolicy
    """What to do when the store does not answer. The client's default if not given."""


class LockOptions(TryOptions, total=False):
    """How to take a lock, and how long to wait for it."""

    timeout: Seconds | None
    """The caller's patience; None, the default, waits for as long as it takes, and 0 does not wait."""


class Defaults(NamedTuple):
    ttl: float
    retry: RetryPolicy


class Plan(NamedTuple):
    """A checked request for the engine."""

    ask: Ask
    timeout: float
    renew_for: float
    retry: RetryPolicy
    reentrant: bool
    on_lost: Callable[[Any], Any] | None


def exclusive(
    name: str,
    defaults: Defaults,
    *,
    ttl: Seconds | None = None,
    timeout: Seconds | None = None,
    metadata: Mapping[str, Any] | None = None,
    max_hold: Seconds | None = None,
    renew: bool = True,
    reentrant: bool = False,
    on_lost: Callable[[Any], Any] | None = None,
    retry: RetryPolicy | None = None,
) -> Plan:
    """Ask for the whole of a line of capacity one. Raises InvalidInputError."""
    life = defaults.ttl if ttl is None else check_ttl(ttl)
    patience = inf if timeout is None else check_seconds(timeout, "timeout")
    renew_for = inf if renew else 0.0
    if max_hold is not None:
        longest = check_ttl(max_hold, "max_hold")
        life = min(life, longest)
        renew_for = min(renew_for, longest)
    ask = Ask(check_name(name), "", life, min(life, HEARTBEAT), 1, 1, patience > 0, encode_metadata(metadata))
    return Plan(ask, patience, renew_for, retry or defaults.retry, reentrant, on_lost)
