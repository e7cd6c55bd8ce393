"""The client for threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ParamSpec, Self, TypeVar, Unpack

from lockstead.blocking.election import Election
from lockstead.blocking.guard import LockGuard
from lockstead.blocking.handle import LockHandle, MultiLockHandle, acquire, try_acquire
from lockstead.blocking.rate_limit import RateLimiter
from lockstead.blocking.recipes import Once, Singleton
from lockstead.core.checks import Seconds, check_name, check_ttl
from lockstead.core.engine import Engine
from lockstead.core.model import Finding
from lockstead.core.retry import RetryPolicy
from lockstead.core.runtime import drive
from lockstead.core.store import Store
from lockstead.errors import InvalidInputError
from lockstead.primitives import info, once, plans
from lockstead.primitives.election import ElectionOptions
from lockstead.primitives.identity import new_holder_id
from lockstead.primitives.info import LockInfo
from lockstead.primitives.naming import Naming, check_name_list, static_name
from lockstead.primitives.options import LockOptions, TryOptions
from lockstead.primitives.plans import Defaults, Plan
from lockstead.primitives.rate_limit import rate
from lockstead.runtimes.threads import ThreadRuntime
from lockstead.stores import open_store

P = ParamSpec("P")
T = TypeVar("T")


class DistributedLock:
    """Distributed locks by name, for threads.

    `store`: a URL, a client object of a driver, or a store; without it LOCKSTEAD_URL, or else the user's own SQLite
    file. `ttl`: the default lease duration in seconds. `retry`: how to retry when the store does not answer.
    Further options are those of the store.

    One client per process is enough; all threads may use it. After a fork, the child's copy works as a client of its
    own, without the parent's locks.
    """

    def __init__(
        self, store: object = None, *, ttl: Seconds = 30.0, retry: RetryPolicy | None = None, **options: Any
    ) -> None:
        self._defaults = Defaults(check_ttl(ttl), retry or RetryPolicy())
        self._owns_store = not isinstance(store, Store)
        opened = open_store(store, ThreadRuntime(), **options)
        if not isinstance(opened.runtime, ThreadRuntime):
            msg = "this store belongs to another runtime: DistributedLock needs one with a ThreadRuntime"
            raise InvalidInputError(msg)
        self._engine = Engine(opened, new_holder_id, leave_at_exit=True)

    @property
    def holder_id(self) -> str:
        """The id of this client, as other clients see it: host:pid:random."""
        return self._engine.holder_id

    def acquire(self, name: str, **options: Unpack[LockOptions]) -> LockHandle:
        """Acquire a lock, waiting in the queue while another client holds it.

        See `LockOptions` for the options. `timeout`: how long to wait; None waits without limit, 0 does not wait.
        Release the lock with the handle's `release`, or use the handle as a context manager.
        Raises LockAcquisitionError after `timeout`.
        """
        return acquire(LockHandle(self._engine), plans.plan(name, self._defaults, **options))

    def try_acquire(self, name: str, **options: Unpack[TryOptions]) -> LockHandle | None:
        """Acquire a lock if it is free, else return None: never waits for a holder. See `TryOptions`."""
        return try_acquire(LockHandle(self._engine), plans.plan(name, self._defaults, timeout=0, **options))

    def lock(self, name: Naming, **options: Unpack[LockOptions]) -> LockGuard[LockHandle]:
        """Hold a lock for a block: ``with locks.lock("name"):``.

        If the lock was lost meanwhile, the end of the block raises LockLostError. Returns a guard, which also decorates
        functions, and has `acquire` and `try_acquire`. See `LockOptions` for the options. `timeout`: how long to wait;
        None waits without limit, 0 does not wait.
        """
        return self._guard(plans.plan(static_name(name), self._defaults, **options), name)

    def locked(self, naming: Naming, **options: Unpack[LockOptions]) -> LockGuard[LockHandle]:
        """Decorate a function to hold a lock during every call: ``@locks.locked("account:{account_id}")``.

        ``{parameter}`` in the name stands for the argument of the call. A function in place of the name receives the
        arguments and returns the name.
        """
        return self.lock(naming, **options)

    def read_lock(self, name: Naming, **options: Unpack[LockOptions]) -> LockGuard[LockHandle]:
        """Acquire the shared (read) side of a read-write lock.

        Any number of readers hold it at the same time, but not while a writer holds it or waits in the queue before
        them. Returns a guard: see `lock`.
        """
        return self._guard(plans.reading(static_name(name), self._defaults, **options), name)

    def write_lock(self, name: Naming, **options: Unpack[LockOptions]) -> LockGuard[LockHandle]:
        """Acquire the exclusive (write) side of a read-write lock.

        No reader and no other writer holds it at the same time; readers that join the queue later do not overtake a
        waiting writer. Returns a guard: see `lock`.
        """
        return self._guard(plans.writing(static_name(name), self._defaults, **options), name)

    def semaphore(
        self, name: Naming, permits: int, weight: int = 1, **options: Unpack[LockOptions]
    ) -> LockGuard[LockHandle]:
        """Acquire `weight` of a semaphore's `permits`.

        Every client must use the name with the same number of permits: otherwise CapacityMismatchError is raised.
        Returns a guard: see `lock`.
        """
        return self._guard(plans.permits(static_name(name), self._defaults, permits, weight, **options), name)

    def multi_lock(self, names: Iterable[Naming], **options: Unpack[LockOptions]) -> LockGuard[MultiLockHandle]:
        """Acquire exclusive locks of several names, all or none.

        Names are acquired in a global order, all or none, so two multi-locks cannot deadlock. Not promised: the same
        for locks that are acquired while a multi-lock is held; acquire them as one. Returns a guard: see `lock`.
        """
        namings = check_name_list(names)
        plan = plans.several(map(static_name, namings), self._defaults, **options)
        return LockGuard(plan, namings, self._engine, MultiLockHandle)

    def singleton(
        self, name: Naming, *, at_most: Seconds, at_least: Seconds = 0.0, metadata: Mapping[str, Any] | None = None
    ) -> Singleton:
        """Run a job in one process of many: ``@locks.singleton("cron:daily", at_most=3600, at_least=60)``.

        The name is held until the job ends, and for at least `at_least` seconds, so that processes whose clocks differ
        do not run the job twice. It is held for at most `at_most` seconds, so that it is free again if the process
        dies; a job that runs longer has lost the lock (LockLostError). A call while the name is held or reserved
        returns None and does not run the job.
        """
        plan = plans.single(static_name(name), self._defaults, at_most, at_least, metadata)
        return Singleton(plan, (name,), self._engine, LockHandle)

    def once(self, key: Naming, period: Seconds, **options: Unpack[LockOptions]) -> Once:
        """Run work once per idempotency key, and store its result: ``@locks.once("mail:{to}", 3600)``.

        Within `period` seconds every further call returns the stored result, which is kept as JSON of up to 4084 bytes.
        A call while the work is running waits for it. Work that raises is not done: the next call runs it. If the
        process dies, another call runs the work after the ttl.
        """
        once.check_options(**options)
        plan = plans.plan(static_name(key), self._defaults, **options)
        return Once(plan, key, self._engine, check_ttl(period, "period"))

    def rate_limiter(self, name: Naming, limit: int, per: Seconds, burst: int | None = None) -> RateLimiter:
        """Limit requests to `limit` in every `per` seconds, for all clients of the store together.

        `burst`: how many may be allowed at once; by default `limit`.
        """
        return RateLimiter(self._engine, name, rate(limit, per, burst), self._defaults.retry)

    def election(self, name: str, **options: Unpack[ElectionOptions]) -> Election:
        """Elect one leader among all clients that campaign under a name. See `ElectionOptions`."""
        return Election(self._engine, name, self._defaults, **options)

    def with_lock(self, name: str, function: Callable[[], T], **options: Unpack[LockOptions]) -> T:
        """Acquire a lock, call `function`, release the lock, and return the result. See `LockOptions`."""
        plan = plans.plan(name, self._defaults, **options)
        with acquire(LockHandle(self._engine), plan, is_scoped=True):
            return function()

    def is_locked(self, name: str) -> bool:
        """Return whether the name is held, or reserved by `at_least` or `once`."""
        return self.info(name) is not None

    def info(self, name: str) -> LockInfo | None:
        """Return the holders of the name; None if it is free."""
        line = drive(self._engine.find(check_name(name)))
        return info.describe(line) if line else None

    def inspect(self, prefix: str = "") -> list[LockInfo]:
        """List the locks that are held and whose name starts with `prefix`, sorted by name."""
        return [info.describe(line) for line in drive(self._engine.inspect(prefix))]

    def force_release(self, name: str) -> LockInfo | None:
        """Release a lock by force, and return its former holders; None if it was free.

        A holder detects that only at its next renewal. Until then two clients may believe that they hold the lock,
        and only the fence protects.
        """
        line = drive(self._engine.force_release(check_name(name)))
        return info.describe(line) if line else None

    def examine(self) -> list[Finding]:
        """Check the store for problems that could cost locks, as `lockstead doctor` does."""
        return drive(self._engine.examine())

    def release_all(self) -> int:
        """Release everything this client holds, and return the number of locks. A signal handler may call it."""
        return drive(self._engine.release_all())

    def close(self) -> None:
        """Release everything and close the store, unless you passed one in; later calls raise ClosedError.

        A signal handler may call it. What cannot be released there is released in the background, or when the process
        exits.
        """
        try:
            drive(self._engine.close())
        finally:
            if self._owns_store:
                drive(self._engine.store.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _guard(self, plan: Plan, naming: Naming) -> LockGuard[LockHandle]:
        return LockGuard(plan, (naming,), self._engine, LockHandle)


_default: DistributedLock | None = None
_default_mutex = threading.Lock()


def get_distributed_lock() -> DistributedLock:
    """Return the shared client of the process: on LOCKSTEAD_URL, else on the user's own SQLite file."""
    global _default
    with _default_mutex:
        if _default is None or _default._engine.is_closed:
            _default = DistributedLock()
        return _default
