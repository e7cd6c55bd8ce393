"""What both kinds of handle have in common: everything that needs no round trip."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable
from typing import Any, Self

from leasehold._engine import Engine
from leasehold._keeper import log
from leasehold._lease import Claim, Lease
from leasehold._primitives import Plan
from leasehold.errors import InvalidLockError


class Handle:
    """One acquisition. Keep it for as long as you hold: once it is collected, nobody renews the lease."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._released = False
        self._lease: Lease
        self._claim: Claim | None = None
        self._watching: list[Callable[[], None]] = []

    async def _acquire(self, plan: Plan) -> Self:
        """Get what was planned. The claim is ours from the start: an interrupt on the way leaves nobody holding it."""
        again = await self._engine.reenter(plan.ask) if plan.reentrant else None
        if again is not None:
            self._lease, self._claim = again
        else:
            self._claim = claim = Claim()
            self._lease = await self._engine.acquire(
                plan.ask, claim, timeout=plan.timeout, renew_for=plan.renew_for, retry=plan.retry
            )
            if plan.reentrant:
                self._engine.enter(self._lease)
        if plan.on_lost is not None:
            on_lost, me = plan.on_lost, weakref.ref(self)  # the lease must not keep its handle alive
            spawn = self._engine.runtime.spawn
            self._watch(lambda: spawn(_tell(on_lost, me()), "leasehold-on-lost"))
        return self

    def _watch(self, on_lost: Callable[[], None]) -> None:
        self._watching.append(on_lost)
        self._engine.keeper.watch(self._lease, on_lost)

    async def _release(self) -> None:
        """Give up once; from then on nothing here keeps the lease alive or is told of its loss."""
        if self._released:
            return
        self._released = True
        try:
            await self._engine.release(self._lease)
        finally:
            self._claim = None
        for on_lost in self._watching:
            self._engine.keeper.unwatch(self._lease, on_lost)

    @property
    def name(self) -> str:
        return self._lease.ask.name

    @property
    def fence(self) -> int:
        """An integer that grows with every holder of the name: let what you protect refuse smaller ones."""
        return self._lease.fence

    @property
    def holder_id(self) -> str:
        return self._lease.ask.owner.rpartition("/")[0]

    @property
    def is_held(self) -> bool:
        """Whether the lock is ours for sure, judged by the clock alone: no round trip."""
        return not self._released and self._lease.is_held(self._engine.runtime.now())

    @property
    def remaining(self) -> float:
        """Seconds for which the lock is ours for sure even if no renewal succeeds any more."""
        return max(self._lease.trusted_until - self._engine.runtime.now(), 0.0) if self.is_held else 0.0

    def check(self) -> None:
        """Raise LockLostError or InvalidLockError unless the lock is ours for sure. No round trip."""
        self._check_unreleased()
        self._engine.check(self._lease)

    def _check_unreleased(self) -> None:
        if self._released:
            msg = f"{self.name!r} (fence {self.fence}) was released already: acquire it again"
            raise InvalidLockError(msg, name=self.name)

    def __repr__(self) -> str:
        state = "held" if self.is_held else "not held"
        return f"<{type(self).__name__} {self.name!r} fence={self.fence} {state}>"


async def _tell(on_lost: Callable[[Any], Any], handle: Handle | None) -> None:
    if handle is None:
        return
    try:
        result = on_lost(handle)
        if inspect.isawaitable(result):
            await result
    except Exception:
        log.exception("on_lost of %r failed", handle.name)
