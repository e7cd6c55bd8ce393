"""Thousands of random histories: whatever goes wrong, the invariants of `lockstead.testing.Monitor` hold.

A failure names its seed; `History(seed, …).run()` replays it exactly. LOCKSTEAD_SEED moves the first seed,
LOCKSTEAD_HISTORIES changes how many there are.
"""

from __future__ import annotations

import os

import pytest

from lockstead.testing import ViolationError
from lockstead.testing.simulation.history import History, some_history

HISTORIES = int(os.environ.get("LOCKSTEAD_HISTORIES", "500"))
FIRST_SEED = int(os.environ.get("LOCKSTEAD_SEED", "0"))
CHUNK = 500


@pytest.mark.parametrize("first", range(FIRST_SEED, FIRST_SEED + HISTORIES, CHUNK))
def test_no_invariant_is_broken_in_random_histories(first: int) -> None:
    sections = 0
    seeds = range(first, min(first + CHUNK, FIRST_SEED + HISTORIES))
    for seed in seeds:
        sections += some_history(seed).run().sections
    assert sections > len(seeds) or len(seeds) < CHUNK, "hardly any lock was granted: these histories prove nothing"


@pytest.mark.parametrize("first", range(0, 200, 100))
def test_without_faults_no_lease_is_lost(first: int) -> None:
    for seed in range(first, first + 100):
        history = History(seed, faulty=False, names=("a",)).run()
        assert history.sections == history.monitor.grants, f"seed {seed}"


@pytest.mark.parametrize("seed", [7, 37])
def test_a_seed_replays_exactly(seed: int) -> None:
    """In 37 a process dies with several tasks, which end in the order in which they began."""
    runs = [some_history(seed).run() for _ in range(8)]
    assert len({(run.world.now, run.steps, run.sections) for run in runs}) == 1


def test_different_seeds_make_different_histories() -> None:
    assert len({History(seed).run().steps for seed in range(20)}) > 15


def test_a_violation_is_not_swallowed() -> None:
    history = History(1)
    history.world.after(1.0, lambda: history.monitor._fail("seeded"))
    with pytest.raises(ViolationError, match="seeded"):
        history.run()
