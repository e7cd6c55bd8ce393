"""The client for asyncio."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
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
from leasehold._store import Store
from leasehold.errors import InvalidInputError, LockAcquisitionError, LockLostError, StoreError
from leasehold.runtimes.aio import AsyncRuntime
from leasehold.stores import open_store

P = ParamSpec("P")
T = TypeVar("T")


class AsyncLockHandle(Handle):
    """A lock you hold. As a context manager it releases at the end of its block, and cancels the block if lost."""

    _lost: asyncio.Event | None = None
    _body: asyncio.Task[object] | None = None
    _cancelling = 0
    _cancelled_body = False

    @property
    def lost(self) -> asyncio.Event:
        """An event that is set once the lock is lost: before anybody else can hold it."""
        if self._lost is None:
            self._lost = asyncio.Event()
            self._watch(self._lost.set)
        return self._lost

    async def release(self) -> None:
        """Give the lock up. Once is enough, more do no harm; in a forked child it does nothing.

        Raises LockLostError if it was lost before, StoreError if the store does not answer: it is then given
        up in the background, or expires. Cancelled, it is given up all the same.
        """
        await self._release()

    async def extend(self, seconds: Seconds) -> None:
        """Keep the lock at least that long from now, `max_hold` or not. Never shortens it.

        Raises LockLostError if it is lost, InvalidLockError if it was released.
        """
        life = check_ttl(seconds, "an extension")
        self._check_unreleased()
        await self._engine.extend(self._lease, life)

    async def info(self) -> LockInfo | None:
        """Ask the store who holds the name now."""
        line = await self._engine.find(self.name)
        return _info.describe(line) if line else None

    async def __aenter__(self) -> Self:
        self._body = asyncio.current_task()
        if self._body is not None:
            self._cancelling = self._body.cancelling()
            self._engine.keeper.watch(self._lease, self._cancel_body)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._engine.keeper.unwatch(self._lease, self._cancel_body)
        ours = self._cancelled_body and await self._take_back_cancellation(error)
        try:
            await self.release()
        except (LockLostError, StoreError) as failure:
            if error is None or (ours and isinstance(error, asyncio.CancelledError)):
                raise failure from error
            error.add_note(str(failure))

    def _cancel_body(self) -> None:
        assert self._body is not None
        self._cancelled_body = True
        self._body.cancel(f"the lock {self.name!r} was lost")

    async def _take_back_cancellation(self, error: BaseException | None) -> bool:
        """Undo our own cancellation; False if somebody else has cancelled too, who then wins."""
        assert self._body is not None
        if not isinstance(error, asyncio.CancelledError):
            try:
                await asyncio.sleep(0)  # the body ended before it was delivered
            except asyncio.CancelledError:
                if self._body.uncancel() > self._cancelling:
                    raise
                return True
        return self._body.uncancel() <= self._cancelling


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
        return await self._acquire(_primitives.exclusive(name, self._defaults, **options))

    async def try_acquire(self, name: str, **options: Unpack[TryOptions]) -> AsyncLockHandle | None:
        """Take a lock if it is free, else return None."""
        try:
            return await self._acquire(_primitives.exclusive(name, self._defaults, timeout=0, **options))
        except LockAcquisitionError as refusal:
            if not refusal.holder:
                raise
            return None

    @asynccontextmanager
    async def lock(self, name: str, **options: Unpack[LockOptions]) -> AsyncIterator[AsyncLockHandle]:
        """Hold a lock for a block, which is cancelled and LockLostError raised if the lock is lost."""
        async with await self.acquire(name, **options) as handle:
            yield handle

    def locked(
        self, naming: Naming, **options: Unpack[LockOptions]
    ) -> Callable[[Callable[P, Awaitable[T]]], Callable[P, Awaitable[T]]]:
        """Hold a lock during every call, named after its arguments: ``@locks.locked("account:{account_id}")``."""

        def decorate(function: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
            if not inspect.iscoroutinefunction(function):
                msg = f"{function.__qualname__} is not a coroutine function: use DistributedLock"
                raise InvalidInputError(msg)
            name_call = name_for_calls(naming, function)

            @functools.wraps(function)
            async def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
                async with await self.acquire(name_call(*args, **kwargs), **options):
                    return await function(*args, **kwargs)

            return guarded

        return decorate

    async def with_lock(self, name: str, function: Callable[[], Awaitable[T]], **options: Unpack[LockOptions]) -> T:
        """Hold a lock while `function` runs, and return what it returns."""
        async with await self.acquire(name, **options):
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

    async def _acquire(self, plan: Plan) -> AsyncLockHandle:
        self._runtime.bind()
        return await AsyncLockHandle(self._engine)._acquire(plan)


_defaults: dict[asyncio.AbstractEventLoop, AsyncDistributedLock] = {}


def get_async_distributed_lock() -> AsyncDistributedLock:
    """Return the client of the running event loop: on LEASEHOLD_URL, else on the user's own SQLite file."""
    for loop in [loop for loop, locks in _defaults.items() if loop.is_closed() or locks._engine.keeper.closing]:
        _defaults.pop(loop, None)
    running = asyncio.get_running_loop()
    if running not in _defaults:
        _defaults[running] = AsyncDistributedLock()
    return _defaults[running]
