"""The client for threads."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar, Unpack

from leasehold import _info, _primitives
from leasehold._engine import Engine
from leasehold._handle import Handle
from leasehold._identity import new_holder_id
from leasehold._info import LockInfo
from leasehold._input import Seconds, check_name, check_ttl
from leasehold._model import Finding
from leasehold._naming import Naming, name_for_calls
from leasehold._primitives import Defaults, LockOptions, Plan, TryOptions
from leasehold._retry import RetryPolicy
from leasehold._runtime import drive
from leasehold._store import Store
from leasehold.errors import InvalidInputError, LockAcquisitionError, LockLostError, StoreError
from leasehold.runtimes.threads import ThreadRuntime
from leasehold.stores import open_store

P = ParamSpec("P")
T = TypeVar("T")


class LockHandle(Handle):
    """A lock you hold. As a context manager it releases at the end of its block."""

    _lost: threading.Event | None = None

    @property
    def lost(self) -> threading.Event:
        """An event that is set once the lock is lost: before anybody else can hold it."""
        if self._lost is None:
            self._lost = threading.Event()
            self._watch(self._lost.set)
        return self._lost

    def release(self) -> None:
        """Give the lock up. Once is enough, more do no harm; in a forked child it does nothing.

        Raises LockLostError if it was lost before, StoreError if the store does not answer: it is then given
        up in the background, or expires.
        """
        drive(self._release())

    def extend(self, seconds: Seconds) -> None:
        """Keep the lock at least that long from now, `max_hold` or not. Never shortens it.

        Raises LockLostError if it is lost, InvalidLockError if it was released.
        """
        life = check_ttl(seconds, "an extension")
        self._check_unreleased()
        drive(self._engine.extend(self._lease, life))

    def info(self) -> LockInfo | None:
        """Ask the store who holds the name now."""
        line = drive(self._engine.find(self.name))
        return _info.describe(line) if line else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.release()
        except (LockLostError, StoreError) as failure:
            if error is None:
                raise
            error.add_note(str(failure))


class DistributedLock:
    """Locks by name, on the store a URL names.

    One client per process is enough; it may be used by all threads. After a fork, the child's copy works as a
    client of its own, without the parent's locks.
    """

    def __init__(
        self, store: object = None, *, ttl: Seconds = 30.0, retry: RetryPolicy | None = None, **options: Any
    ) -> None:
        self._defaults = Defaults(check_ttl(ttl), retry or RetryPolicy())
        self._owns_store = not isinstance(store, Store)
        opened = open_store(store, ThreadRuntime(), **options)
        if not isinstance(opened.runtime, ThreadRuntime):
            msg = "this store belongs to another driver: DistributedLock needs one with a ThreadRuntime"
            raise InvalidInputError(msg)
        self._engine = Engine(opened, new_holder_id, leave_at_exit=True)

    @property
    def holder_id(self) -> str:
        """How this client appears to others: host:pid:random."""
        return self._engine.holder_id

    def acquire(self, name: str, **options: Unpack[LockOptions]) -> LockHandle:
        """Wait in line for a lock. Raises LockAcquisitionError after `timeout`; see `LockOptions`."""
        return self._acquire(_primitives.exclusive(name, self._defaults, **options))

    def try_acquire(self, name: str, **options: Unpack[TryOptions]) -> LockHandle | None:
        """Take a lock if it is free, else return None."""
        try:
            return self._acquire(_primitives.exclusive(name, self._defaults, timeout=0, **options))
        except LockAcquisitionError as refusal:
            if not refusal.holder:
                raise
            return None

    @contextmanager
    def lock(self, name: str, **options: Unpack[LockOptions]) -> Iterator[LockHandle]:
        """Hold a lock for a block. Raises LockLostError at its end if the lock was lost meanwhile."""
        with self.acquire(name, **options) as handle:
            yield handle

    def locked(self, naming: Naming, **options: Unpack[LockOptions]) -> Callable[[Callable[P, T]], Callable[P, T]]:
        """Hold a lock during every call, named after its arguments: ``@locks.locked("account:{account_id}")``."""

        def decorate(function: Callable[P, T]) -> Callable[P, T]:
            if inspect.iscoroutinefunction(function):
                msg = f"{function.__qualname__} is a coroutine function: use AsyncDistributedLock"
                raise InvalidInputError(msg)
            name_call = name_for_calls(naming, function)

            @functools.wraps(function)
            def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
                with self.acquire(name_call(*args, **kwargs), **options):
                    return function(*args, **kwargs)

            return guarded

        return decorate

    def with_lock(self, name: str, function: Callable[[], T], **options: Unpack[LockOptions]) -> T:
        """Hold a lock while `function` runs, and return what it returns."""
        with self.acquire(name, **options):
            return function()

    def is_locked(self, name: str) -> bool:
        """Tell whether anybody holds the name."""
        return self.info(name) is not None

    def info(self, name: str) -> LockInfo | None:
        """Tell who holds the name; None if nobody does."""
        line = drive(self._engine.find(check_name(name)))
        return _info.describe(line) if line else None

    def inspect(self, prefix: str = "") -> list[LockInfo]:
        """List the locks that are held, by name."""
        return [_info.describe(line) for line in drive(self._engine.inspect(prefix))]

    def force_release(self, name: str) -> LockInfo | None:
        """Take a lock away from its holder, and say who that was.

        The holder learns of it only at its next renewal: until then two may believe to hold, and only the
        fence tells them apart.
        """
        line = drive(self._engine.evict(check_name(name)))
        return _info.describe(line) if line else None

    def examine(self) -> list[Finding]:
        """Look for what is wrong with the store, or could take locks away from their holders."""
        return drive(self._engine.examine())

    def release_all(self) -> int:
        """Release everything this client holds, and count it."""
        return drive(self._engine.release_all())

    def close(self) -> None:
        """Release everything and let the store go; what is tried afterwards raises ClosedError."""
        try:
            drive(self._engine.close())
        finally:
            if self._owns_store:
                drive(self._engine.store.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _acquire(self, plan: Plan) -> LockHandle:
        if plan.on_lost is not None and inspect.iscoroutinefunction(plan.on_lost):
            msg = "on_lost is a coroutine function: use AsyncDistributedLock"
            raise InvalidInputError(msg)
        return drive(LockHandle(self._engine)._acquire(plan))


_default: DistributedLock | None = None
_default_mutex = threading.Lock()


def get_distributed_lock() -> DistributedLock:
    """Return the client of the whole process: on LEASEHOLD_URL, else on the user's own SQLite file."""
    global _default
    with _default_mutex:
        if _default is None or _default._engine.keeper.closing:
            _default = DistributedLock()
        return _default
