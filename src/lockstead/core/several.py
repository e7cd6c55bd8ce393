"""Several names at once: all or none.

Whoever must wait for one waits for them all in the order of their names, so nobody ever waits for somebody who waits
for him. Not promised: anything about locks that are acquired while such a set is held; take them as one set.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from math import inf
from typing import NamedTuple

from lockstead.core.engine import MIN_REQUEST_TIMEOUT, Engine
from lockstead.core.keeper import BATCH
from lockstead.core.lease import PATIENCE, Claim, Lease
from lockstead.core.model import Ask, Refusal, Standing
from lockstead.core.retry import RetryPolicy
from lockstead.core.store import MultiJoining
from lockstead.errors import LockAcquisitionError, StoreError

CLEANUP_BUDGET = 0.5
"""How long giving names up may keep the caller; what is left by then is left to the keeper."""


class MultiRequest(NamedTuple):
    """What is asked for, by whom, since when, and for how long it is worth asking."""

    asks: Sequence[Ask]
    claim: Claim
    renew_for: float
    started: float
    deadline: float
    retry: RetryPolicy


async def acquire_all(
    engine: Engine, asks: Sequence[Ask], claim: Claim, *, timeout: float, renew_for: float, retry: RetryPolicy
) -> list[Lease]:
    """Acquire names given in their order: in one step if all are free, else one after another.

    Raises as `Engine.acquire` does, naming the one that could not be had; then none is held.
    """
    started = engine.runtime.now()
    wish = MultiRequest(asks, claim, renew_for, started, started + (timeout if asks[0].queue else PATIENCE), retry)
    leases = await _join_together(engine, wish)
    attempts = 1
    while leases is None:
        leases = await _acquire_in_order(engine, wish)
        if await _claim_ttls(engine, wish, leases):
            break
        await _abandon(engine, leases)
        attempts += 1
        now = engine.runtime.now()
        if attempts > 1 + retry.max_retries or now >= wish.deadline:
            raise engine.not_acquired(asks[0], None, attempts, now - started)
        leases = None
    return leases


async def _join_together(engine: Engine, wish: MultiRequest) -> list[Lease] | None:
    """Take all if all are free; None if somebody holds any and we may wait, or if the store has no such step."""
    if not isinstance(engine.store, MultiJoining):
        return None
    fitting = [engine.adapt(ask)[0]._replace(queue=False) for ask in wish.asks]
    leases: list[Lease] = []
    try:
        leases.extend(engine.begin(ask, wish.claim, wish.renew_for) for ask in fitting)
        outcome, sent = await engine.with_retries(_joining(engine.store, leases), leases[0], wish.deadline, wish.retry)
    except StoreError as error:
        for lease in leases:
            engine.drop(lease, error)
        if wish.asks[0].queue and engine.is_late(error, wish.deadline, wish.retry):
            raise engine.too_busy(wish.asks[0], 1, engine.runtime.now() - wish.started) from error
        raise
    except BaseException as interruption:
        await _abandon(engine, leases, interruption)
        raise
    if isinstance(outcome, list) and _note(engine, leases, sent, outcome):
        return leases
    if isinstance(outcome, list) or leases[0].unanswered:
        await _abandon(engine, leases)
    else:
        for lease in leases:
            engine.keeper.forget(lease)
    if isinstance(outcome, Refusal) and (outcome.capacity or not wish.asks[0].queue):
        ask = next(ask for ask in wish.asks if ask.name == outcome.name)
        raise engine.not_acquired(ask, outcome, 1, engine.runtime.now() - sent)
    return None


def _joining(
    store: MultiJoining, leases: Sequence[Lease]
) -> Callable[[Lease, float], Awaitable[list[Standing] | Refusal | None]]:
    async def join_all(_: Lease, timeout: float) -> list[Standing] | Refusal | None:
        for lease in leases:
            lease.unanswered += 1
        answer = await store.join_all([lease.ask for lease in leases], timeout)
        for lease in leases:
            lease.unanswered -= 1
        return answer

    return join_all


async def _acquire_in_order(engine: Engine, wish: MultiRequest) -> list[Lease]:
    """Wait for one after another.

    Until all are held, each lives from heartbeat to heartbeat only: whoever dies waiting for the last must not keep
    the first for a whole ttl.
    """
    leases: list[Lease] = []
    try:
        for ask in wish.asks:
            now = engine.runtime.now()
            _check_in_time(wish, ask, len(leases), now)
            left = max(wish.deadline - now, 0.0)
            short = ask._replace(ttl=ask.heartbeat)
            leases.append(await engine.acquire(short, wish.claim, timeout=left, retry=wish.retry, since=wish.started))
    except BaseException as error:
        await _abandon(engine, leases, error)
        raise
    return leases


def _check_in_time(wish: MultiRequest, ask: Ask, held: int, now: float) -> None:
    """Raise if the time is over before the next name was asked for; the first is, in any case."""
    if held and now >= wish.deadline:
        waited = now - wish.started
        msg = f"{ask.name!r} was not acquired in {waited:.1f} s: by then {held} of {len(wish.asks)} names were"
        raise LockAcquisitionError(msg, name=ask.name, attempts=1, waited=waited)


async def _claim_ttls(engine: Engine, wish: MultiRequest, leases: Sequence[Lease]) -> bool:
    """Buy them all their full lives in one round trip; False if one was lost meanwhile, or nobody can tell."""
    sent = engine.runtime.now()
    for lease, ask in zip(leases, wish.asks, strict=True):
        lease.change_ttl(ask.ttl, sent, wish.renew_for)
    patience = max(min(PATIENCE, wish.deadline - sent), MIN_REQUEST_TIMEOUT)
    standings: list[Standing | None] = []
    try:
        for start in range(0, len(leases), BATCH):
            batch = [lease.renewal(lease.ask.ttl) for lease in leases[start : start + BATCH]]
            standings += await engine.store.renew(batch, patience)
    except StoreError as error:
        if error.transient:
            return False
        await _abandon(engine, leases, error)
        raise
    except BaseException as interruption:
        await _abandon(engine, leases, interruption)
        raise
    return _note(engine, leases, sent, standings)


def _note(engine: Engine, leases: Sequence[Lease], sent: float, standings: Sequence[Standing | None]) -> bool:
    """Take in the answers, and say whether all are held by them, still."""
    for lease, standing in zip(leases, standings, strict=True):
        engine.keeper.note(lease, sent, lease.ask.ttl, standing)
    now = engine.runtime.now()
    return all(standing and standing.held for standing in standings) and all(lease.is_held(now) for lease in leases)


async def _abandon(engine: Engine, leases: Sequence[Lease], interruption: BaseException | None = None) -> None:
    """Give all of these up, the last first, even on the way out of an interruption.

    Once the store does not answer for one, or it takes long, the others are left to the keeper.
    """
    until = engine.runtime.now() + CLEANUP_BUDGET
    left = list(leases)
    for lease in left:  # nobody is to renew the last of them while the first is left
        lease.give_up(engine.runtime.now(), due=inf)
    try:
        while left:
            lease = left.pop()
            await engine.abandon(lease, interruption)
            if lease.ask.owner in engine.keeper.leases or engine.runtime.now() >= until:
                break
    finally:
        for lease in left:
            engine.keeper.release_in_background(lease)
