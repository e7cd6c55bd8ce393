"""Random histories of a quorum, and bugs put in on purpose that they must find.

LOCKSTEAD_SEED moves the first seed, LOCKSTEAD_HISTORIES changes how many there are: a tenth of those of one server,
in fifties.
"""

from __future__ import annotations

import pytest

from lockstead.testing import ViolationError
from tests.simulation.mutation import mutated
from tests.simulation.quorum_history import QuorumHistory
from tests.simulation.quorum_mutants import MUTANTS
from tests.simulation.test_histories import FIRST_SEED, HISTORIES
from tests.simulation.test_quorum_scenarios import RARE

CHUNK = 50
SEEDS = 400
SHOWN = {
    "a_renewal_counts_answers_of_earlier_rounds": 109,
    "late_requests_are_accepted": 102,
    "an_admitted_member_votes_at_once": 51,
}
"""Seeds that have shown a rare one, and are tried first."""


@pytest.mark.parametrize("first", range(FIRST_SEED, FIRST_SEED + HISTORIES // 10, CHUNK))
def test_no_invariant_is_broken_in_random_histories_of_a_quorum(first: int) -> None:
    sections = losses = 0
    for seed in range(first, first + CHUNK):
        history = QuorumHistory(seed)
        history.run()
        sections += history.sections
        losses += history.losses
    assert sections > CHUNK
    assert losses > CHUNK / 2, "hardly a member came back empty: these histories prove little"


def test_without_faults_no_lease_is_lost() -> None:
    for seed in range(50):
        history = QuorumHistory(seed, faulty=False, names=("a",)).run()
        assert history.sections == history.monitor.grants, f"seed {seed}"


def test_a_seed_replays_exactly() -> None:
    first, second = QuorumHistory(7).run(), QuorumHistory(7).run()
    assert (first.world.now, first.steps, first.sections) == (second.world.now, second.steps, second.sections)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # a broken quorum may leave coroutines unawaited
@pytest.mark.parametrize("name", [name for name in MUTANTS if name not in RARE])
def test_a_mutant_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with mutated(MUTANTS[name], monkeypatch):
        for seed in (SHOWN.get(name, 0), *range(SEEDS)):
            try:
                QuorumHistory(seed).run()
            except ViolationError as violation:
                print(violation)
                return
        pytest.fail(f"{name} survived {SEEDS} histories")
