"""Doing a thing once: whoever comes first does it, the others learn what came of it.

A key is a lock that stays taken, once the work is done, for as long as its outcome is to be remembered; the outcome is
what the lock then shows. An attempt that fails or dies gives the key up to the next.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

from leasehold import _info
from leasehold._engine import POLL, Engine
from leasehold._input import MAX_METADATA
from leasehold._primitives import Plan
from leasehold._store import Lingering
from leasehold.errors import InvalidInputError, LockAcquisitionError, UnsupportedError

T = TypeVar("T")


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
    if not isinstance(engine.store, Lingering):
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
            left = started + plan.timeout - runtime.now()
            if left <= 0:
                busy.waited = runtime.now() - started
                raise
        await runtime.sleep(min(POLL.pause(polls, runtime.random()), left))
        polls += 1


async def find(engine: Engine, name: str) -> Outcome[Any] | None:
    """Look up what came of a key; None if it is not done, or forgotten."""
    line = await engine.find(name)
    if line is None or not line.places[0].lingers:
        return None
    (holder, *_) = _info.describe(line).holders
    return Outcome(holder.metadata.get("outcome"), False, holder.expires_at)


def encode(value: object, name: str) -> str:
    """Write an outcome as JSON. Raises InvalidInputError if it is too long, or something else."""
    try:
        text = json.dumps({"outcome": value}, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        msg = f"{name!r} is done, but its outcome cannot be remembered, as JSON cannot express it: {error}"
        raise InvalidInputError(msg, name=name) from error
    if len(text.encode()) > MAX_METADATA:
        msg = f"{name!r} is done, but its outcome takes more than {MAX_METADATA} bytes: return a reference instead"
        raise InvalidInputError(msg, name=name)
    return text
