"""The client for threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ParamSpec, Self, TypeVar, Unpack

from lockstead.blocking.election import Election
from lockstead.blocking.guard import LockGuard, check_callback, unless_busy
from lockstead.blocking.handle import LockHandle, MultiLockHandle
from lockstead.blocking.rate_limit import RateLimiter
from lockstead.blocking.recipes import Once, Singleton
from lockstead.core.checks import Seconds, check_name, check_ttl
from lockstead.core.engine import Engine
from lockstead.core.model import Finding
from lockstead.core.retry import RetryPolicy
from lockstead.core.runtime import drive
from lockstead.core.store import Store
from lockstead.errors import InvalidInputError
from lockstead.primitives import info as _info
from lockstead.primitives import once as _once
from lockstead.primitives import plans
from lockstead.primitives.election import ElectionOptions
from lockstead.primitives.identity import new_holder_id
from lockstead.primitives.info import LockInfo
from lockstead.primitives.naming import Naming, listed, literal
from lockstead.primitives.options import LockOptions, TryOptions
from lockstead.primitives.plans import Defaults, Plan
from lockstead.primitives.rate_limit import rate
from lockstead.runtimes.threads import ThreadRuntime
from lockstead.stores import open_store

P = ParamSpec("P")
T = TypeVar("T")


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
        return self._acquire(plans.plan(name, self._defaults, **options))

    def try_acquire(self, name: str, **options: Unpack[TryOptions]) -> LockHandle | None:
        """Take a lock if it is free, else return None."""
        return unless_busy(self._acquire, plans.plan(name, self._defaults, timeout=0, **options))

    def lock(self, name: Naming, **options: Unpack[LockOptions]) -> LockGuard[LockHandle]:
        """Hold a lock for a block, which ends with LockLostError if the lock was lost meanwhile."""
        return self._guard(plans.plan(literal(name), self._defaults, **options), name)

    def locked(self, naming: Naming, **options: Unpack[LockOptions]) -> LockGuard[LockHandle]:
        """Hold a lock during every call, named after its arguments: ``@locks.locked("account:{account_id}")``."""
        return self.lock(naming, **options)

    def read_lock(self, name: Naming, **options: Unpack[LockOptions]) -> LockGuard[LockHandle]:
        """Hold a name beside others who read, while nobody writes."""
        return self._guard(plans.reading(literal(name), self._defaults, **options), name)

    def write_lock(self, name: Naming, **options: Unpack[LockOptions]) -> LockGuard[LockHandle]:
        """Hold a name alone, while nobody else reads or writes."""
        return self._guard(plans.writing(literal(name), self._defaults, **options), name)

    def semaphore(
        self, name: Naming, permits: int, weight: int = 1, **options: Unpack[LockOptions]
    ) -> LockGuard[LockHandle]:
        """Hold `weight` of so many permits. All who use the name must agree on their number."""
        return self._guard(plans.permits(literal(name), self._defaults, permits, weight, **options), name)

    def multi_lock(self, names: Iterable[Naming], **options: Unpack[LockOptions]) -> LockGuard[MultiLockHandle]:
        """Hold several names at once, or none: nobody who takes his that way can deadlock with another."""
        namings = listed(names)
        plan = plans.several(map(literal, namings), self._defaults, **options)
        return LockGuard(plan, namings, self._acquire_several, self._engine.runtime)

    def singleton(
        self, name: Naming, *, at_most: Seconds, at_least: Seconds = 0.0, metadata: Mapping[str, Any] | None = None
    ) -> Singleton:
        """Let one of many run a job: ``@locks.singleton("cron:daily", at_most=3600, at_least=60)``.

        The name is taken until the job ends, but for `at_least` seconds, so that clocks which differ do not run it
        twice; and for `at_most`, so that it is free again if the job's process dies. A job that runs longer is told
        that it has lost the name.
        """
        plan = plans.single(literal(name), self._defaults, at_most, at_least, metadata)
        return Singleton(plan, (name,), self._acquire, self._engine.runtime)

    def once(self, key: Naming, period: Seconds, **options: Unpack[LockOptions]) -> Once:
        """Do something once for a key, and remember for a period what came of it: ``@locks.once("mail:{to}", 3600)``.

        The outcome is kept as JSON, of up to 4096 bytes. An attempt that dies is taken over after its ttl.
        """
        _once.check_options(**options)
        plan = plans.plan(literal(key), self._defaults, **options)
        return Once(plan, key, self._engine, self._acquire, check_ttl(period, "period"))

    def rate_limiter(self, name: Naming, limit: int, per: Seconds, burst: int | None = None) -> RateLimiter:
        """Let through `limit` in every `per` seconds, and of those up to `burst` (all, if not given) at once."""
        return RateLimiter(self._engine, name, rate(limit, per, burst), self._defaults.retry)

    def election(self, name: str, **options: Unpack[ElectionOptions]) -> Election:
        """Choose one leader among all who stand under a name. See `ElectionOptions`."""
        return Election(self._engine, name, self._defaults, **options)

    def with_lock(self, name: str, function: Callable[[], T], **options: Unpack[LockOptions]) -> T:
        """Hold a lock while `function` runs, and return what it returns."""
        plan = plans.plan(name, self._defaults, **options)._replace(is_scoped=True)
        with self._acquire(plan):
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
        """Release everything this client holds, and count it. A signal handler may call it, as it may `release`."""
        return drive(self._engine.release_all())

    def close(self) -> None:
        """Release everything and let the store go; what is tried afterwards raises ClosedError.

        A signal handler may call it. What cannot be released there is in the background, or when the process exits.
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
        return LockGuard(plan, (naming,), self._acquire, self._engine.runtime)

    def _acquire(self, plan: Plan) -> LockHandle:
        if plan.on_lost is not None:
            check_callback(plan.on_lost)
        return drive(LockHandle(self._engine)._acquire(plan))

    def _acquire_several(self, plan: Plan) -> MultiLockHandle:
        if plan.on_lost is not None:
            check_callback(plan.on_lost)
        return drive(MultiLockHandle(self._engine)._acquire(plan))


_default: DistributedLock | None = None
_default_mutex = threading.Lock()


def get_distributed_lock() -> DistributedLock:
    """Return the client of the whole process: on LOCKSTEAD_URL, else on the user's own SQLite file."""
    global _default
    with _default_mutex:
        if _default is None or _default._engine.keeper.closing:
            _default = DistributedLock()
        return _default
