"""Two minutes of the torture, over all stores, and proof that it finds what is wrong: bugs put in on purpose.

`make mutants` tries all of them (LOCKSTEAD_TORTURE=1), `make soak` tortures for longer. LOCKSTEAD_SEED is the seed.
"""

from __future__ import annotations

import os
import secrets
import signal
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from xml.etree.ElementTree import fromstring

import pytest

from lockstead.stores.postgres.table.schema import script
from lockstead.stores.redis import commands
from lockstead.testing.torture import runner
from lockstead.testing.torture.checkers import CHECKERS, Promises
from lockstead.testing.torture.register import Registers, ask
from lockstead.testing.torture.runner import torture
from lockstead.testing.torture.timeline import draw
from tests.torture import mutants
from tests.torture.arenas import ARENAS
from tests.torture.model import Model
from tests.torture.mutants import HANGS, MUTANTS, Mutant, program

SECONDS = 15.0
"""For each store."""
SHORTEST, LONGEST = 4.0, 60.0
"""For how long a bug is looked for: at first, and if it stays hidden, at last."""
DEADLINE = 20.0
"""How long workers with a bug may take to finish: some never do."""
ABORTED = f"ended with {-signal.SIGABRT}"
FOR_LONG = bool(os.environ.get("LOCKSTEAD_TORTURE"))
SEED = int(os.environ.get("LOCKSTEAD_SEED") or secrets.randbelow(10**9))
GROUPS = (("memory", "sqlite"), ("redis", "sentinel"), ("cluster", "redlock"), ("postgres", "advisory"))
"""What is tortured at the same time, to save some; more would starve the tests beside them."""
QUICK = (
    "sqlite: any_owner_may_renew_for_the_holder",
    "redis: tickets_start_over",
    "postgres: the_sql_lets_any_owner_leave",
)
"""Bugs that four seconds are enough for."""
TRIED = [(bug,) for bug in MUTANTS] if FOR_LONG else [QUICK]
"""Those in one group at the same time."""


def on_a_busy_machine(promises: Promises) -> Promises:
    """Expect no more of a machine than it can do while other tests run on it."""
    return replace(
        promises, slack=2.0, wakes_within=promises.wakes_within + 2.0, recovers_within=promises.recovers_within + 5.0
    )


@pytest.mark.timeout(SECONDS + 180)
@pytest.mark.parametrize("arenas", GROUPS, ids="+".join)
def test_no_promise_is_broken(arenas: tuple[str, ...]) -> None:
    with ThreadPoolExecutor() as pool:
        reports = list(
            pool.map(
                partial(torture, seconds=SECONDS, seed=SEED, promises=on_a_busy_machine),
                [ARENAS[arena] for arena in arenas],
            )
        )
    for report in reports:
        print(f"{report.arena}, seed {SEED}: {report.operations}, {report.faults}; {report.histories}")
    assert [error for report in reports for error in report.errors] == []
    assert [str(violation) for report in reports for violation in report.violations] == []
    assert all(report.operations.total() > SECONDS for report in reports)


def test_no_arena_is_left_out() -> None:
    assert {arena for group in GROUPS for arena in group} == {*ARENAS}


@pytest.mark.timeout(2 * LONGEST + 300)
@pytest.mark.parametrize("bugs", TRIED, ids="+".join)
def test_a_bug_is_found(bugs: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "FINISH_TIMEOUT", DEADLINE)
    with ThreadPoolExecutor() as pool:
        list(pool.map(find, bugs))


def find(bug: str) -> None:
    mutant = MUTANTS[bug]
    seconds, seed = SHORTEST, SEED
    while True:
        report = torture(mutant.maker, seconds, seed, program=program(bug), promises=on_a_busy_machine)
        report.discard()
        assert not [error for error in report.errors if "AssertionError" in error], "the bug was not put in"
        found = Counter(violation.rule for violation in report.violations)
        found[HANGS] = sum(ABORTED in error for error in report.errors)
        print(f"{bug}, seed {seed}, {seconds:g} s: {dict(+found)}")
        if {*+found} & mutant.rules:
            return
        assert seconds < LONGEST, f"it survived {seconds:g} s"
        seconds, seed = seconds * 2, seed + 1


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=[*MUTANTS])
def test_a_mutant_still_applies_to_the_code(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its names and the texts that it replaces are still those of the code; all bugs are looked for only at times."""
    for command in vars(commands).values():
        if isinstance(command, commands.Script):
            for part in ("_text", "digest"):
                monkeypatch.setattr(command, part, getattr(command, part))  # to have it back afterwards
    monkeypatch.setattr(mutants, "_rewrite_function", check_function)
    mutant.install(monkeypatch, "")


def check_function(_: str, name: str, old: str, new: str) -> None:
    """Check that the newest definition of a function has the text which a bug replaces."""
    _, found, rest = script("lockstead").rpartition(f'FUNCTION "lockstead".{name}(')
    assert found, f"there is no function {name}"
    assert old in rest.partition("\nCREATE ")[0], f"{old!r} is not there any more"
    assert old != new


def test_every_mutant_names_existing_checkers_and_arenas() -> None:
    rules = {checker.__name__ for checker in CHECKERS} | {HANGS}
    assert all(mutant.rules <= rules and mutant.arena in ARENAS for mutant in MUTANTS.values())
    assert {*QUICK} <= {*MUTANTS}


def test_a_timeline_shows_every_client_and_marks_the_operations_of_a_violation() -> None:
    history = Model(1).run()
    plain, accusing = draw(history), draw(history, history.acquires[:1])
    words = {element.text for element in fromstring(plain).iter("{http://www.w3.org/2000/svg}text")}
    assert {one.client for one in history.acquires} <= words
    assert plain != accusing


def test_a_register_takes_no_fence_below_the_newest() -> None:
    with Registers() as registers:
        assert ask(registers.address, name="a", fence=2, value="new")["accepted"]
        assert not ask(registers.address, name="a", fence=1, value="late")["accepted"]
        assert ask(registers.address, name="a") == {"value": "new", "fence": 2, "accepted": False}
