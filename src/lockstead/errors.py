"""Everything lockstead raises on purpose.

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
    "UnsupportedError",
]


class LockError(Exception):
    """The root of every error lockstead raises."""

    def __init__(self, message: str, *, name: str = "") -> None:
        super().__init__(message)
        self.name = name


class LockAcquisitionError(LockError, TimeoutError):
    """The lock could not be had within the caller's patience; nothing is left in the line."""

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
    """The handle is not good for this: it was released, lost, or belongs to a parent process."""


class LockLostError(InvalidLockError):
    """The lease ended while it was still wanted; whatever it protected may now have another holder."""

    def __init__(self, message: str, *, name: str = "", reason: str = "") -> None:
        super().__init__(message, name=name)
        self.reason = reason


class RateLimitError(LockError, TimeoutError):
    """What was asked of a rate would not be allowed within the caller's patience; nothing was spent.

    ``retry_after``: in so many seconds it would be allowed, if nobody else spends meanwhile.
    """

    def __init__(self, message: str, *, name: str = "", retry_after: float = 0.0) -> None:
        super().__init__(message, name=name)
        self.retry_after = retry_after


class StoreError(LockError):
    """The store did not do what it was asked; the driver's exception is the ``__cause__``.

    ``transient``: there was no answer. The request may have been carried out, even later, and may succeed if
    repeated. Otherwise the store refused it: nothing was done, and somebody has to mend something.

    ``overloaded``: the store answers other requests, but did not get to this one in time.
    """

    def __init__(self, message: str, *, name: str = "", transient: bool = False, overloaded: bool = False) -> None:
        super().__init__(message, name=name)
        self.transient = transient
        self.overloaded = overloaded


class DamagedError(StoreError):
    """What the store keeps makes no sense: it was cut short, overwritten, or written by something else.

    The message says what is damaged, and how to clear it. Nothing was done, and repeating the request is in vain.
    ``key`` and ``field``: where it is kept, as far as the store has such.
    """

    def __init__(
        self, message: str, *, name: str = "", transient: bool = False, key: str = "", field: str = ""
    ) -> None:
        super().__init__(message, name=name, transient=transient)
        self.key = key
        self.field = field


class NestedCallError(StoreError):
    """A signal handler or a finalizer has interrupted a call of this thread's, which must end first.

    Nothing was done. `release`, `release_all` and `close` do not raise it: they work there.
    """


class UnsupportedError(LockError):
    """The store cannot carry what was asked of it, or cannot run here: under eventlet, say, or trio."""


class CapacityMismatchError(LockError):
    """The name is in use with another capacity."""

    def __init__(self, message: str, *, name: str = "", stored: int = 0, asked: int = 0) -> None:
        super().__init__(message, name=name)
        self.stored = stored
        self.asked = asked


class StaleFenceError(LockError):
    """Somebody with a newer fence has been here: this holder has lost its lock, and must write nothing."""

    def __init__(self, message: str, *, name: str = "", fence: int = 0, newest: int = 0) -> None:
        super().__init__(message, name=name)
        self.fence = fence
        self.newest = newest


class InvalidInputError(LockError, ValueError):
    """A name, duration, URL or metadata that no store could take."""


class ClosedError(LockError):
    """The client was closed."""
