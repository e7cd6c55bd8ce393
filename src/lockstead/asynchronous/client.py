"""The client for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, ParamSpec, Self, TypeVar, Unpack

from lockstead.asynchronous.election import AsyncElection
from lockstead.asynchronous.guard import AsyncLockGuard
from lockstead.asynchronous.handle import AsyncLockHandle, AsyncMultiLockHandle
from lockstead.asynchronous.rate_limit import AsyncRateLimiter
from lockstead.asynchronous.recipes import AsyncOnce, AsyncSingleton
from lockstead.core.checks import Seconds, check_name, check_ttl
from lockstead.core.engine import Engine
from lockstead.core.model import Finding
from lockstead.core.retry import RetryPolicy
from lockstead.core.store import Store
from lockstead.errors import InvalidInputError
from lockstead.primitives import info, once, plans
from lockstead.primitives.election import ElectionOptions
from lockstead.primitives.handle import acquired, acquired_unless_busy
from lockstead.primitives.identity import new_holder_id
from lockstead.primitives.info import LockInfo
from lockstead.primitives.naming import Naming, check_name_list, static_name
from lockstead.primitives.options import LockOptions, TryOptions
from lockstead.primitives.plans import Defaults, Plan
from lockstead.primitives.rate_limit import rate
from lockstead.runtimes.aio import AsyncRuntime, running_loop
from lockstead.stores import open_store

P = ParamSpec("P")
T = TypeVar("T")


class AsyncDistributedLock:
    """Distributed locks by name, for asyncio.

    `store`: a URL, a client object of a driver, or a store; without it LOCKSTEAD_URL, or else the user's own SQLite
    file. `ttl`: the default lease duration in seconds. `retry`: how to retry when the store does not answer.
    Further options are those of the store.

    One client per event loop is enough; all tasks of the loop may use it.
    """

    def __init__(
        self, store: object = None, *, ttl: Seconds = 30.0, retry: RetryPolicy | None = None, **options: Any
    ) -> None:
        self._defaults = Defaults(check_ttl(ttl), retry or RetryPolicy())
        self._owns_store = not isinstance(store, Store)
        opened = open_store(store, AsyncRuntime(), **options)
        if not isinstance(opened.runtime, AsyncRuntime):
            msg = "this store belongs to another runtime: AsyncDistributedLock needs one with an AsyncRuntime"
            raise InvalidInputError(msg)
        self._runtime = opened.runtime
        self._engine = Engine(opened, new_holder_id, leave_at_exit=True)

    @property
    def holder_id(self) -> str:
        """The id of this client, as other clients see it: host:pid:random."""
        return self._engine.holder_id

    async def acquire(self, name: str, **options: Unpack[LockOptions]) -> AsyncLockHandle:
        """Acquire a lock, waiting in the queue while another client holds it.

        See `LockOptions` for the options. `timeout`: how long to wait; None waits without limit, 0 does not wait.
        Release the lock with the handle's `release`, or use the handle as a context manager.
        Raises LockAcquisitionError after `timeout`.
        """
        return await acquired(AsyncLockHandle(self._engine), plans.plan(name, self._defaults, **options))

    async def try_acquire(self, name: str, **options: Unpack[TryOptions]) -> AsyncLockHandle | None:
        """Acquire a lock if it is free, else return None: never waits for a holder. See `TryOptions`."""
        return await acquired_unless_busy(
            AsyncLockHandle(self._engine), plans.plan(name, self._defaults, timeout=0, **options)
        )

    def lock(self, name: Naming, **options: Unpack[LockOptions]) -> AsyncLockGuard[AsyncLockHandle]:
        """Hold a lock for a block: ``async with locks.lock("name"):``.

        If the lock is lost, the block is cancelled and raises LockLostError. Returns a guard, which also decorates
        functions, and has `acquire` and `try_acquire`. See `LockOptions` for the options. `timeout`: how long to wait;
        None waits without limit, 0 does not wait.
        """
        return self._guard(plans.plan(static_name(name), self._defaults, **options), name)

    def locked(self, naming: Naming, **options: Unpack[LockOptions]) -> AsyncLockGuard[AsyncLockHandle]:
        """Decorate a function to hold a lock during every call: ``@locks.locked("account:{account_id}")``.

        ``{parameter}`` in the name stands for the argument of the call. A function in place of the name receives the
        arguments and returns the name.
        """
        return self.lock(naming, **options)

    def read_lock(self, name: Naming, **options: Unpack[LockOptions]) -> AsyncLockGuard[AsyncLockHandle]:
        """Acquire the shared (read) side of a read-write lock.

        Any number of readers hold it at the same time, but not while a writer holds it or waits in the queue before
        them. Returns a guard: see `lock`.
        """
        return self._guard(plans.reading(static_name(name), self._defaults, **options), name)

    def write_lock(self, name: Naming, **options: Unpack[LockOptions]) -> AsyncLockGuard[AsyncLockHandle]:
        """Acquire the exclusive (write) side of a read-write lock.

        No reader and no other writer holds it at the same time; readers that join the queue later do not overtake a
        waiting writer. Returns a guard: see `lock`.
        """
        return self._guard(plans.writing(static_name(name), self._defaults, **options), name)

    def semaphore(
        self, name: Naming, permits: int, weight: int = 1, **options: Unpack[LockOptions]
    ) -> AsyncLockGuard[AsyncLockHandle]:
        """Acquire `weight` of a semaphore's `permits`.

        Every client must use the name with the same number of permits: otherwise CapacityMismatchError is raised.
        Returns a guard: see `lock`.
        """
        return self._guard(plans.permits(static_name(name), self._defaults, permits, weight, **options), name)

    def multi_lock(
        self, names: Iterable[Naming], **options: Unpack[LockOptions]
    ) -> AsyncLockGuard[AsyncMultiLockHandle]:
        """Acquire exclusive locks of several names, all or none.

        Names are acquired in a global order, all or none, so two multi-locks cannot deadlock. Not promised: the same
        for locks that are acquired while a multi-lock is held; acquire them as one. Returns a guard: see `lock`.
        """
        namings = check_name_list(names)
        plan = plans.several(map(static_name, namings), self._defaults, **options)
        return AsyncLockGuard(plan, namings, self._engine, AsyncMultiLockHandle)

    def singleton(
        self, name: Naming, *, at_most: Seconds, at_least: Seconds = 0.0, metadata: Mapping[str, Any] | None = None
    ) -> AsyncSingleton:
        """Run a job in one process of many: ``@locks.singleton("cron:daily", at_most=3600, at_least=60)``.

        The name is held until the job ends, and for at least `at_least` seconds, so that processes whose clocks differ
        do not run the job twice. It is held for at most `at_most` seconds, so that it is free again if the process
        dies; a job that runs longer has lost the lock (LockLostError). A call while the name is held or reserved
        returns None and does not run the job.
        """
        plan = plans.single(static_name(name), self._defaults, at_most, at_least, metadata)
        return AsyncSingleton(plan, (name,), self._engine, AsyncLockHandle)

    def once(self, key: Naming, period: Seconds, **options: Unpack[LockOptions]) -> AsyncOnce:
        """Run work once per idempotency key, and store its result: ``@locks.once("mail:{to}", 3600)``.

        Within `period` seconds every further call returns the stored result, which is kept as JSON of up to 4084 bytes.
        A call while the work is running waits for it. Work that raises is not done: the next call runs it. If the
        process dies, another call runs the work after the ttl.
        """
        once.check_options(**options)
        plan = plans.plan(static_name(key), self._defaults, **options)
        return AsyncOnce(plan, key, self._engine, check_ttl(period, "period"))

    def rate_limiter(self, name: Naming, limit: int, per: Seconds, burst: int | None = None) -> AsyncRateLimiter:
        """Limit requests to `limit` in every `per` seconds, for all clients of the store together.

        `burst`: how many may be allowed at once; by default `limit`.
        """
        return AsyncRateLimiter(self._engine, name, rate(limit, per, burst), self._defaults.retry)

    def election(self, name: str, **options: Unpack[ElectionOptions]) -> AsyncElection:
        """Elect one leader among all clients that campaign under a name. See `ElectionOptions`."""
        return AsyncElection(self._engine, name, self._defaults, **options)

    async def with_lock(self, name: str, function: Callable[[], Awaitable[T]], **options: Unpack[LockOptions]) -> T:
        """Acquire a lock, call `function`, release the lock, and return the result. See `LockOptions`."""
        plan = plans.plan(name, self._defaults, **options)
        async with await acquired(AsyncLockHandle(self._engine), plan, is_scoped=True):
            return await function()

    async def is_locked(self, name: str) -> bool:
        """Return whether the name is held, or reserved by `at_least` or `once`."""
        return await self.info(name) is not None

    async def info(self, name: str) -> LockInfo | None:
        """Return the holders of the name; None if it is free."""
        line = await self._engine.find(check_name(name))
        return info.describe(line) if line else None

    async def inspect(self, prefix: str = "") -> list[LockInfo]:
        """List the locks that are held and whose name starts with `prefix`, sorted by name."""
        return [info.describe(line) for line in await self._engine.inspect(prefix)]

    async def force_release(self, name: str) -> LockInfo | None:
        """Release a lock by force, and return its former holders; None if it was free.

        A holder detects that only at its next renewal. Until then two clients may believe that they hold the lock,
        and only the fence protects.
        """
        line = await self._engine.force_release(check_name(name))
        return info.describe(line) if line else None

    async def examine(self) -> list[Finding]:
        """Check the store for problems that could cost locks, as `lockstead doctor` does."""
        return await self._engine.examine()

    async def release_all(self) -> int:
        """Release everything this client holds, and return the number of locks."""
        return await self._engine.release_all()

    async def close(self) -> None:
        """Release everything and close the store, unless you passed one in; later calls raise ClosedError."""
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
        return AsyncLockGuard(plan, (naming,), self._engine, AsyncLockHandle)


_defaults: dict[asyncio.AbstractEventLoop, AsyncDistributedLock] = {}


def get_async_distributed_lock() -> AsyncDistributedLock:
    """Return the shared client of the running event loop: on LOCKSTEAD_URL, else on the user's own SQLite file."""
    for loop in [loop for loop, locks in _defaults.items() if loop.is_closed() or locks._engine.is_closed]:
        _defaults.pop(loop, None)
    running = running_loop()
    if running not in _defaults:
        _defaults[running] = AsyncDistributedLock()
    return _defaults[running]
