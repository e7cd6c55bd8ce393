"""The simulation itself is tested by bugs put in on purpose: it must find every one."""

from __future__ import annotations

import pytest

from tests.simulation.history import History
from tests.simulation.mutants import MUTANTS

SEEDS = 400


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # a broken engine may leave coroutines unawaited
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[name](monkeypatch)
    for seed in range(SEEDS):
        try:
            History(seed, capacity=3 if seed % 3 == 0 else 1).run()
        except Exception:
            return
    pytest.fail(f"{name} survived {SEEDS} histories")
