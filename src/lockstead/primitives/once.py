"""Doing a thing once: whoever comes first does it, the others learn what came of it.

A key is a lock that stays taken, once the work is done, for as long as its outcome is to be remembered; the outcome is
what the lock then shows. An attempt that fails or dies gives the key up to the next.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

from lockstead.core.checks import encode_metadata
from lockstead.core.engine import POLL, Engine
from lockstead.core.store import Reserving
from lockstead.errors import DamagedError, InvalidInputError, LockAcquisitionError, UnsupportedError
from lockstead.primitives import info as _info
from lockstead.primitives.plans import Plan

T = TypeVar("T")

UNKEPT = {"unkept": True}
"""What a key shows whose outcome could not be kept."""


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """What came of something that is done once."""

    value: T
    ran: bool
    """Whether it was done just now, by this call; else it is remembered."""
    forgotten_at: datetime | None
    """Until when it is remembered; None of one that ran just now."""


async def begin(engine: Engine, acquire: Callable[[Plan], Awaitable[T]], plan: Plan) -> T | Outcome[Any]:
    """Get hold of a key, or learn what came of it: now, or once whoever is at it has ended.

    Raises LockAcquisitionError if that takes longer than planned.
    """
    name = plan.asks[0].name
    if not isinstance(engine.store, Reserving):
        msg = "this store cannot leave a name taken once its holder has gone, so it cannot remember what was done"
        raise UnsupportedError(msg, name=name)
    runtime = engine.runtime
    started = runtime.now()
    attempt = plan.within(0)
    polls = 0
    while True:
        try:
            return await acquire(attempt)
        except LockAcquisitionError as busy:
            if outcome := await find(engine, name):
                return outcome
            waited = runtime.now() - started
            if waited >= plan.timeout:
                msg = f"{name!r} was not done by somebody else in {waited:.1f} s: held by {busy.holder}"
                raise LockAcquisitionError(
                    msg, name=name, attempts=polls + 1, waited=waited, holder=busy.holder
                ) from busy
        await runtime.sleep(min(POLL.pause(polls, runtime.random()), plan.timeout - waited))
        polls += 1


async def find(engine: Engine, name: str) -> Outcome[Any] | None:
    """Look up what came of a key; None if it is not done, or forgotten.

    Raises InvalidInputError if it is done, but what came of it could not be kept.
    """
    line = await engine.find(name)
    if line is None or not line.places[0].reserved:
        return None
    info = _info.describe(line)
    if info.damage is not None:
        raise DamagedError(info.damage, name=name)
    (holder, *_) = info.holders
    if holder.metadata == UNKEPT:
        msg = f"{name!r} is done, but its outcome could not be remembered: see the error of whoever did it"
        raise InvalidInputError(msg, name=name)
    if "outcome" not in holder.metadata:  # a lock that was left taken
        return None
    return Outcome(holder.metadata["outcome"], False, holder.expires_at)


def encode(value: object, name: str) -> str:
    """Write an outcome as JSON. Raises InvalidInputError if it is too long, or something else."""
    try:
        return encode_metadata({"outcome": value})
    except InvalidInputError as error:
        msg = f"{name!r} is done, but its outcome cannot be remembered: {error}"
        raise InvalidInputError(msg, name=name) from error


def check_options(**options: object) -> None:
    """Refuse what makes no sense of something that is done once. Raises InvalidInputError."""
    for option in ("at_least", "reentrant"):
        if options.get(option):
            msg = f"{option} is for locks: what is done once stays taken for its period, and is not entered again"
            raise InvalidInputError(msg)
