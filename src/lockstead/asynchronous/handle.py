"""What a task holds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

from lockstead.core.checks import Seconds, check_ttl
from lockstead.errors import LockLostError, StoreError
from lockstead.primitives import info as _info
from lockstead.primitives.handle import Handle, Multiple, Single
from lockstead.primitives.info import LockInfo


class AsyncHeld(Handle):
    """What is held by a task. As a context manager it releases at its block's end, and cancels the block if lost."""

    _lost: asyncio.Event | None = None
    _body: asyncio.Task[object] | None = None
    _cancelling = 0
    _cancelled_body = False
    _watcher: Callable[[], None] | None = None

    @property
    def lost(self) -> asyncio.Event:
        """An event that is set once it is lost: before anybody else can hold."""
        if self._lost is None:
            self._lost = asyncio.Event()
            self._watch(self._lost.set)
        return self._lost

    async def release(self) -> None:
        """Give it up. Once is enough, more do no harm; in a forked child it does nothing.

        Raises LockLostError if it was lost before, StoreError if the store does not answer: it is then given
        up in the background, or expires. Cancelled, it is given up all the same.
        """
        await self._release()

    async def extend(self, seconds: Seconds) -> None:
        """Hold it at least that long from now, `max_hold` or not. Never shortens it.

        Raises LockLostError if it is lost, InvalidLockError if it was released.
        """
        await self._extend(check_ttl(seconds, "an extension"))

    async def __aenter__(self) -> Self:
        self._enter_block()
        self._body = asyncio.current_task()
        if self._body is not None:
            self._cancelling = self._body.cancelling()
            self._watcher = self._watch(self._cancel_body)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        watcher, self._watcher = self._watcher, None  # which refers to us
        if watcher is not None:
            self._unwatch(watcher)
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
        self._body.cancel(f"{self._title} was lost")

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


class AsyncLockHandle(AsyncHeld, Single):
    """One name you hold: a lock, a reader's or writer's side of one, or permits of a semaphore."""

    async def info(self) -> LockInfo | None:
        """Ask the store who holds the name now."""
        line = await self._engine.find(self.name)
        return _info.describe(line) if line else None


class AsyncMultiLockHandle(AsyncHeld, Multiple):
    """Several names you hold: while one of them is lost, the whole is."""
