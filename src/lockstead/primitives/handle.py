"""What all kinds of handle share: everything that needs no round trip."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, Self

from lockstead.core.engine import Engine
from lockstead.core.keeper import log
from lockstead.core.lease import Claim, Lease
from lockstead.core.multi_lock import acquire_all
from lockstead.core.store import Reserving
from lockstead.errors import InvalidLockError, LockError, LockLostError, StoreError, UnsupportedError
from lockstead.primitives.plans import Plan

RESERVING_STORES = "use memory, SQLite, Redis or PostgreSQL (not advisory)"


class Handle:
    """One acquisition. Keep a reference while you hold the lock: a handle that is garbage-collected is not renewed."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._released = False
        self._leases: tuple[Lease, ...] = ()
        self._claim: Claim | None = Claim()
        self._watching: tuple[Callable[[], None], ...] = ()

    async def _acquire(self, plan: Plan) -> Self:
        """Acquire what was planned. Whatever interrupts it, no place stays behind."""
        try:
            await self._acquire_planned(plan)
        except BaseException:
            self._abandon()
            raise
        return self

    def _abandon(self) -> None:
        """Release in the background what is held, or was about to be: the call was interrupted."""
        claim, self._released = self._claim, True
        if claim is not None:
            self._engine.give_up(self._leases if claim.outer else claim.leases, claim)
            self._claim = None

    def _enter_block(self) -> None:
        """Have it released however the block is left, even where an interrupt prevents the call of `release`."""
        if self._claim is not None and self._claim.outer is None:  # else the lease belongs to another handle
            for lease in self._leases:
                self._engine.keeper.watch_claim(lease)

    async def _acquire_planned(self, plan: Plan) -> None:
        asks, timeout, renew_for, at_least, grace, retry, reentrant, _, is_scoped = plan
        engine, claim = self._engine, self._claim
        assert claim is not None
        claim.is_scoped = is_scoped
        if at_least and not isinstance(engine.store, Reserving):
            msg = f"this store cannot reserve a name after its release, as at_least needs: {RESERVING_STORES}"
            raise UnsupportedError(msg, name=asks[0].name)
        if reentrant and (entered := await engine.reenter(asks[0], claim)):
            self._leases = (entered,)
        elif len(asks) > 1:
            leases = await acquire_all(engine, asks, claim, timeout=timeout, renew_for=renew_for, retry=retry)
            self._leases = tuple(leases)
        else:
            lease = await engine.acquire(asks[0], claim, timeout=timeout, renew_for=renew_for, grace=grace, retry=retry)
            self._leases = (lease,)
            if reentrant:
                engine.enter(lease)
        if at_least:
            until = engine.runtime.now() + at_least
            for lease in self._leases:
                lease.reserved_until = max(lease.reserved_until, until)
        if plan.on_lost is not None:
            on_lost, handle = plan.on_lost, weakref.ref(self)  # the lease must not keep its handle alive
            spawn = self._engine.runtime.spawn
            names = ", ".join(repr(ask.name) for ask in plan.asks)
            address = engine.store.address
            self._watch(lambda: spawn(partial(_call_on_lost, on_lost, handle(), names, address), "lockstead-on-lost"))
        engine.check_open(asks[0].name)  # closed meanwhile: `close` has released it

    def _watch(self, on_lost: Callable[[], None]) -> Callable[[], None]:
        """Call `on_lost` once, when the first of the leases is lost; return what `_unwatch` needs."""
        watcher = on_lost if len(self._leases) == 1 else _once(on_lost)
        self._watching += (watcher,)
        for lease in self._leases:
            self._engine.keeper.watch(lease, watcher)
        return watcher

    def _unwatch(self, watcher: Callable[[], None]) -> None:
        self._watching = tuple(other for other in self._watching if other != watcher)
        for lease in self._leases:
            self._engine.keeper.unwatch(lease, watcher)

    async def _release(self) -> None:
        """Release once; afterwards the handle neither keeps the lease alive nor receives its loss."""
        if self._released:
            return
        try:
            self._released = True
            await self._release_leases()
        except LockError:
            raise
        except BaseException:
            self._abandon()
            raise

    async def _release_leases(self) -> None:
        failure: LockLostError | StoreError | None = None
        claim = self._claim
        left = list(self._leases)
        try:
            while left:
                try:
                    await self._engine.release(left.pop(), claim)
                except LockLostError as error:
                    failure = error
                except StoreError as error:
                    failure = error
                    break
        finally:
            for lease in left:
                self._engine.keeper.release_in_background(lease)
        self._claim = None
        if failure is not None:
            raise failure
        for watcher in self._watching:
            self._unwatch(watcher)

    async def _extend(self, seconds: float) -> None:
        self._check_unreleased()
        for lease in self._leases:
            await self._engine.extend(lease, seconds)

    def _reserve_name(self, seconds: float, metadata: str) -> None:
        """When released, keep the name reserved for that long from now, with that metadata."""
        for lease in self._leases:
            lease.reserved_until = self._engine.runtime.now() + seconds
            lease.reserved_metadata = metadata

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
