"""Random histories of a server that crashes before a release is on disk, and bugs that they must find.

LOCKSTEAD_SEED moves the first seed, LOCKSTEAD_HISTORIES changes how many there are.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lockstead.core.model import WHOLE
from lockstead.testing import ViolationError
from tests.simulation.crash_history import CrashHistory, CrashingServer
from tests.simulation.mutants import MUTANTS
from tests.simulation.mutation import Patch, mutated
from tests.simulation.test_histories import CHUNK, FIRST_SEED, HISTORIES

SEEDS = 400


def some_crash_history(seed: int) -> CrashHistory:
    names = ("a", "b", "c")[: 2 + seed % 2]
    return CrashHistory(seed, names=names, capacity=(3, 1, 1, WHOLE, 1)[seed % 5])


@pytest.mark.parametrize("first", range(FIRST_SEED, FIRST_SEED + HISTORIES, CHUNK))
def test_no_invariant_is_broken_where_a_crash_undoes_releases(first: int) -> None:
    crashes = grants_undone = 0
    seeds = range(first, min(first + CHUNK, FIRST_SEED + HISTORIES))
    for seed in seeds:
        history = some_crash_history(seed)
        history.run()
        crashes += history.crashing.crashes
        grants_undone += history.crashing.grants_undone
    assert len(seeds) < CHUNK or (crashes > CHUNK // 4 and grants_undone > CHUNK // 50), "these histories prove nothing"


def joins_are_asynchronous(patch: Patch) -> None:
    """A join that is granted at once is trusted for its ttl, and its place was the proof of it."""
    patch.setattr(CrashingServer, "asynchronous", ("leave", "join", "join_all"))


def renewals_are_asynchronous(patch: Patch) -> None:
    """A renewal is trusted for a ttl: undone, its place expires before that."""
    patch.setattr(CrashingServer, "asynchronous", ("leave", "renew"))


def reservations_are_asynchronous(patch: Patch) -> None:
    patch.setattr(CrashingServer, "asynchronous", ("leave", "reserve"))


def a_grant_that_was_pushed_counts_for_the_whole_ttl(patch: Patch) -> None:
    """The place it names waits again after a crash, and expires after a heartbeat."""
    MUTANTS["a_grant_that_was_pushed_counts_for_the_whole_ttl"](patch)


BROKEN: dict[Callable[[Patch], None], int] = {
    joins_are_asynchronous: 1,
    renewals_are_asynchronous: 1,
    reservations_are_asynchronous: 2,
    a_grant_that_was_pushed_counts_for_the_whole_ttl: 0,
}
"""What is broken, and the seed that has shown it, which is tried first."""


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # a broken engine may leave coroutines unawaited
@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
def test_what_a_crash_makes_unsafe_is_caught(broken: Callable[[Patch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    with mutated(broken, monkeypatch):
        for seed in (BROKEN[broken], *range(SEEDS)):
            try:
                some_crash_history(seed).run()
            except ViolationError as violation:
                print(violation)
                return
        pytest.fail(f"{broken.__name__} survived {SEEDS} histories")
