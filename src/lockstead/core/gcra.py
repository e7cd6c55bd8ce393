"""The rule of rates: a debt that wears off by itself, and may not be deeper than its limit.

This is the generic cell rate algorithm with its state written as what is left to wear off, and since when: small
numbers stay exact where a moment in time, in floating point, would not.
"""

from __future__ import annotations

from typing import NamedTuple

from lockstead.core.model import RateRequest, RateResult

ROUNDING = 1e-9
"""The part of the limit that sums of fractions may be off by."""


class RateState(NamedTuple):
    amount: float
    at: float
    """When it was that much, on the store's clock."""


def level_at(debt: RateState | None, now: float) -> float:
    """Tell what is left of a debt. A clock that was set back lets nothing wear off."""
    return 0.0 if debt is None else max(debt.amount - max(now - debt.at, 0.0), 0.0)


def spend(debt: RateState | None, charge: RateRequest, now: float) -> tuple[RateResult, RateState | None]:
    """Charge a name's debt; say what came of it, and what to remember (None: what there was)."""
    left = level_at(debt, now)
    raised = left + charge.cost
    allowed = raised <= charge.limit * (1 + ROUNDING) + charge.patience
    if allowed and charge.cost:
        return RateResult(True, raised), RateState(raised, now)
    was_set_back = debt is not None and now < debt.at
    return RateResult(allowed, left), RateState(left, now) if was_set_back else None
