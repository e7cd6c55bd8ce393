"""The simulation itself is tested by bugs put in on purpose: it must find every one."""

from __future__ import annotations

import pytest

from leasehold.testing import ViolationError
from leasehold.testing.simulation.history import some_history
from tests.simulation.mutants import MUTANTS

SEEDS = 400


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # a broken engine may leave coroutines unawaited
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[name](monkeypatch)
    for seed in range(SEEDS):
        try:
            some_history(seed).run()
        except ViolationError:
            return
    pytest.fail(f"{name} survived {SEEDS} histories")
