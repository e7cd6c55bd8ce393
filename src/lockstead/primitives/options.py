"""The options of the methods that acquire locks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypedDict

from lockstead.core.checks import Seconds
from lockstead.core.retry import RetryPolicy


class TryOptions(TypedDict, total=False):
    """How to take a lock."""

    ttl: Seconds
    """The lease's life; renewed while it is held. The client's default if not given."""
    metadata: Mapping[str, Any] | None
    """JSON shown to whoever inspects the lock."""
    max_hold: Seconds | None
    """Stop renewing this long after the grant, so that a stuck holder does not hold for ever."""
    at_least: Seconds
    """Leave the name taken until this long after the grant, however early it is released."""
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
