"""For stores of your own: the port a store implements, the values that pass through it, and the rules it follows.

`Store` is what every store implements; `Reserving`, `MultiJoining`, `RateLimiting`, `Watching`, `Repairable` and
`Examinable` are optional abilities. `rule` is the line rule, in pure steps over a `Ledger`, and `gcra` the
rule of rate limits: a store that can run Python in its atomic step only stores the data, and calls these.
"""

from __future__ import annotations

from lockstead.core import gcra, rule
from lockstead.core.gcra import RateState
from lockstead.core.model import (
    GONE,
    RESERVED,
    UNKNOWN,
    WHOLE,
    Ask,
    Capabilities,
    Finding,
    Line,
    Place,
    PlaceState,
    RateRequest,
    RateResult,
    Refusal,
    Renewal,
    Reservation,
    SessionInfo,
    Standing,
    Wake,
)
from lockstead.core.rule import Ledger
from lockstead.core.runtime import Event, Runtime
from lockstead.core.store import Examinable, MultiJoining, RateLimiting, Repairable, Reserving, Store, Watching
from lockstead.stores.sqlite.machine import boot_id, shared_clock

__all__ = [
    "GONE",
    "RESERVED",
    "UNKNOWN",
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
    "PlaceState",
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
    "SessionInfo",
    "Standing",
    "Store",
    "Wake",
    "Watching",
    "boot_id",
    "gcra",
    "rule",
    "shared_clock",
]
