"""The options of the methods that acquire locks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypedDict

from lockstead.core.checks import Seconds
from lockstead.core.retry import RetryPolicy


class TryOptions(TypedDict, total=False):
    """Options for acquiring a lock without waiting."""

    ttl: Seconds
    """How long the lock stays held if this process dies: while it runs, the lease is renewed in the background. The
    client's default if not given."""
    metadata: Mapping[str, Any] | None
    """A JSON object, of up to 4096 bytes, that `info`, `inspect` and `lockstead ls` show."""
    max_hold: Seconds | None
    """Stop renewing this long after the grant, so that a stuck holder does not hold for ever. None: no limit."""
    at_least: Seconds
    """Keep the name reserved until at least this long after the grant, however early it is released."""
    renew: bool
    """Renew while held (the default); False: the lease expires after one ttl unless you call `extend`."""
    reentrant: bool
    """Let the same thread or task acquire the name again, through this client, without waiting for itself."""
    on_lost: Callable[[Any], Any] | None
    """Called once with the handle, in a thread or task of its own, if the lock is lost."""
    retry: RetryPolicy
    """How to retry when the store does not answer. The client's default if not given."""


class LockOptions(TryOptions, total=False):
    """Options for acquiring a lock, with how long to wait for it."""

    timeout: Seconds | None
    """How long to wait; None, the default, waits without limit, 0 does not wait."""
