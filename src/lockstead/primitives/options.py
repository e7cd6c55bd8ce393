"""Options of what users call: values that need a check of their own, and keywords that there are not."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from lockstead.core.retry import RetryPolicy
from lockstead.errors import InvalidInputError, UnknownOptionError

_WORDS = {
    "ttl": (
        *("acquired_timeout", "auto_release", "auto_release_time", "default_ttl", "duration", "ex", "expire"),
        *("expire_in", "expires", "expiry", "lease", "lease_duration", "lease_time", "lifetime", "lock_timeout", "px"),
        *("stale_lock_timeout", "time_to_live"),
    ),
    "timeout": (
        *("acquire_timeout", "block_timeout", "blocking_timeout", "max_wait", "patience", "wait", "wait_for"),
        *("wait_time", "wait_timeout", "waiting_timeout"),
    ),
    "renew": ("auto_extend", "auto_renew", "auto_renewal", "autorenew", "keep_alive", "keepalive", "watchdog"),
    "reentrant": ("is_reentrant", "recursive", "rlock"),
    "max_hold": ("max_age", "max_duration", "max_lease"),
    "at_least": ("hold_at_least", "lock_at_least_for", "min_hold"),
    "at_most": ("hold_at_most", "lock_at_most_for"),
    "on_lost": ("callback", "lost_callback", "on_loss", "on_lock_lost"),
    "metadata": ("data", "info", "payload", "value"),
    "retry": (
        *("max_retries", "max_attempts", "num_tries", "retries", "retry_count", "retry_delay", "retry_policy"),
        *("retry_times", "tries"),
    ),
    "permits": ("capacity", "count", "limit", "max_concurrency", "max_leases", "n", "size", "slots"),
    "weight": ("amount", "permits_needed"),
    "per": ("interval", "period", "seconds", "window"),
    "burst": ("bucket_size", "max_burst"),
    "period": ("expire", "expires", "result_ttl", "ttl_of_result", "window"),
    "on_elected": ("on_acquired", "on_leader", "on_started_leading"),
    "key_prefix": ("namespace", "prefix"),
    "schema": ("table_schema",),
}
"""Our word, and the words of other libraries for it: redis-py, python-redis-lock, filelock, pottery, ShedLock …"""

_ADVICE = {
    "blocking": "blocking=False is try_acquire(…), blocking=True is what acquire(…) does; to wait for a while: timeout",
    "cancel_check": "cancel the task, or pass timeout",
    "check_interval": "a waiter is notified by the store and does not poll: leave it out",
    "fail_when_locked": "try_acquire(…) returns None if it is held",
    "host": "write a URL: DistributedLock('redis://user:password@host:port/0')",
    "id": "every acquisition has an owner id of its own, which other clients see as holder_id: leave it out",
    "is_singleton": "every guard of a name is the same lock: leave it out",
    "mode": "nothing is written to the file system: leave it out",
    "poll_interval": "a waiter is notified by the store and does not poll: leave it out",
    "poll_intervall": "a waiter is notified by the store and does not poll: leave it out",
    "raise_on_release_error": "the end of a block raises LockLostError if the lock was lost: leave it out",
    "signal_expire": "nothing is signalled through a key that expires: leave it out",
    "sleep": "a waiter is notified by the store and does not poll: leave it out",
    "sleep_interval": "a waiter is notified by the store and does not poll: leave it out",
    "strict": "leave it out; strict of a Redis store is an option of the client",
    "thread_local": "a handle belongs to no thread, and any thread may release it: leave it out",
    "token": "every acquisition has a fence and an owner id of its own: leave it out",
}
_CLIENT_ADVICE = {
    **dict.fromkeys(("host", "port", "password", "username", "db"), _ADVICE["host"]),
    **dict.fromkeys(
        ("backend", "client", "connection", "dsn", "engine", "masters", "redis", "redis_client", "uri", "url"),
        "pass it first, as store",
    ),
    "timeout": "it is an option of acquire() and lock(); for the lease duration: ttl",
}
_METHOD_ADVICE = {
    ("try_acquire", "timeout"): "it never waits; acquire(…, timeout=…) does",
    ("try_acquire", "blocking"): "it never waits; acquire(…) does",
    ("multi_lock", "reentrant"): "a multi-lock is not re-entrant: acquire it once, and pass the handle on",
    ("once", "at_least"): "at_least is for locks: a key of once is reserved for its period",
    ("once", "reentrant"): "reentrant is for locks: a key of once is not re-entrant",
    ("singleton", "timeout"): "a singleton never waits: a call while the name is held returns None",
    ("election", "timeout"): "it is an option of campaign(…) and lead(…)",
    ("rate_limiter", "timeout"): "it is an option of the limiter's acquire(…)",
}


def check_retry(retry: RetryPolicy) -> RetryPolicy:
    """Accept a policy only: a number of retries is `RetryPolicy(max_retries=…)`."""
    if isinstance(retry, RetryPolicy):
        return retry
    msg = f"retry must be a RetryPolicy, such as RetryPolicy(max_retries=3), got {retry!r:.80}"
    raise InvalidInputError(msg)


def unknown_option(method: Callable[..., Any], unknown: Mapping[str, Any]) -> UnknownOptionError:
    """Make the error for keywords that a method does not have, which names the right one or what to do instead."""
    parameters = inspect.signature(method).parameters.values()
    accepted = tuple(each.name for each in parameters if each.kind is each.KEYWORD_ONLY)
    positional = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD and each.name != "self"]
    title, option = method.__name__, next(iter(unknown))
    advice = _advice(title, option, (*accepted, *positional))
    if not advice:
        advice = f"it has {', '.join(accepted)}" if accepted else f"it takes {', '.join(positional)}"
    msg = f"{title}() has no option {option!r}: {advice}"
    return UnknownOptionError(msg, option=option, accepted=accepted)


def unknown_client_option(client: type, refusal: UnknownOptionError) -> UnknownOptionError:
    """Make the error for a keyword that neither a client nor its store has; the store has refused it."""
    accepted = ("ttl", "retry", *refusal.accepted)
    option = refusal.option
    advice = _CLIENT_ADVICE.get(option) or _advice(client.__name__, option, accepted) or str(refusal)
    msg = f"{client.__name__}() has no option {option!r}: {advice}"
    return UnknownOptionError(msg, option=option, accepted=accepted)


def _advice(title: str, option: str, accepted: Iterable[str]) -> str:
    meant = [ours for ours, theirs in _WORDS.items() if option in theirs]
    for word in (option, *meant):
        if (title, word) in _METHOD_ADVICE:
            return _METHOD_ADVICE[title, word]
    likely = [word for word in meant if word in accepted] or difflib.get_close_matches(option, accepted, 1)
    if option in _ADVICE:
        return _ADVICE[option]
    return f"did you mean {likely[0]!r}?" if likely else ""
