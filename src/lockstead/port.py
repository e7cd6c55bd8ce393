"""What a store of your own is made of: the port it implements, the values that pass through it, and the rules it keeps.

`Store` says what a store must do; `Reserving`, `MultiJoining`, `RateLimiting`, `Watching`, `Repairable` and
`Examinable` what it may do beyond.
`rule` is the line itself, in pure steps over the few things a `Ledger` can do, and `rate` the same for rates: a store
that can call Python while it has a name to itself keeps places, and leaves the thinking to them.
"""

from __future__ import annotations

from lockstead.core import gcra as rate
from lockstead.core import rule
from lockstead.core.gcra import RateState
from lockstead.core.model import (
    RESERVED,
    WHOLE,
    Ask,
    Capabilities,
    Finding,
    Line,
    Place,
    RateRequest,
    RateResult,
    Refusal,
    Renewal,
    Reservation,
    Session,
    Standing,
    Wake,
)
from lockstead.core.rule import Ledger
from lockstead.core.runtime import Event, Runtime
from lockstead.core.store import Examinable, MultiJoining, RateLimiting, Repairable, Reserving, Store, Watching
from lockstead.stores.sqlite.machine import boot_id, shared_clock

__all__ = [
    "RESERVED",
    "WHOLE",
    "Ask",
    "Capabilities",
    "Event",
    "Examinable",
    "Finding",
    "Ledger",
    "Line",
    "MultiJoining",
    "Place",
    "RateLimiting",
    "RateRequest",
    "RateResult",
    "RateState",
    "Refusal",
    "Renewal",
    "Repairable",
    "Reservation",
    "Reserving",
    "Runtime",
    "Session",
    "Standing",
    "Store",
    "Wake",
    "Watching",
    "boot_id",
    "rate",
    "rule",
    "shared_clock",
]
