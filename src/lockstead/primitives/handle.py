"""What all kinds of handle share: everything that needs no round trip."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from lockstead.core.engine import Engine
from lockstead.core.keeper import log
from lockstead.core.lease import Claim, Lease
from lockstead.core.multi_lock import acquire_all, release_all
from lockstead.core.refusals import Busy
from lockstead.core.store import Reserving
from lockstead.errors import InvalidLockError, LockError, UnsupportedError
from lockstead.primitives.pickling import NotPickled
from lockstead.primitives.plans import Plan

RESERVING_STORES = "use memory, SQLite, Redis or PostgreSQL (not advisory)"


H = TypeVar("H", bound="Handle")


class Handle(NotPickled):
    """One acquisition. Keep a reference while you hold the lock: a handle that is garbage-collected is not renewed."""

    _instead = (
        "the lock belongs to the client that holds it. Pass the name and the fence on, and let what is protected check "
        "the fence; to hold the lock in another process, acquire it there"
    )
    _released = False
    _watching: tuple[Callable[[], None], ...] = ()

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._claim = Claim()

    def _acquire(self, plan: Plan, *, is_scoped: bool = False) -> Coroutine[Any, Any, Lease | Busy | None]:
        """Acquire what was planned, for a block if `is_scoped`. Busy: it is not free; anything else: it is held.

        A caller that is interrupted while it awaits this has to call `_abandon`.
        """
        asks, timeout, renew_for, at_least, grace, retry, reentrant, on_lost = plan
        if is_scoped:
            self._claim.is_scoped = True
        if len(asks) > 1 or at_least or reentrant or on_lost is not None:
            return self._acquire_with_options(plan)
        return self._engine.acquire(
            asks[0], self._claim, timeout=timeout, renew_for=renew_for, grace=grace, retry=retry
        )

    async def _acquire_with_options(self, plan: Plan) -> Busy | None:
        asks, timeout, renew_for, at_least, grace, retry, reentrant, on_lost = plan
        engine, claim = self._engine, self._claim
        if at_least and not isinstance(engine.store, Reserving):
            msg = f"this store cannot reserve a name after its release, as at_least needs: {RESERVING_STORES}"
            raise UnsupportedError(msg, name=asks[0].name)
        outcome: Lease | Busy | None
        entered = await engine.reenter(asks[0], claim) if reentrant else None
        if entered is not None:
            outcome = entered
        elif len(asks) > 1:
            outcome = await acquire_all(engine, asks, claim, timeout=timeout, renew_for=renew_for, retry=retry)
        else:
            outcome = await engine.acquire(
                asks[0], claim, timeout=timeout, renew_for=renew_for, grace=grace, retry=retry
            )
            if reentrant and isinstance(outcome, Lease):
                engine.reentrance.register(outcome, claim)
        if isinstance(outcome, Busy):
            return outcome
        if at_least:
            engine.reserve(claim.leases, engine.runtime.now() + at_least)
        if on_lost is not None:
            self._call_when_lost(on_lost)
        engine.check_open(asks[0].name)  # closed meanwhile: `close` has released it
        return None

    def _call_when_lost(self, on_lost: Callable[[Any], Any]) -> None:
        handle = weakref.ref(self)  # the lease must not keep its handle alive
        names = ", ".join(repr(lease.ask.name) for lease in self._leases)
        spawn, address = self._engine.runtime.spawn, self._engine.store.address
        self._watch(lambda: spawn(partial(_call_on_lost, on_lost, handle(), names, address), "lockstead-on-lost"))

    def _abandon(self) -> None:
        """Release in the background what is held, or was about to be: the call was interrupted."""
        self._released = True
        self._engine.give_up(self._claim)

    def _enter_block(self) -> None:
        """Have it released however the block is left, even where an interrupt prevents the call of `release`."""
        if self._claim.outer is None:  # else the lease belongs to another handle
            self._engine.scope(self._claim)

    @property
    def _leases(self) -> tuple[Lease, ...]:
        return self._claim.leases

    def _watch(self, on_lost: Callable[[], None]) -> Callable[[], None]:
        """Call `on_lost` once, when the first of the leases is lost; return what `_unwatch` needs."""
        watcher = on_lost if len(self._leases) == 1 else _once(on_lost)
        self._watching += (watcher,)
        for lease in self._leases:
            self._engine.watch(lease, watcher)
        return watcher

    def _unwatch(self, watcher: Callable[[], None]) -> None:
        self._watching = tuple(other for other in self._watching if other != watcher)
        for lease in self._leases:
            self._engine.unwatch(lease, watcher)

    def _release(self) -> Coroutine[Any, Any, None]:
        """Release; afterwards the handle does not receive the loss of a lease that it re-entered.

        The caller has set `_released`, and calls `_abandon` if this is interrupted.
        """
        leases = self._claim.leases
        if len(leases) == 1 and not self._watching:
            return self._engine.release(leases[0], self._claim)
        return self._release_leases()

    async def _release_once(self) -> None:
        """Release; a second call does nothing."""
        if self._released:
            return
        try:
            self._released = True
            await self._release()
        except LockError:
            raise
        except BaseException:
            self._abandon()
            raise

    async def _release_leases(self) -> None:
        await release_all(self._engine, self._claim)
        for watcher in self._watching:
            self._unwatch(watcher)

    async def _extend(self, seconds: float) -> None:
        self._check_unreleased()
        for lease in self._leases:
            await self._engine.extend(lease, seconds)

    def _reserve_name(self, seconds: float, metadata: str) -> None:
        """When released, keep the name reserved for that long from now, with that metadata."""
        self._engine.reserve(self._leases, self._engine.runtime.now() + seconds, metadata)

    @property
    def holder_id(self) -> str:
        """The client that holds: host:pid:random."""
        return self._leases[0].ask.owner.rpartition("/")[0]

    @property
    def is_held(self) -> bool:
        """Whether the lock is surely still held, judged by the local clock alone: no round trip."""
        return self.remaining > 0

    @property
    def remaining(self) -> float:
        """Seconds for which the lock is surely held even if no further renewal succeeds; 0 if it is not held."""
        if self._released:
            return 0.0
        now = self._engine.runtime.now()
        return min(lease.trusted_until - now if lease.is_held(now) else 0.0 for lease in self._leases)

    @property
    def is_exclusive(self) -> bool:
        """Whether no other client can hold it: False for readers and permits, whose fences order nothing."""
        return all(lease.ask.weight == lease.ask.capacity for lease in self._leases)

    def check(self) -> None:
        """Raise LockLostError or InvalidLockError unless the lock is surely still held. No round trip."""
        self._check_unreleased()
        for lease in self._leases:
            self._engine.check(lease)

    def _check_unreleased(self) -> None:
        if self._released:
            msg = f"{self._title} was released already: acquire it again"
            raise InvalidLockError(msg, name=self._leases[0].ask.name)

    @property
    def _title(self) -> str:
        return ", ".join(f"{lease.ask.name!r} (fence {lease.fence})" for lease in self._leases)

    def __repr__(self) -> str:
        names = ", ".join(f"{lease.ask.name!r} fence={lease.fence}" for lease in self._leases)
        return f"<{type(self).__name__} {names} {'held' if self.is_held else 'not held'}>"


class Single(Handle):
    """A handle of one name."""

    @property
    def name(self) -> str:
        """The name of the lock."""
        return self._leases[0].ask.name

    @property
    def fence(self) -> int:
        """The fencing token: an integer that grows with every holder. Let what you protect refuse smaller ones."""
        return self._leases[0].fence


class Multiple(Handle):
    """A handle of several names."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names, sorted, each once."""
        return tuple(lease.ask.name for lease in self._leases)

    @property
    def fences(self) -> dict[str, int]:
        """The fencing token of each name."""
        return {lease.ask.name: lease.fence for lease in self._leases}


async def acquired(handle: H, plan: Plan, *, is_scoped: bool = False) -> H:
    """Acquire what is planned. Raises LockAcquisitionError if it is not free in time."""
    try:
        outcome = await handle._acquire(plan, is_scoped=is_scoped)
        busy = outcome if isinstance(outcome, Busy) else None  # here: an interrupt may come after each call
    except BaseException:
        handle._abandon()
        raise
    if busy is not None:
        raise busy.error(handle._engine.holder_id)
    return handle


async def acquired_unless_busy(handle: H, plan: Plan, *, is_scoped: bool = False) -> H | None:
    """Acquire what is planned; None if it is not free."""
    try:
        is_busy = isinstance(await handle._acquire(plan, is_scoped=is_scoped), Busy)
    except BaseException:
        handle._abandon()
        raise
    return None if is_busy else handle


def _once(action: Callable[[], None]) -> Callable[[], None]:
    actions = [action]

    def act() -> None:
        try:
            only = actions.pop()
        except IndexError:
            return
        only()

    return act


async def _call_on_lost(on_lost: Callable[[Any], Any], handle: Handle | None, names: str, address: str) -> None:
    if handle is None:
        return
    try:
        result = on_lost(handle)
        if inspect.isawaitable(result):
            await result
    except Exception:
        log.exception("%s: on_lost callback of %s failed: the loss itself was signalled", address, names)
