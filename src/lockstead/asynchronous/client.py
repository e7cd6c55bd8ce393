"""The client for asyncio."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, Never, ParamSpec, Self, TypeVar

from lockstead.asynchronous.election import AsyncElection, AsyncLeadership
from lockstead.asynchronous.guard import AsyncLockGuard
from lockstead.asynchronous.handle import AsyncLockHandle, AsyncMultiLockHandle
from lockstead.asynchronous.rate_limit import AsyncRateLimiter
from lockstead.asynchronous.recipes import AsyncOnce, AsyncSingleton
from lockstead.core import inspection
from lockstead.core.checks import Seconds, check_name, check_ttl
from lockstead.core.engine import Engine
from lockstead.core.model import WHOLE, Finding
from lockstead.core.refusals import Busy
from lockstead.core.retry import RetryPolicy
from lockstead.core.store import Store
from lockstead.errors import InvalidInputError, UnknownOptionError
from lockstead.primitives import info, plans
from lockstead.primitives.callables import check_async_callback, check_async_work
from lockstead.primitives.candidate import Running
from lockstead.primitives.handle import acquired, acquired_unless_busy
from lockstead.primitives.identity import new_holder_id
from lockstead.primitives.info import LockInfo
from lockstead.primitives.naming import Naming, check_name_list, static_name
from lockstead.primitives.options import check_retry, unknown_client_option, unknown_option
from lockstead.primitives.pickling import remake
from lockstead.primitives.plans import Defaults
from lockstead.primitives.rate_limit import rate
from lockstead.runtimes.aio import AsyncRuntime
from lockstead.runtimes.signals import release_on
from lockstead.stores.registry import Default, Source, open_store, portable_source, portable_url, resolved

P = ParamSpec("P")
T = TypeVar("T")


class AsyncDistributedLock:
    """Distributed locks by name, for asyncio.

    store: a URL, a client object of a driver, or a store; left out: LOCKSTEAD_URL, else the user's own SQLite file.
    ttl: the default lease duration, in seconds or as a timedelta: how long locks stay held if this process dies.
    retry: how to retry when the store does not answer; None: `RetryPolicy()`.

    Options of Redis, which a URL may have too and which override it:

    key_prefix: what keys begin with, "lockstead" by default; clients with different prefixes do not share locks.
    min_replicas: how many replicas must confirm a grant or a renewal; 0 by default.
    confirm_grants: let a waiter confirm a grant with the server before it holds; False by default.
    strict: refuse a server that may evict locks, instead of logging a warning; False by default.
    node_timeout: how many seconds a node of Redlock has to answer; 0.25 by default.

    Options of PostgreSQL, likewise:

    schema: where the lease table is, "lockstead" by default; clients with different schemas do not share locks.
    push: receive a notification when a place may hold, instead of polling; True by default.
    listen: the URL of the server itself, where `store` is that of a transaction pooler; "" by default.
    pooler: "session" states that a pooler gives every connection a session of its own; "" by default.
    advisory: use the server's advisory locks instead of the lease table; False by default.

    Stores of other packages have options of their own.

    One client per process is enough in asyncio, too, if one loop runs at a time; all tasks of the loop may use it.
    Once its loop is closed, it can be used in the next one, unless you passed a store: so a client may be created, and
    may decorate functions, when a module is imported. What it holds is not renewed between two loops; it is renewed
    again from the client's first call in the next loop.
    """

    def __init__(
        self,
        store: Source | Default = Default.STORE,
        *,
        ttl: Seconds = 30.0,
        retry: RetryPolicy | None = None,
        **store_options: Any,
    ) -> None:
        policy = RetryPolicy() if retry is None else check_retry(retry)
        self._defaults = Defaults(check_ttl(ttl), policy, check_async_callback)
        self._owns_store = not isinstance(store, Store)
        self._source = resolved(store)
        self._options = {"ttl": ttl, "retry": retry, **store_options}
        try:
            opened = open_store(self._source, AsyncRuntime(), **store_options)
        except UnknownOptionError as refusal:
            raise unknown_client_option(AsyncDistributedLock, refusal) from None
        if not isinstance(opened.runtime, AsyncRuntime):
            msg = "this store belongs to another runtime: AsyncDistributedLock needs one with an AsyncRuntime"
            raise InvalidInputError(msg)
        self._engine = Engine(opened, new_holder_id, leave_at_exit=True)
        if self._owns_store:  # asyncio only
            source = portable_source(self._source, opened)  # asyncio only
            reopen = partial(open_store, source, **store_options)  # asyncio only
            opened.runtime.let_follow(self._engine, reopen)  # asyncio only
        self._running: Running = set()

    @property
    def holder_id(self) -> str:
        """The id of this client, as other clients see it: host:pid:random."""
        return self._engine.holder_id

    async def acquire(
        self,
        name: str,
        *,
        ttl: Seconds | None = None,
        timeout: Seconds | None = None,
        metadata: Mapping[str, Any] | None = None,
        max_hold: Seconds | None = None,
        at_least: Seconds = 0.0,
        renew: bool = True,
        reentrant: bool = False,
        on_lost: Callable[[AsyncLockHandle], object] | None = None,
        retry: RetryPolicy | None = None,
        **unknown: Never,
    ) -> AsyncLockHandle:
        """Acquire a lock, waiting in the queue while another client holds it.

        Release the lock with the handle's `release`, or use the handle as a context manager. Durations are seconds or a
        timedelta.

        ttl: how long the lock stays held if this process dies; while it runs, the lease is renewed. None: the client's.
        timeout: how long to wait; None waits without limit, 0 does not wait.
        metadata: a JSON object of up to 4096 bytes that `info`, `inspect` and `lockstead ls` show.
        max_hold: stop renewing this long after the grant, so that a stuck holder does not hold for ever; None: never.
        at_least: keep the name reserved until this long after the grant, however early it is released.
        renew: renew while held; False: the lease expires after one ttl unless you call `extend`.
        reentrant: let the same thread or task acquire the name again, through this client, without waiting.
        on_lost: called once with the handle, in a thread or task of its own, if the lock is lost.
        retry: how to retry when the store does not answer. None: the client's policy.

        Raises LockAcquisitionError after `timeout`.
        """
        if unknown:
            raise unknown_option(self.acquire, unknown)
        handle = AsyncLockHandle(self._engine)
        try:  # as `acquired`, without a coroutine of its own: 0.5 µs
            outcome = await handle._acquire(  # not kept in a variable: the garbage collector scans what waits
                plans.plan(
                    name,
                    self._defaults,
                    ttl=ttl,
                    timeout=timeout,
                    metadata=metadata,
                    max_hold=max_hold,
                    at_least=at_least,
                    renew=renew,
                    reentrant=reentrant,
                    on_lost=on_lost,
                    retry=retry,
                )
            )
            busy = outcome if isinstance(outcome, Busy) else None
        except BaseException:
            handle._abandon()
            raise
        if busy is not None:
            raise busy.error(self._engine.holder_id)
        return handle

    async def try_acquire(
        self,
        name: str,
        *,
        ttl: Seconds | None = None,
        metadata: Mapping[str, Any] | None = None,
        max_hold: Seconds | None = None,
        at_least: Seconds = 0.0,
        renew: bool = True,
        reentrant: bool = False,
        on_lost: Callable[[AsyncLockHandle], object] | None = None,
        retry: RetryPolicy | None = None,
        **unknown: Never,
    ) -> AsyncLockHandle | None:
        """Acquire a lock if it is free, else return None: never waits for a holder. Durations as for `acquire`.

        ttl: how long the lock stays held if this process dies; while it runs, the lease is renewed. None: the client's.
        metadata: a JSON object of up to 4096 bytes that `info`, `inspect` and `lockstead ls` show.
        max_hold: stop renewing this long after the grant, so that a stuck holder does not hold for ever; None: never.
        at_least: keep the name reserved until this long after the grant, however early it is released.
        renew: renew while held; False: the lease expires after one ttl unless you call `extend`.
        reentrant: let the same thread or task acquire the name again, through this client, without waiting.
        on_lost: called once with the handle, in a thread or task of its own, if the lock is lost.
        retry: how to retry when the store does not answer. None: the client's policy.
        """
        if unknown:
            raise unknown_option(self.try_acquire, unknown)
        plan = plans.plan(
            name,
            self._defaults,
            timeout=plans.NO_WAIT,
            ttl=ttl,
            metadata=metadata,
            max_hold=max_hold,
            at_least=at_least,
            renew=renew,
            reentrant=reentrant,
            on_lost=on_lost,
            retry=retry,
        )
        return await acquired_unless_busy(AsyncLockHandle(self._engine), plan)

    def lock(
        self,
        name: Naming,
        *,
        ttl: Seconds | None = None,
        timeout: Seconds | None = None,
        metadata: Mapping[str, Any] | None = None,
        max_hold: Seconds | None = None,
        at_least: Seconds = 0.0,
        renew: bool = True,
        reentrant: bool = False,
        on_lost: Callable[[AsyncLockHandle], object] | None = None,
        retry: RetryPolicy | None = None,
        **unknown: Never,
    ) -> AsyncLockGuard[AsyncLockHandle]:
        """Hold a lock for a block: ``async with locks.lock("name"):``.

        If the lock is lost, the block is cancelled and raises LockLostError. Returns a guard, which also decorates
        functions, and has `acquire`, `try_acquire` and `release`. Durations are seconds or a timedelta.

        ttl: how long the lock stays held if this process dies; while it runs, the lease is renewed. None: the client's.
        timeout: how long to wait; None waits without limit, 0 does not wait.
        metadata: a JSON object of up to 4096 bytes that `info`, `inspect` and `lockstead ls` show.
        max_hold: stop renewing this long after the grant, so that a stuck holder does not hold for ever; None: never.
        at_least: keep the name reserved until this long after the grant, however early it is released.
        renew: renew while held; False: the lease expires after one ttl unless you call `extend`.
        reentrant: let the same thread or task acquire the name again, through this client, without waiting.
        on_lost: called once with the handle, in a thread or task of its own, if the lock is lost.
        retry: how to retry when the store does not answer. None: the client's policy.

        The block raises LockAcquisitionError if it was not entered after `timeout`.
        """
        if unknown:
            raise unknown_option(self.lock, unknown)
        plan = plans.plan(
            name if isinstance(name, str) else static_name(name),
            self._defaults,
            ttl=ttl,
            timeout=timeout,
            metadata=metadata,
            max_hold=max_hold,
            at_least=at_least,
            renew=renew,
            reentrant=reentrant,
            on_lost=on_lost,
            retry=retry,
        )
        return AsyncLockGuard(plan, (name,), self._engine, AsyncLockHandle)

    def locked(
        self,
        naming: Naming,
        *,
        ttl: Seconds | None = None,
        timeout: Seconds | None = None,
        metadata: Mapping[str, Any] | None = None,
        max_hold: Seconds | None = None,
        at_least: Seconds = 0.0,
        renew: bool = True,
        reentrant: bool = False,
        on_lost: Callable[[AsyncLockHandle], object] | None = None,
        retry: RetryPolicy | None = None,
        **unknown: Never,
    ) -> AsyncLockGuard[AsyncLockHandle]:
        """Decorate a function to hold a lock during every call: ``@locks.locked("account:{account_id}")``.

        ``{parameter}`` in the name stands for the argument of the call. A function in place of the name receives the
        arguments and returns the name. Durations are seconds or a timedelta.

        ttl: how long the lock stays held if this process dies; while it runs, the lease is renewed. None: the client's.
        timeout: how long to wait; None waits without limit, 0 does not wait.
        metadata: a JSON object of up to 4096 bytes that `info`, `inspect` and `lockstead ls` show.
        max_hold: stop renewing this long after the grant, so that a stuck holder does not hold for ever; None: never.
        at_least: keep the name reserved until this long after the grant, however early it is released.
        renew: renew while held; False: the lease expires after one ttl unless you call `extend`.
        reentrant: let the same thread or task acquire the name again, through this client, without waiting.
        on_lost: called once with the handle, in a thread or task of its own, if the lock is lost.
        retry: how to retry when the store does not answer. None: the client's policy.

        A call raises LockAcquisitionError after `timeout`.
        """
        if unknown:
            raise unknown_option(self.locked, unknown)
        plan = plans.plan(
            static_name(naming),
            self._defaults,
            ttl=ttl,
            timeout=timeout,
            metadata=metadata,
            max_hold=max_hold,
            at_least=at_least,
            renew=renew,
            reentrant=reentrant,
            on_lost=on_lost,
            retry=retry,
        )
        return AsyncLockGuard(plan, (naming,), self._engine, AsyncLockHandle)

    def read_lock(
        self,
        name: Naming,
        *,
        ttl: Seconds | None = None,
        timeout: Seconds | None = None,
        metadata: Mapping[str, Any] | None = None,
        max_hold: Seconds | None = None,
        at_least: Seconds = 0.0,
        renew: bool = True,
        reentrant: bool = False,
        on_lost: Callable[[AsyncLockHandle], object] | None = None,
        retry: RetryPolicy | None = None,
        **unknown: Never,
    ) -> AsyncLockGuard[AsyncLockHandle]:
        """Acquire the shared (read) side of a read-write lock.

        Any number of readers hold it at the same time, but not while a writer holds it or waits in the queue before
        them. Returns a guard: see `lock`.

        ttl: how long the lock stays held if this process dies; while it runs, the lease is renewed. None: the client's.
        timeout: how long to wait; None waits without limit, 0 does not wait.
        metadata: a JSON object of up to 4096 bytes that `info`, `inspect` and `lockstead ls` show.
        max_hold: stop renewing this long after the grant, so that a stuck holder does not hold for ever; None: never.
        at_least: keep the name reserved until this long after the grant, however early it is released.
        renew: renew while held; False: the lease expires after one ttl unless you call `extend`.
        reentrant: let the same thread or task acquire the name again, through this client, without waiting.
        on_lost: called once with the handle, in a thread or task of its own, if the lock is lost.
        retry: how to retry when the store does not answer. None: the client's policy.
        """
        if unknown:
            raise unknown_option(self.read_lock, unknown)
        plan = plans.plan(
            static_name(name),
            self._defaults,
            WHOLE,
            1,
            ttl=ttl,
            timeout=timeout,
            metadata=metadata,
            max_hold=max_hold,
            at_least=at_least,
            renew=renew,
            reentrant=reentrant,
            on_lost=on_lost,
            retry=retry,
        )
        return AsyncLockGuard(plan, (name,), self._engine, AsyncLockHandle)

    def write_lock(
        self,
        name: Naming,
        *,
        ttl: Seconds | None = None,
        timeout: Seconds | None = None,
        metadata: Mapping[str, Any] | None = None,
        max_hold: Seconds | None = None,
        at_least: Seconds = 0.0,
        renew: bool = True,
        reentrant: bool = False,
        on_lost: Callable[[AsyncLockHandle], object] | None = None,
        retry: RetryPolicy | None = None,
        **unknown: Never,
    ) -> AsyncLockGuard[AsyncLockHandle]:
        """Acquire the exclusive (write) side of a read-write lock.

        No reader and no other writer holds it at the same time; readers that join the queue later do not overtake a
        waiting writer. Returns a guard: see `lock`.

        ttl: how long the lock stays held if this process dies; while it runs, the lease is renewed. None: the client's.
        timeout: how long to wait; None waits without limit, 0 does not wait.
        metadata: a JSON object of up to 4096 bytes that `info`, `inspect` and `lockstead ls` show.
        max_hold: stop renewing this long after the grant, so that a stuck holder does not hold for ever; None: never.
        at_least: keep the name reserved until this long after the grant, however early it is released.
        renew: renew while held; False: the lease expires after one ttl unless you call `extend`.
        reentrant: let the same thread or task acquire the name again, through this client, without waiting.
        on_lost: called once with the handle, in a thread or task of its own, if the lock is lost.
        retry: how to retry when the store does not answer. None: the client's policy.
        """
        if unknown:
            raise unknown_option(self.write_lock, unknown)
        plan = plans.plan(
            static_name(name),
            self._defaults,
            WHOLE,
            WHOLE,
            ttl=ttl,
            timeout=timeout,
            metadata=metadata,
            max_hold=max_hold,
            at_least=at_least,
            renew=renew,
            reentrant=reentrant,
            on_lost=on_lost,
            retry=retry,
        )
        return AsyncLockGuard(plan, (name,), self._engine, AsyncLockHandle)

    def semaphore(
        self,
        name: Naming,
        permits: int,
        weight: int = 1,
        *,
        ttl: Seconds | None = None,
        timeout: Seconds | None = None,
        metadata: Mapping[str, Any] | None = None,
        max_hold: Seconds | None = None,
        at_least: Seconds = 0.0,
        renew: bool = True,
        reentrant: bool = False,
        on_lost: Callable[[AsyncLockHandle], object] | None = None,
        retry: RetryPolicy | None = None,
        **unknown: Never,
    ) -> AsyncLockGuard[AsyncLockHandle]:
        """Acquire `weight` of a semaphore's `permits`.

        Every client must use the name with the same number of permits: otherwise CapacityMismatchError is raised.
        Returns a guard: see `lock`.

        ttl: how long the lock stays held if this process dies; while it runs, the lease is renewed. None: the client's.
        timeout: how long to wait; None waits without limit, 0 does not wait.
        metadata: a JSON object of up to 4096 bytes that `info`, `inspect` and `lockstead ls` show.
        max_hold: stop renewing this long after the grant, so that a stuck holder does not hold for ever; None: never.
        at_least: keep the name reserved until this long after the grant, however early it is released.
        renew: renew while held; False: the lease expires after one ttl unless you call `extend`.
        reentrant: let the same thread or task acquire the name again, through this client, without waiting.
        on_lost: called once with the handle, in a thread or task of its own, if the lock is lost.
        retry: how to retry when the store does not answer. None: the client's policy.
        """
        if unknown:
            raise unknown_option(self.semaphore, unknown)
        plan = plans.plan(
            static_name(name),
            self._defaults,
            *plans.check_permits(permits, weight),
            ttl=ttl,
            timeout=timeout,
            metadata=metadata,
            max_hold=max_hold,
            at_least=at_least,
            renew=renew,
            reentrant=reentrant,
            on_lost=on_lost,
            retry=retry,
        )
        return AsyncLockGuard(plan, (name,), self._engine, AsyncLockHandle)

    def multi_lock(
        self,
        names: Iterable[Naming],
        *,
        ttl: Seconds | None = None,
        timeout: Seconds | None = None,
        metadata: Mapping[str, Any] | None = None,
        max_hold: Seconds | None = None,
        at_least: Seconds = 0.0,
        renew: bool = True,
        on_lost: Callable[[AsyncMultiLockHandle], object] | None = None,
        retry: RetryPolicy | None = None,
        **unknown: Never,
    ) -> AsyncLockGuard[AsyncMultiLockHandle]:
        """Acquire exclusive locks of several names, all or none.

        Names are acquired in a global order, all or none, so two multi-locks cannot deadlock. Not promised: the same
        for locks that are acquired while a multi-lock is held; acquire them as one. Returns a guard: see `lock`.

        ttl: how long the lock stays held if this process dies; while it runs, the lease is renewed. None: the client's.
        timeout: how long to wait; None waits without limit, 0 does not wait.
        metadata: a JSON object of up to 4096 bytes that `info`, `inspect` and `lockstead ls` show.
        max_hold: stop renewing this long after the grant, so that a stuck holder does not hold for ever; None: never.
        at_least: keep the name reserved until this long after the grant, however early it is released.
        renew: renew while held; False: the lease expires after one ttl unless you call `extend`.
        on_lost: called once with the handle, in a thread or task of its own, if the lock is lost.
        retry: how to retry when the store does not answer. None: the client's policy.
        """
        if unknown:
            raise unknown_option(self.multi_lock, unknown)
        namings = check_name_list(names)
        ordered = plans.in_order(map(static_name, namings))
        plan = plans.plan(
            ordered[0],
            self._defaults,
            ttl=ttl,
            timeout=timeout,
            metadata=metadata,
            max_hold=max_hold,
            at_least=at_least,
            renew=renew,
            on_lost=on_lost,
            retry=retry,
        ).of(ordered)
        return AsyncLockGuard(plan, namings, self._engine, AsyncMultiLockHandle)

    def singleton(
        self,
        name: Naming,
        *,
        at_most: Seconds,
        ttl: Seconds | None = None,
        at_least: Seconds = 0.0,
        metadata: Mapping[str, Any] | None = None,
        **unknown: Never,
    ) -> AsyncSingleton:
        """Run a job in one process of many: ``@locks.singleton("cron:daily", at_most=3600, at_least=60)``.

        A call while the name is held or reserved returns None and does not run the job.

        at_most: how long the name is held at most; a job that runs longer has lost the lock (LockLostError).
        ttl: the lease duration, renewed until `at_most`: how long the name stays held if the process dies. None: one
            lease of `at_most`, which is not renewed.
        at_least: keep the name reserved until this long after the grant, so that processes whose clocks differ do not
            run the job twice.
        metadata: a JSON object of up to 4096 bytes that `info`, `inspect` and `lockstead ls` show.
        """
        if unknown:
            raise unknown_option(self.singleton, unknown)
        plan = plans.single(
            static_name(name), self._defaults, at_most=at_most, ttl=ttl, at_least=at_least, metadata=metadata
        )
        return AsyncSingleton(plan, (name,), self._engine, AsyncLockHandle)

    def once(
        self,
        key: Naming,
        period: Seconds,
        *,
        ttl: Seconds | None = None,
        timeout: Seconds | None = None,
        metadata: Mapping[str, Any] | None = None,
        max_hold: Seconds | None = None,
        renew: bool = True,
        on_lost: Callable[[AsyncLockHandle], object] | None = None,
        retry: RetryPolicy | None = None,
        **unknown: Never,
    ) -> AsyncOnce:
        """Run work once per idempotency key, and store its result: ``@locks.once("mail:{to}", 3600)``.

        Within `period` seconds every further call returns the stored result, which is kept as JSON of up to 4084 bytes.
        A call while the work is running waits for it. Work that raises is not done: the next call runs it. If the
        process dies, another call runs the work after the ttl; on SQLite on Linux at once.

        ttl: how long the lock stays held if this process dies; while it runs, the lease is renewed. None: the client's.
        timeout: how long to wait; None waits without limit, 0 does not wait.
        metadata: a JSON object of up to 4096 bytes that `info`, `inspect` and `lockstead ls` show.
        max_hold: stop renewing this long after the grant, so that a stuck holder does not hold for ever; None: never.
        renew: renew while held; False: the lease expires after one ttl unless you call `extend`.
        on_lost: called once with the handle, in a thread or task of its own, if the lock is lost.
        retry: how to retry when the store does not answer. None: the client's policy.
        """
        if unknown:
            raise unknown_option(self.once, unknown)
        plan = plans.plan(
            static_name(key),
            self._defaults,
            ttl=ttl,
            timeout=timeout,
            metadata=metadata,
            max_hold=max_hold,
            renew=renew,
            on_lost=on_lost,
            retry=retry,
        )
        return AsyncOnce(plan, key, self._engine, check_ttl(period, "period"))

    def rate_limiter(
        self, name: Naming, limit: int, per: Seconds, burst: int | None = None, **unknown: Never
    ) -> AsyncRateLimiter:
        """Limit requests to `limit` in every `per` seconds, for all clients of the store together.

        limit: how many requests are allowed.
        per: in which time, in seconds or as a timedelta.
        burst: how many may be allowed at once; None: as many as `limit`.
        """
        if unknown:
            raise unknown_option(self.rate_limiter, unknown)
        return AsyncRateLimiter(self._engine, name, rate(limit, per, burst), self._defaults.retry)

    def election(
        self,
        name: str,
        *,
        ttl: Seconds | None = None,
        grace: Seconds | None = None,
        metadata: Mapping[str, Any] | None = None,
        on_elected: Callable[[AsyncLeadership], object] | None = None,
        on_lost: Callable[[AsyncLeadership], object] | None = None,
        **unknown: Never,
    ) -> AsyncElection:
        """Elect one leader among all clients that campaign under a name. Durations are seconds or a timedelta.

        ttl: how long no other candidate can be elected if the leader dies; while it runs, its lease is renewed. None:
            the client's ttl.
        grace: how long before its lease could expire a leader is notified, so that it can stop in time; at most a half
            of the ttl. None: a fifth of it.
        metadata: a JSON object of up to 4096 bytes that `leader`, `observe` and `info` show.
        on_elected: called with the leadership once elected, in a thread or task of its own. If it raises, the leader
            resigns.
        on_lost: called once with the leadership when it is lost, or when it is resigned, before the lock is released.
            Never called without an election before it. `on_elected` may still be running: stop its work here.
        """
        if unknown:
            raise unknown_option(self.election, unknown)
        return AsyncElection(
            self._engine,
            self._running,
            name,
            self._defaults,
            ttl=ttl,
            grace=grace,
            metadata=metadata,
            on_elected=on_elected,
            on_lost=on_lost,
        )

    async def with_lock(
        self,
        name: str,
        function: Callable[[], Awaitable[T]],
        *,
        ttl: Seconds | None = None,
        timeout: Seconds | None = None,
        metadata: Mapping[str, Any] | None = None,
        max_hold: Seconds | None = None,
        at_least: Seconds = 0.0,
        renew: bool = True,
        reentrant: bool = False,
        on_lost: Callable[[AsyncLockHandle], object] | None = None,
        retry: RetryPolicy | None = None,
        **unknown: Never,
    ) -> T:
        """Acquire a lock, call `function`, release the lock, and return the result.

        ttl: how long the lock stays held if this process dies; while it runs, the lease is renewed. None: the client's.
        timeout: how long to wait; None waits without limit, 0 does not wait.
        metadata: a JSON object of up to 4096 bytes that `info`, `inspect` and `lockstead ls` show.
        max_hold: stop renewing this long after the grant, so that a stuck holder does not hold for ever; None: never.
        at_least: keep the name reserved until this long after the grant, however early it is released.
        renew: renew while held; False: the lease expires after one ttl unless you call `extend`.
        reentrant: let the same thread or task acquire the name again, through this client, without waiting.
        on_lost: called once with the handle, in a thread or task of its own, if the lock is lost.
        retry: how to retry when the store does not answer. None: the client's policy.

        Raises LockAcquisitionError after `timeout`.
        """
        if unknown:
            raise unknown_option(self.with_lock, unknown)
        check_async_work(function)
        plan = plans.plan(
            name,
            self._defaults,
            ttl=ttl,
            timeout=timeout,
            metadata=metadata,
            max_hold=max_hold,
            at_least=at_least,
            renew=renew,
            reentrant=reentrant,
            on_lost=on_lost,
            retry=retry,
        )
        async with await acquired(AsyncLockHandle(self._engine), plan, is_scoped=True):
            return await function()

    async def is_locked(self, name: str) -> bool:
        """Return whether the name is held, or reserved by `at_least` or `once`."""
        return await self.info(name) is not None

    async def info(self, name: str) -> LockInfo | None:
        """Return the holders of the name; None if it is free."""
        line = await inspection.find(self._engine, check_name(name))
        return info.describe(line) if line else None

    async def inspect(self, prefix: str = "") -> list[LockInfo]:
        """List the locks that are held and whose name starts with `prefix`, sorted by name."""
        return [info.describe(line) for line in await inspection.find_all(self._engine, prefix)]

    async def force_release(self, name: str) -> LockInfo | None:
        """Release a lock by force, and return its former holders; None if it was free.

        A holder detects that only at its next renewal. Until then two clients may believe that they hold the lock,
        and only the fence protects.
        """
        line = await inspection.force_release(self._engine, check_name(name))
        return info.describe(line) if line else None

    async def examine(self) -> list[Finding]:
        """Check the store for problems that could cost locks, as `lockstead doctor` does."""
        return await inspection.examine(self._engine)

    async def release_all(self) -> int:
        """Release everything this client holds, and return the number of locks."""
        return await self._engine.release_all()

    def release_on(self, *signals: int) -> None:
        """Release everything when one of these signals ends the process: ``locks.release_on(signal.SIGTERM)``.

        Without this, SIGTERM ends a process at once, and what it holds is free after the ttl; on SQLite on Linux at
        once. With it, elections call `on_lost`, every lock is released, within a second unless `on_lost` takes longer,
        and then the process ends by that signal. Call it in the main thread.

        If the client belongs to an event loop that is running, the handler only schedules the release in it: a task
        that blocks the loop delays the release and the end of the process.

        If the program handles the signal itself, its handler is called instead and decides what follows; locks stay
        held while its work goes on, and are released where the program does, or when it exits. A signal that is
        ignored stays ignored. Not promised: anything for SIGKILL.
        """
        runtime = self._engine.runtime
        assert isinstance(runtime, AsyncRuntime)
        release_on(signals, self._engine, runtime, self._running)

    async def close(self) -> None:
        """Release everything and close the store, unless you passed one in; later calls raise ClosedError."""
        try:
            await self._engine.close(self._running)
        finally:
            if self._owns_store:
                await self._engine.store.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle how to make another client of the same store, which holds nothing. The URL may hold a password."""
        return remake, (type(self), portable_url(self._source, self._engine.store), self._options)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()
