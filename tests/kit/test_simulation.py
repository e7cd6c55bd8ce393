"""The few lines that simulate a store of one's own; and that they find what is broken in one."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.own_store import FileStore
from lockstead.testing import ViolationError, simulate
from tests.kit import broken
from tests.simulation.test_stores import Clock

SEEDS = 300
BROKEN: dict[type[FileStore], int] = {
    broken.AnyOwnerLeaves: 0,
    broken.RenewalsResurrect: 5,
    broken.NewcomersOvertake: 5,
    broken.TicketsRepeat: 1,
    broken.TombstonesAreForgotten: 8,
    broken.WaitersLastTooLong: 2,
}
"""What is broken, and the seed that has shown it, which is tried first."""


def test_no_invariant_is_broken_in_random_histories_of_a_third_party_store(tmp_path: Path) -> None:
    clock = Clock()
    assert simulate(
        lambda runtime: FileStore(runtime, tmp_path, clock.read), clock.set, range(10), clock_goes_back=False
    )


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # a client that gets wrong answers may leave coroutines unawaited
@pytest.mark.parametrize("store", BROKEN, ids=lambda store: store.__name__)
def test_violations_of_a_broken_store_are_reported(store: type[FileStore], tmp_path: Path) -> None:
    clock = Clock()
    with pytest.raises(ViolationError) as violation:
        simulate(
            lambda runtime: store(runtime, tmp_path, clock.read),
            clock.set,
            [BROKEN[store], *range(SEEDS)],
            clock_goes_back=False,
        )
    print(violation.value)


def test_a_store_that_ignores_a_clock_set_back_is_caught(tmp_path: Path) -> None:
    clock = Clock()
    with pytest.raises(ViolationError, match=r"seed \d+"):
        simulate(lambda runtime: FileStore(runtime, tmp_path, clock.read), clock.set, [37, *range(SEEDS)])
