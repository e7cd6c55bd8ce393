"""Several names at once: all or none.

A client that must wait acquires them one after another in the order of their names, which is the same for every client:
so two multi-locks never wait for each other. Not promised: anything about locks that are acquired while a multi-lock is
held; acquire them as one set.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from lockstead.core.engine import Engine
from lockstead.core.lease import Claim, Lease
from lockstead.core.model import Ask, Refusal, Standing
from lockstead.core.refusals import Busy, mismatch, not_acquired, overloaded, too_slow
from lockstead.core.retry import RetryPolicy
from lockstead.core.store import MultiJoining
from lockstead.core.timing import BATCH, CLEANUP_BUDGET, REQUEST_TIMEOUT, request_timeout
from lockstead.errors import LockLostError, StoreError


class MultiRequest(NamedTuple):
    """One acquisition of several names."""

    asks: Sequence[Ask]
    claim: Claim
    renew_for: float
    started: float
    deadline: float
    retry: RetryPolicy


async def acquire_all(
    engine: Engine, asks: Sequence[Ask], claim: Claim, *, timeout: float, renew_for: float, retry: RetryPolicy
) -> Busy | None:
    """Acquire names given in sorted order: in one step if all are free, else one after another.

    None: all are held, under `claim.leases`. Busy names the one that is not free; then none is held. Raises as
    `Engine.acquire` does.
    """
    engine.check_call(asks[0].name)
    started = engine.runtime.now()
    request = MultiRequest(
        asks, claim, renew_for, started, started + (timeout if asks[0].queue else REQUEST_TIMEOUT), retry
    )
    outcome = await _join_together(engine, request)
    attempts = 1
    while outcome is None:
        outcome = await _acquire_in_order(engine, request)
        if isinstance(outcome, Busy) or await _claim_ttls(engine, request, outcome):
            break
        await _abandon(engine, outcome)
        attempts += 1
        now = engine.runtime.now()
        if attempts > 1 + retry.max_retries or now >= request.deadline:
            raise too_slow(asks[0], attempts, now - started)
        outcome = None
    if isinstance(outcome, Busy):
        return outcome
    claim.leases = tuple(outcome)
    return None


async def _join_together(engine: Engine, request: MultiRequest) -> list[Lease] | Busy | None:
    """Acquire all if all are free; None if one is held and we may wait, or if the store has no such step."""
    if not isinstance(engine.store, MultiJoining):
        return None
    fitting = [ask._replace(queue=False) for ask in request.asks]
    leases: list[Lease] = []
    try:
        leases.extend(engine.track(ask, request.claim, request.renew_for) for ask in fitting)
        waiting = leases[0] if request.asks[0].queue else None
        outcome, sent = await engine.with_retries(
            _joining(engine, engine.store, leases), leases[0], request.deadline, request.retry, waiting=waiting
        )
    except StoreError as error:
        for lease in leases:
            engine.drop(lease)
        if request.asks[0].queue and engine.is_late(error, request.deadline, request.retry):
            raise overloaded(request.asks[0], 1, engine.runtime.now() - request.started) from error
        raise
    except BaseException as interruption:
        await _abandon(engine, leases, interruption)
        raise
    if isinstance(outcome, list) and _apply(engine, leases, sent, outcome):
        return leases
    await _clear(engine, leases, outcome)
    if isinstance(outcome, Refusal) and (outcome.capacity or not request.asks[0].queue):
        ask = next(ask for ask in request.asks if ask.name == outcome.name)
        if outcome.capacity:
            raise mismatch(ask, outcome.capacity)
        return Busy(ask, outcome, 1, engine.runtime.now() - request.started)
    return None


async def _clear(engine: Engine, leases: Sequence[Lease], outcome: list[Standing] | Refusal | None) -> None:
    """Leave nothing of a step that did not give us all of the places."""
    if isinstance(outcome, list) or leases[0].joins_in_doubt:
        await _abandon(engine, leases)
    else:
        for lease in leases:
            engine.keeper.forget(lease)


def _joining(
    engine: Engine, store: MultiJoining, leases: Sequence[Lease]
) -> Callable[[Lease, float], Awaitable[list[Standing] | Refusal | None]]:
    is_first = True

    async def join_all(_: Lease, timeout: float) -> list[Standing] | Refusal | None:
        nonlocal is_first
        engine.check_open(leases[0].ask.name)
        for lease in leases if not is_first else ():
            lease.send_join_again()
        is_first = False
        try:
            answer = await store.join_all([lease.ask for lease in leases], timeout)
        except StoreError as error:
            for lease in leases:
                lease.join_failed(error)
            raise
        for lease in leases:
            lease.join_answered()
        return answer

    return join_all


async def _acquire_in_order(engine: Engine, request: MultiRequest) -> list[Lease] | Busy:
    """Wait for one name after another.

    Until all are held, each is renewed for one heartbeat at a time only: a client that dies waiting for the last name
    must not keep the first for a whole ttl.
    """
    leases: list[Lease] = []
    try:
        for ask in request.asks:
            now = engine.runtime.now()
            _check_in_time(request, ask, len(leases), now)
            left = max(request.deadline - now, 0.0)
            short = ask._replace(ttl=ask.heartbeat)
            outcome = await engine.acquire(
                short, request.claim, timeout=left, retry=request.retry, waited=now - request.started
            )
            if isinstance(outcome, Busy):
                await _abandon(engine, leases)
                return outcome
            leases.append(outcome)
    except BaseException as error:
        await _abandon(engine, leases, error)
        raise
    return leases


def _check_in_time(request: MultiRequest, ask: Ask, held: int, now: float) -> None:
    """Raise if the timeout has passed before the next name is requested; the first is requested in any case."""
    if held and now >= request.deadline:
        why = f"by then {held} of {len(request.asks)} names were; raise timeout"
        raise not_acquired(ask, 1, now - request.started, why)


async def _claim_ttls(engine: Engine, request: MultiRequest, leases: Sequence[Lease]) -> bool:
    """Claim the full ttl of all in one round trip; False if one was lost meanwhile, or the outcome is unknown."""
    sent = engine.runtime.now()
    with engine.keeper.mutex:
        for lease, ask in zip(leases, request.asks, strict=True):
            lease.change_ttl(ask.ttl, sent, request.renew_for)
    timeout = request_timeout(request.deadline - sent)
    standings: list[Standing] = []
    try:
        for start in range(0, len(leases), BATCH):
            batch = [lease.renewal(lease.ask.ttl) for lease in leases[start : start + BATCH]]
            standings += await engine.store.renew(batch, timeout)
    except StoreError as error:
        if error.transient:
            return False
        await _abandon(engine, leases, error)
        raise
    except BaseException as interruption:
        await _abandon(engine, leases, interruption)
        raise
    return _apply(engine, leases, sent, standings)


def _apply(engine: Engine, leases: Sequence[Lease], sent: float, standings: Sequence[Standing]) -> bool:
    """Apply the answers, and return whether all are held by them, and still are."""
    for lease, standing in zip(leases, standings, strict=True):
        engine.keeper.apply(lease, standing, sent, lease.ask.ttl)
    now = engine.runtime.now()
    return all(standing.held for standing in standings) and all(lease.is_held(now) for lease in leases)


async def release_all(engine: Engine, claim: Claim) -> None:
    """Release all leases of a claim, the last first. Raises the first failure, after all were tried or handed on.

    Once the store does not answer for one, the keeper releases the others.
    """
    failure: LockLostError | StoreError | None = None
    left = list(claim.leases)
    try:
        while left:
            try:
                await engine.release(left.pop(), claim)
            except LockLostError as error:
                failure = failure or error
            except StoreError as error:
                failure = failure or error
                break
    finally:
        for lease in left:
            engine.keeper.release_in_background(lease)
    if failure is not None:
        raise failure


async def _abandon(engine: Engine, leases: Sequence[Lease], interruption: BaseException | None = None) -> None:
    """Release all of these, the last first, also while an interruption is being handled.

    Once the store does not answer for one, or CLEANUP_BUDGET is used up, the keeper releases the others.
    """
    until = engine.runtime.now() + CLEANUP_BUDGET
    left = list(leases)
    with engine.keeper.mutex:
        for lease in left:  # the keeper must not renew one while another is being released
            lease.release(engine.runtime.now())
    try:
        while left:
            lease = left.pop()
            await engine.abandon(lease, interruption)
            if lease.ask.owner in engine.keeper.leases or engine.runtime.now() >= until:
                break
    finally:
        for lease in left:
            engine.keeper.release_in_background(lease)
