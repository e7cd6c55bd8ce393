"""Random histories of elections: whatever goes wrong, no leader starts before its predecessor has stopped.

A failure names its seed; `ElectionHistory(seed).run()` replays it exactly. LOCKSTEAD_SEED moves the first seed,
LOCKSTEAD_HISTORIES changes how many there are: a twentieth of those of one server, in hundreds.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress

import pytest

from lockstead.core.keeper import Keeper
from lockstead.core.lease import Lease, LeaseState
from lockstead.errors import LockError
from lockstead.primitives.candidate import Term, Work
from lockstead.primitives.election import Leading
from lockstead.testing import ViolationError
from lockstead.testing.simulation.election import ElectionHistory
from tests.simulation.mutation import Patch, mutated

HISTORIES = int(os.environ.get("LOCKSTEAD_HISTORIES", "500")) // 20
FIRST_SEED = int(os.environ.get("LOCKSTEAD_SEED", "0"))
CHUNK = 100
SEEDS = 200


@pytest.mark.parametrize("first", range(FIRST_SEED, FIRST_SEED + HISTORIES, CHUNK))
def test_no_leader_is_elected_before_its_predecessor_has_stopped(first: int) -> None:
    sections = 0
    for seed in range(first, first + CHUNK):
        sections += ElectionHistory(seed).run().sections
    assert sections > CHUNK, "hardly any leader was elected: these histories prove nothing"


def loss_is_signalled_at_the_end(patch: Patch) -> None:
    original = Lease.__init__
    patch.setattr(
        Lease, "__init__", lambda self, ask, claim, renew_for, grace: original(self, ask, claim, renew_for, 0.0)
    )


def a_lost_lock_is_given_up_at_once(patch: Patch) -> None:
    original = Keeper.release_in_background
    patch.setattr(Keeper, "release_in_background", lambda self, lease, grace=0.0: original(self, lease))


def a_resigned_lock_is_given_up_before_on_lost_has_ended(patch: Patch) -> None:
    async def stop_leading(self):
        if self._leases[0].state is LeaseState.HELD:
            with suppress(LockError):
                await Leading._release(self)
        await original(self)

    original = Term._stop_leading
    patch.setattr(Term, "_stop_leading", stop_leading)


def work_begins_after_it_was_stopped(patch: Patch) -> None:
    def begin_work(self):
        self._work = Work.RUNNING
        return True

    patch.setattr(Term, "_begin_work", begin_work)


MUTANTS: list[Callable[[Patch], None]] = [
    loss_is_signalled_at_the_end,
    a_lost_lock_is_given_up_at_once,
    a_resigned_lock_is_given_up_before_on_lost_has_ended,
    work_begins_after_it_was_stopped,
]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # a broken engine may leave coroutines unawaited
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_mutant_is_caught(mutant: Callable[[Patch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    with mutated(mutant, monkeypatch):
        for seed in range(SEEDS):
            try:
                ElectionHistory(seed).run()
            except ViolationError as violation:
                print(violation)
                return
        pytest.fail(f"{mutant.__name__} survived {SEEDS} histories")
