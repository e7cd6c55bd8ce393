"""Torture a store: many clients use it while faults are injected into them and into it; their histories are checked.

`Arena` is the store, what it promises and the faults that can be injected; `torture` runs it and returns a `Report`.
"""

from __future__ import annotations

from lockstead.testing.torture.arena import (
    CLIENT_FAULTS,
    PROMISES,
    WORKLOADS,
    Arena,
    Fault,
    Surroundings,
    by_kind,
    network,
)
from lockstead.testing.torture.checkers import Promises, Violation
from lockstead.testing.torture.command import main
from lockstead.testing.torture.runner import ArenaMaker, Report, torture

__all__ = [
    "CLIENT_FAULTS",
    "PROMISES",
    "WORKLOADS",
    "Arena",
    "ArenaMaker",
    "Fault",
    "Promises",
    "Report",
    "Surroundings",
    "Violation",
    "by_kind",
    "main",
    "network",
    "torture",
]
