"""The simulation itself is tested by bugs put in on purpose: it must find every one."""

from __future__ import annotations

import pytest

from lockstead.testing import ViolationError
from lockstead.testing.simulation.history import some_history
from tests.simulation.mutants import MUTANTS
from tests.simulation.mutation import mutated

SEEDS = 400
SHOWN = {
    "a_repeated_join_does_not_refresh": 275,
    "late_requests_are_accepted": 68,
    "several_names_are_waited_for_in_the_order_they_were_given_in": 67,
    "the_trust_window_of_a_renewal_starts_at_the_reply": 261,
    "what_may_be_left_of_several_is_forgotten": 246,
}
"""Seeds that have shown a rare one, and are tried first."""


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # a broken engine may leave coroutines unawaited
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with mutated(MUTANTS[name], monkeypatch):
        for seed in (SHOWN.get(name, 0), *range(SEEDS)):
            try:
                some_history(seed).run()
            except ViolationError as violation:
                print(violation)
                return
        pytest.fail(f"{name} survived {SEEDS} histories")
