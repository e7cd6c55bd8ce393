"""Handles of what a task holds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

from lockstead.core import inspection
from lockstead.core.checks import Seconds, check_ttl
from lockstead.errors import LockError, LockLostError, StoreError
from lockstead.primitives import info
from lockstead.primitives.handle import Handle, Multiple, Single
from lockstead.primitives.info import LockInfo


class AsyncHeld(Handle):
    """A handle for asyncio. As a context manager it releases at the end of its block, and cancels the block if lost."""

    _lost: asyncio.Event | None = None
    _body: asyncio.Task[object] | None = None
    _cancelling = 0
    _cancelled_body = False
    _watcher: Callable[[], None] | None = None

    @property
    def lost(self) -> asyncio.Event:
        """An event that is set when the lock is lost, before another client can hold it."""
        if self._lost is None:
            self._lost = asyncio.Event()
            self._watch(self._lost.set)
        return self._lost

    async def release(self) -> None:
        """Release the lock. A second call does nothing; nor does a call in a forked child.

        Raises LockLostError if it was lost before, StoreError if the store does not answer: it is then released in the
        background, or expires. If this call is cancelled, the lock is released all the same.
        """
        if self._released:
            return
        try:  # as `_release_once`, without a coroutine of its own
            self._released = True
            await self._release()
        except LockError:
            raise
        except BaseException:
            self._abandon()
            raise

    async def extend(self, seconds: Seconds) -> None:
        """Extend the lease to at least that many seconds from now, regardless of `max_hold`. Never shortens it.

        Raises LockLostError if the lock is lost, InvalidLockError if it was released.
        """
        await self._extend(check_ttl(seconds, "an extension"))

    async def __aenter__(self) -> Self:
        self._enter_block()
        self._enter_body()
        return self

    def _enter_body(self) -> None:
        """Have the running task cancelled if the lock is lost."""
        self._body = self._claim.opened_by = body = asyncio.current_task()
        if body is not None:
            self._cancelling = body.cancelling()
            if self._claim.outer is not None:  # the lease's own claim is that of another handle
                self._watcher = self._watch(self._cancel_body)
                return
            self._claim.on_lost = self._cancel_body  # a cycle, until the block is left
            if any(lease.loss is not None for lease in self._claim.leases):
                self._cancel_body()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._claim.on_lost = None
        watcher, self._watcher = self._watcher, None  # it refers to this handle
        if watcher is not None:
            self._unwatch(watcher)
        try:
            ours = self._cancelled_body and await self._take_back_cancellation(error)
        except BaseException:  # cancelled from outside, too
            self._abandon()
            raise
        try:
            await self._release_once()
        except (LockLostError, StoreError) as failure:
            if error is None or (ours and isinstance(error, asyncio.CancelledError)):
                raise failure from error
            error.add_note(str(failure))

    def _cancel_body(self) -> None:
        if self._body is not None and not self._cancelled_body:
            self._cancelled_body = True
            self._body.cancel(f"{self._title} was lost")

    async def _take_back_cancellation(self, error: BaseException | None) -> bool:
        """Undo our own cancellation; False if the task was also cancelled from outside, which takes precedence."""
        assert self._body is not None
        if not isinstance(error, asyncio.CancelledError):
            try:
                await asyncio.sleep(0)  # the body ended before it was delivered
            except asyncio.CancelledError:
                if self._body.uncancel() > self._cancelling:
                    raise
                return True
        return self._body.uncancel() <= self._cancelling


class AsyncLockHandle(AsyncHeld, Single):
    """The handle of one name: a lock, one side of a read-write lock, or permits of a semaphore."""

    async def info(self) -> LockInfo | None:
        """Ask the store for the current holders of the name; None if it is free."""
        line = await inspection.find(self._engine, self.name)
        return info.describe(line) if line else None


class AsyncMultiLockHandle(AsyncHeld, Multiple):
    """The handle of several names: if one of them is lost, `is_held` is False for all."""
