"""The client for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, ParamSpec, Self, TypeVar, Unpack

from lockstead.asynchronous.election import AsyncElection
from lockstead.asynchronous.guard import AsyncLockGuard, unless_busy
from lockstead.asynchronous.handle import AsyncLockHandle, AsyncMultiLockHandle
from lockstead.asynchronous.rate_limit import AsyncRateLimiter
from lockstead.asynchronous.recipes import AsyncOnce, AsyncSingleton
from lockstead.core.checks import Seconds, check_name, check_ttl
from lockstead.core.engine import Engine
from lockstead.core.model import Finding
from lockstead.core.retry import RetryPolicy
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
from lockstead.runtimes.aio import AsyncRuntime, running_loop
from lockstead.stores import open_store

P = ParamSpec("P")
T = TypeVar("T")


class AsyncDistributedLock:
    """Locks by name, on the store a URL names.

    One client per event loop is enough; it may be used by all its tasks.
    """

    def __init__(
        self, store: object = None, *, ttl: Seconds = 30.0, retry: RetryPolicy | None = None, **options: Any
    ) -> None:
        self._defaults = Defaults(check_ttl(ttl), retry or RetryPolicy())
        self._owns_store = not isinstance(store, Store)
        opened = open_store(store, AsyncRuntime(), **options)
        if not isinstance(opened.runtime, AsyncRuntime):
            msg = "this store belongs to another driver: AsyncDistributedLock needs one with an AsyncRuntime"
            raise InvalidInputError(msg)
        self._runtime = opened.runtime
        self._engine = Engine(opened, new_holder_id, leave_at_exit=True)

    @property
    def holder_id(self) -> str:
        """How this client appears to others: host:pid:random."""
        return self._engine.holder_id

    async def acquire(self, name: str, **options: Unpack[LockOptions]) -> AsyncLockHandle:
        """Wait in line for a lock. Raises LockAcquisitionError after `timeout`; see `LockOptions`."""
        return await self._acquire(plans.plan(name, self._defaults, **options))

    async def try_acquire(self, name: str, **options: Unpack[TryOptions]) -> AsyncLockHandle | None:
        """Take a lock if it is free, else return None."""
        return await unless_busy(self._acquire, plans.plan(name, self._defaults, timeout=0, **options))

    def lock(self, name: Naming, **options: Unpack[LockOptions]) -> AsyncLockGuard[AsyncLockHandle]:
        """Hold a lock for a block, which is cancelled, and LockLostError raised, if the lock is lost."""
        return self._guard(plans.plan(literal(name), self._defaults, **options), name)

    def locked(self, naming: Naming, **options: Unpack[LockOptions]) -> AsyncLockGuard[AsyncLockHandle]:
        """Hold a lock during every call, named after its arguments: ``@locks.locked("account:{account_id}")``."""
        return self.lock(naming, **options)

    def read_lock(self, name: Naming, **options: Unpack[LockOptions]) -> AsyncLockGuard[AsyncLockHandle]:
        """Hold a name beside others who read, while nobody writes."""
        return self._guard(plans.reading(literal(name), self._defaults, **options), name)

    def write_lock(self, name: Naming, **options: Unpack[LockOptions]) -> AsyncLockGuard[AsyncLockHandle]:
        """Hold a name alone, while nobody else reads or writes."""
        return self._guard(plans.writing(literal(name), self._defaults, **options), name)

    def semaphore(
        self, name: Naming, permits: int, weight: int = 1, **options: Unpack[LockOptions]
    ) -> AsyncLockGuard[AsyncLockHandle]:
        """Hold `weight` of so many permits. All who use the name must agree on their number."""
        return self._guard(plans.permits(literal(name), self._defaults, permits, weight, **options), name)

    def multi_lock(
        self, names: Iterable[Naming], **options: Unpack[LockOptions]
    ) -> AsyncLockGuard[AsyncMultiLockHandle]:
        """Hold several names at once, or none: nobody who takes his that way can deadlock with another."""
        namings = listed(names)
        plan = plans.several(map(literal, namings), self._defaults, **options)
        return AsyncLockGuard(plan, namings, self._acquire_several, self._engine.runtime)

    def singleton(
        self, name: Naming, *, at_most: Seconds, at_least: Seconds = 0.0, metadata: Mapping[str, Any] | None = None
    ) -> AsyncSingleton:
        """Let one of many run a job: ``@locks.singleton("cron:daily", at_most=3600, at_least=60)``.

        The name is taken until the job ends, but for `at_least` seconds, so that clocks which differ do not run it
        twice; and for `at_most`, so that it is free again if the job's process dies. A job that runs longer is told
        that it has lost the name.
        """
        plan = plans.single(literal(name), self._defaults, at_most, at_least, metadata)
        return AsyncSingleton(plan, (name,), self._acquire, self._engine.runtime)

    def once(self, key: Naming, period: Seconds, **options: Unpack[LockOptions]) -> AsyncOnce:
        """Do something once for a key, and remember for a period what came of it: ``@locks.once("mail:{to}", 3600)``.

        The outcome is kept as JSON, of up to 4096 bytes. An attempt that dies is taken over after its ttl.
        """
        _once.check_options(**options)
        plan = plans.plan(literal(key), self._defaults, **options)
        return AsyncOnce(plan, key, self._engine, self._acquire, check_ttl(period, "period"))

    def rate_limiter(self, name: Naming, limit: int, per: Seconds, burst: int | None = None) -> AsyncRateLimiter:
        """Let through `limit` in every `per` seconds, and of those up to `burst` (all, if not given) at once."""
        return AsyncRateLimiter(self._engine, name, rate(limit, per, burst), self._defaults.retry)

    def election(self, name: str, **options: Unpack[ElectionOptions]) -> AsyncElection:
        """Choose one leader among all who stand under a name. See `ElectionOptions`."""
        return AsyncElection(self._engine, name, self._defaults, **options)

    async def with_lock(self, name: str, function: Callable[[], Awaitable[T]], **options: Unpack[LockOptions]) -> T:
        """Hold a lock while `function` runs, and return what it returns."""
        plan = plans.plan(name, self._defaults, **options)._replace(is_scoped=True)
        async with await self._acquire(plan):
            return await function()

    async def is_locked(self, name: str) -> bool:
        """Tell whether anybody holds the name."""
        return await self.info(name) is not None

    async def info(self, name: str) -> LockInfo | None:
        """Tell who holds the name; None if nobody does."""
        line = await self._engine.find(check_name(name))
        return _info.describe(line) if line else None

    async def inspect(self, prefix: str = "") -> list[LockInfo]:
        """List the locks that are held, by name."""
        return [_info.describe(line) for line in await self._engine.inspect(prefix)]

    async def force_release(self, name: str) -> LockInfo | None:
        """Take a lock away from its holder, and say who that was.

        The holder learns of it only at its next renewal: until then two may believe to hold, and only the
        fence tells them apart.
        """
        line = await self._engine.evict(check_name(name))
        return _info.describe(line) if line else None

    async def examine(self) -> list[Finding]:
        """Look for what is wrong with the store, or could take locks away from their holders."""
        return await self._engine.examine()

    async def release_all(self) -> int:
        """Release everything this client holds, and count it."""
        return await self._engine.release_all()

    async def close(self) -> None:
        """Release everything and let the store go; what is tried afterwards raises ClosedError."""
        try:
            await self._engine.close()
        finally:
            if self._owns_store:
                await self._engine.store.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def _guard(self, plan: Plan, naming: Naming) -> AsyncLockGuard[AsyncLockHandle]:
        return AsyncLockGuard(plan, (naming,), self._acquire, self._engine.runtime)

    async def _acquire(self, plan: Plan) -> AsyncLockHandle:
        self._runtime.bind()
        return await AsyncLockHandle(self._engine)._acquire(plan)

    async def _acquire_several(self, plan: Plan) -> AsyncMultiLockHandle:
        self._runtime.bind()
        return await AsyncMultiLockHandle(self._engine)._acquire(plan)


_defaults: dict[asyncio.AbstractEventLoop, AsyncDistributedLock] = {}


def get_async_distributed_lock() -> AsyncDistributedLock:
    """Return the client of the running event loop: on LOCKSTEAD_URL, else on the user's own SQLite file."""
    for loop in [loop for loop, locks in _defaults.items() if loop.is_closed() or locks._engine.keeper.closing]:
        _defaults.pop(loop, None)
    running = running_loop()
    if running not in _defaults:
        _defaults[running] = AsyncDistributedLock()
    return _defaults[running]
