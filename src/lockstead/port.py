"""What a store of your own is made of: the port it implements, the values that pass through it, and the rules it keeps.

`Store` says what a store must do; `Lingering`, `Joint`, `Rated`, `Watchful`, `Mendable` and `Examinable` what it may do
beyond.
`rule` is the line itself, in pure steps over the few things a `Ledger` can do, and `rate` the same for rates: a store
that can call Python while it has a name to itself keeps places, and leaves the thinking to them.
"""

from __future__ import annotations

from lockstead.core import gcra as rate
from lockstead.core import rule
from lockstead.core.gcra import Debt
from lockstead.core.model import (
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
from lockstead.core.rule import Ledger
from lockstead.core.runtime import Bell, Runtime
from lockstead.core.store import Examinable, Joint, Lingering, Mendable, Rated, Store, Watchful
from lockstead.stores.sqlite.machine import boot_id, shared_clock

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
