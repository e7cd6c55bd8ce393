"""A slice of the torture for every store, and proof that it finds what is wrong: bugs put in on purpose.

`make soak` tortures for longer, and tries all bugs.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import replace

import pytest

from tests.torture.checkers import Promises
from tests.torture.driver import torture
from tests.torture.mutants import MUTANTS

SECONDS = 10.0
LONGEST = 60.0
"""How long a bug may stay hidden."""
SEED = int(os.environ.get("LEASEHOLD_SEED") or secrets.randbelow(10**9))
QUICK = (
    "redis: whoever_leaves_need_not_be_the_owner",
    "redlock: half_is_a_majority",
    "postgres: the_sql_lets_one_more_in",
)
"""Bugs that are found within seconds."""
TRIED = list(MUTANTS) if os.environ.get("LEASEHOLD_MUTANTS") == "all" else QUICK


def in_a_crowd(promises: Promises) -> Promises:
    """Expect no more of a machine than it can do while other tests run on it."""
    return replace(
        promises, slack=2.0, wakes_within=promises.wakes_within + 2.0, recovers_within=promises.recovers_within + 5.0
    )


@pytest.mark.timeout(SECONDS + 180)
@pytest.mark.parametrize("arena", ["memory", "sqlite", "redis", "sentinel", "redlock", "postgres", "advisory"])
def test_no_promise_is_broken(arena: str) -> None:
    report = torture(arena, SECONDS, SEED, promises=in_a_crowd)
    print(f"{arena}, seed {SEED}: {report.operations.total()} operations, {dict(report.faults)}; {report.histories}")
    assert report.troubles == []
    assert [str(violation) for violation in report.violations] == []
    assert report.operations.total() > SECONDS


@pytest.mark.timeout(LONGEST + 300)
@pytest.mark.parametrize("bug", TRIED)
def test_a_bug_is_found(bug: str) -> None:
    mutant = MUTANTS[bug]
    seconds, seed = SECONDS / 2, SEED
    while True:
        report = torture(mutant.arena, seconds, seed, mutant=bug, promises=in_a_crowd)
        found = {violation.rule for violation in report.violations}
        print(f"{bug}, seed {seed}, {seconds:g} s: {sorted(found)}")
        if found & mutant.rules:
            return
        assert seconds < LONGEST, f"it survived {seconds:g} s, with seed {seed}"
        seconds, seed = seconds * 2, seed + 1
