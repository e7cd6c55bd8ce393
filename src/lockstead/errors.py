"""The errors that lockstead raises.

All errors carry the lock's name where there is one, and all survive pickling: attributes live in
``__dict__`` and every constructor accepts the bare message.
"""

from __future__ import annotations

__all__ = [
    "CapacityMismatchError",
    "ClosedError",
    "DamagedError",
    "InvalidInputError",
    "InvalidLockError",
    "LockAcquisitionError",
    "LockError",
    "LockLostError",
    "NestedCallError",
    "RateLimitError",
    "StaleFenceError",
    "StoreError",
    "UnknownOptionError",
    "UnsupportedError",
]


class LockError(Exception):
    """The root of every error lockstead raises."""

    def __init__(self, message: str, *, name: str = "") -> None:
        super().__init__(message)
        self.name = name


class LockAcquisitionError(LockError, TimeoutError):
    """The lock could not be acquired within `timeout`; no place is left in the queue.

    ``attempts``: how often a place was requested. ``waited``: for how many seconds. ``holder``: the client that holds
    the lock, as `host:pid:random`, if known.
    """

    def __init__(
        self,
        message: str,
        *,
        name: str = "",
        attempts: int = 0,
        waited: float = 0.0,
        holder: str = "",
    ) -> None:
        super().__init__(message, name=name)
        self.attempts = attempts
        self.waited = waited
        self.holder = holder


class InvalidLockError(LockError):
    """The handle does not hold its lock: it was released or lost, or belongs to the parent process of a fork."""


class LockLostError(InvalidLockError):
    """The lease ended before it was released; the lock may have another holder by now.

    ``reason``: why, as text.
    """

    def __init__(self, message: str, *, name: str = "", reason: str = "") -> None:
        super().__init__(message, name=name)
        self.reason = reason


class RateLimitError(LockError, TimeoutError):
    """A rate limit would not allow the request within `timeout`; nothing was consumed.

    ``retry_after``: seconds until it would be allowed, if no other client makes a request meanwhile.
    """

    def __init__(self, message: str, *, name: str = "", retry_after: float = 0.0) -> None:
        super().__init__(message, name=name)
        self.retry_after = retry_after


class StoreError(LockError):
    """A request to the store failed; the driver's exception is the ``__cause__``.

    ``transient``: there was no answer. The request may be applied all the same, even later, and may succeed if
    retried. Otherwise the store refused it: nothing was done, and an operator has to fix the cause.

    ``overloaded``: the store answers other requests, but did not process this one in time.

    ``was_sent``: False if there was no connection to send it on, so that it surely was not applied.
    """

    was_sent = True

    def __init__(self, message: str, *, name: str = "", transient: bool = False, overloaded: bool = False) -> None:
        super().__init__(message, name=name)
        self.transient = transient
        self.overloaded = overloaded


class DamagedError(StoreError):
    """Stored data cannot be read: it was truncated, overwritten, or written by another program.

    The message says what is damaged, and how to clear it. Nothing was done, and a retry fails in the same way.
    ``key`` and ``field``: where the data is; empty if the store has no keys or fields.
    """

    def __init__(
        self, message: str, *, name: str = "", transient: bool = False, key: str = "", field: str = ""
    ) -> None:
        super().__init__(message, name=name, transient=transient)
        self.key = key
        self.field = field


class NestedCallError(StoreError):
    """A signal handler or a finalizer interrupted another call of this thread, which must end first.

    Nothing was done. `release`, `release_all` and `close` never raise it: they may be called there.
    """


class UnsupportedError(LockError):
    """The store does not support the request, or cannot run here: under eventlet, say, or trio."""


class CapacityMismatchError(LockError):
    """The name is in use with another capacity, which is `stored`; `asked` was requested."""

    def __init__(self, message: str, *, name: str = "", stored: int = 0, asked: int = 0) -> None:
        super().__init__(message, name=name)
        self.stored = stored
        self.asked = asked


class StaleFenceError(LockError):
    """A newer fence was seen: this holder has lost its lock, and must not write."""

    def __init__(self, message: str, *, name: str = "", fence: int = 0, newest: int = 0) -> None:
        super().__init__(message, name=name)
        self.fence = fence
        self.newest = newest


class InvalidInputError(LockError, ValueError):
    """An argument that no store would accept: a name, duration, URL, metadata or the value of an option."""


class UnknownOptionError(InvalidInputError, TypeError):
    """A keyword that the call does not have. The message names the right one.

    ``option``: the keyword. ``accepted``: those that there are.
    """

    def __init__(self, message: str, *, name: str = "", option: str = "", accepted: tuple[str, ...] = ()) -> None:
        super().__init__(message, name=name)
        self.option = option
        self.accepted = accepted


class ClosedError(LockError):
    """The client was closed."""
