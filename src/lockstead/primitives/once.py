"""Idempotency keys: the first caller runs the work, the others receive its result.

A key is a lock that is reserved, once the work is done, for as long as the outcome is to be remembered; the outcome is
the metadata of that reservation. An attempt that fails releases the key; the key of one that dies is free when its ttl
expires.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

from lockstead.core import inspection
from lockstead.core.checks import encode_metadata
from lockstead.core.engine import Engine
from lockstead.core.refusals import Busy, how_to_wait
from lockstead.core.store import Reserving
from lockstead.core.timing import POLLING
from lockstead.errors import DamagedError, InvalidInputError, LockAcquisitionError, UnsupportedError
from lockstead.primitives import info
from lockstead.primitives.handle import RESERVING_STORES, Handle
from lockstead.primitives.plans import Plan

T = TypeVar("T")
H = TypeVar("H", bound=Handle)

OUTCOME_NOT_STORED = {"outcome_not_stored": True}
"""The metadata of a key whose outcome could not be stored."""


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """The result of work that runs once per key."""

    value: T
    ran: bool
    """Whether this call ran the work; otherwise `value` is the stored result of an earlier call."""
    expires_at: datetime | None
    """When the stored result expires; None if this call ran the work."""


async def begin(engine: Engine, new: Callable[[Engine], H], plan: Plan) -> H | Outcome[Any]:
    """Acquire a key, or return its stored outcome, waiting for an attempt that is running.

    Raises LockAcquisitionError if that takes longer than the timeout.
    """
    name = plan.asks[0].name
    if not isinstance(engine.store, Reserving):
        msg = f"this store cannot reserve a name after its release, so once cannot store outcomes: {RESERVING_STORES}"
        raise UnsupportedError(msg, name=name)
    runtime = engine.runtime
    started = runtime.now()
    attempt = plan.within(0)
    polls = 0
    while True:
        handle = new(engine)
        try:
            busy = await handle._acquire(attempt, is_scoped=True)
        except BaseException:
            handle._abandon()
            raise
        if not isinstance(busy, Busy):
            return handle
        if outcome := await find(engine, name):
            return outcome
        waited = runtime.now() - started
        if waited >= plan.timeout:
            holder = busy.refusal.holder.rpartition("/")[0]
            msg = (
                f"{name!r} was not completed by another client in {waited:.1f} s: held by {holder}; {how_to_wait(name)}"
            )
            raise LockAcquisitionError(msg, name=name, attempts=polls + 1, waited=waited, holder=holder)
        await runtime.sleep(min(POLLING.pause(polls, runtime.random()), plan.timeout - waited))
        polls += 1


async def find(engine: Engine, name: str) -> Outcome[Any] | None:
    """Look up the outcome of a key; None if it is not done, or expired.

    Raises InvalidInputError if it is done, but its outcome could not be stored.
    """
    line = await inspection.find(engine, name)
    if line is None or not line.places[0].reserved:
        return None
    described = info.describe(line)
    if described.damage is not None:
        raise DamagedError(described.damage, name=name)
    (holder, *_) = described.holders
    if holder.metadata == OUTCOME_NOT_STORED:
        msg = f"{name!r} is done, but its outcome could not be stored: see the error of the call that ran it"
        raise InvalidInputError(msg, name=name)
    if "outcome" not in holder.metadata:  # the reservation of a lock, by at_least
        return None
    return Outcome(holder.metadata["outcome"], False, holder.expires_at)


def encode(value: object, name: str) -> str:
    """Encode an outcome as JSON. Raises InvalidInputError if it is too long, or not JSON."""
    try:
        return encode_metadata({"outcome": value})
    except InvalidInputError as error:
        msg = f"{name!r} is done, but its outcome cannot be stored: {error}"
        raise InvalidInputError(msg, name=name) from error
