"""What a store of your own is made of: the port it implements, the values that pass through it, and the rules it keeps.

`Store` says what a store must do; `Lingering`, `Joint`, `Rated`, `Watchful`, `Mendable` and `Examinable` what it may do
beyond.
`rule` is the line itself, in pure steps over the few things a `Ledger` can do, and `rate` the same for rates: a store
that can call Python while it has a name to itself keeps places, and leaves the thinking to them.
"""

from __future__ import annotations

from lockstead import _rate as rate
from lockstead import _rule as rule
from lockstead._model import (
    LINGERING,
    WHOLE,
    Ask,
    Balance,
    Capabilities,
    Charge,
    Finding,
    Line,
    Place,
    Refusal,
    Renewal,
    Session,
    Standing,
    Stay,
    Wake,
)
from lockstead._rate import Debt
from lockstead._rule import Ledger
from lockstead._runtime import Bell, Runtime
from lockstead._store import Examinable, Joint, Lingering, Mendable, Rated, Store, Watchful
from lockstead.stores._machine import boot_id, shared_clock

__all__ = [
    "LINGERING",
    "WHOLE",
    "Ask",
    "Balance",
    "Bell",
    "Capabilities",
    "Charge",
    "Debt",
    "Examinable",
    "Finding",
    "Joint",
    "Ledger",
    "Line",
    "Lingering",
    "Mendable",
    "Place",
    "Rated",
    "Refusal",
    "Renewal",
    "Runtime",
    "Session",
    "Standing",
    "Stay",
    "Store",
    "Wake",
    "Watchful",
    "boot_id",
    "rate",
    "rule",
    "shared_clock",
]
