"""What the author of a store does with the contract, and that it finds what is broken."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from lockstead.core.runtime import drive
from lockstead.stores.memory import MemoryStore
from lockstead.testing import contract
from lockstead.testing.contract import suite
from lockstead.testing.contract.rigs import Rig
from tests.harness.tree import ROOT

PUBLIC = {
    *("lockstead", "lockstead.fencing", "lockstead.port", "lockstead.stores", "lockstead.transactions"),
    *("lockstead.testing", "lockstead.testing.contract", "lockstead.testing.proxy", "lockstead.testing.torture"),
}
OF_STORES = {"store": "stores", "abilities": "stores"}
"""Subjects of the contract that are not behaviour of the client."""
BROKEN = {
    "AnyOwnerLeaves": "test_only_the_owner_leaves_and_only_once",
    "RenewalsResurrect": "test_a_renewal_never_resurrects",
    "NewcomersOvertake": "test_a_newcomer_does_not_overtake_a_waiter",
    "TicketsRepeat": "test_tickets_grow_over_names_and_over_empty_lines",
    "TombstonesAreForgotten": "test_a_join_that_arrives_after_its_owner_left_is_refused",
    "WaitersLastTooLong": "test_a_waiting_place_lasts_for_a_heartbeat_not_for_its_ttl",
    "StepsMix": "test_of_many_joins_at_once_one_holds_and_all_have_tickets_of_their_own[threads]",
}
"""What is broken, and which test says so."""

AUTHORS_TESTS = """
import pytest
from lockstead.testing.contract import *
from tests.kit.broken import {store}

@pytest.fixture
def open_store(tmp_path):
    return lambda runtime: {store}(runtime, tmp_path)
"""


def test_a_broken_store_fails_the_test_of_what_is_broken(tmp_path: Path) -> None:
    for store in ("FileStore", *BROKEN):
        (tmp_path / f"test_{store}.py").write_text(AUTHORS_TESTS.format(store=store))
    sound = run(tmp_path, *(f"test_FileStore.py::{test}" for test in BROKEN.values()))
    assert "13 passed" in sound, sound
    broken = run(tmp_path, *(f"test_{store}.py::{test}" for store, test in BROKEN.items()))
    assert "13 failed" in broken, broken
    assert "isinstance(Standing(state=" in broken, "what was asserted is shown"


def test_a_missing_open_store_fixture_is_named(tmp_path: Path) -> None:
    (tmp_path / "test_nothing.py").write_text("from lockstead.testing.contract import *")
    assert "fixture 'open_store' not found" in run(tmp_path, "test_nothing.py::test_the_first_to_join_holds")


def run(folder: Path, *tests: str) -> str:
    """Run tests in a folder of their own, with nothing but pytest, and with warnings as errors."""
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers --strict-config\nfilterwarnings = error\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *tests],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout + done.stderr


def test_a_condition_that_is_not_met_is_named() -> None:
    rig = Rig("threads", MemoryStore)
    with pytest.raises(AssertionError, match=r"not met within 0\.01 s: .*lambda: False"):
        drive(rig.until(lambda: False, 0.01))


def test_every_test_of_every_subject_comes_by_the_one_import() -> None:
    modules = {path.stem for path in Path(contract.__file__).parent.glob("*.py")} - {"__init__", "rigs", "suite"}
    assert set(suite.SUBJECTS) == modules
    tests = [name for each in modules for name in names_and_tests(vars(getattr(contract, each)))]
    assert sorted([*tests, "runtime_name", "rig"]) == sorted(suite.__all__)


@pytest.mark.parametrize("subject", suite.SUBJECTS)
def test_every_test_of_a_subject_runs_on_our_stores_and_is_named_where_it_runs(subject: str) -> None:
    path = ROOT / "tests" / OF_STORES.get(subject, f"behaviour/{subject}") / "test_contract.py"
    module = import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    wanted = names_and_tests(vars(getattr(contract, subject)))
    assert wanted
    assert {name: vars(module).get(name) for name in wanted} == wanted
    assert f"`lockstead.testing.contract.{subject}`" in (module.__doc__ or ""), "it says where the bodies are"
    assert set(wanted) <= set(re.findall(r"^    (test_\w+),$", path.read_text("utf-8"), re.MULTILINE)), "not by a star"
    marks = module.pytestmark if isinstance(module.pytestmark, list) else [module.pytestmark]
    assert "every_store" in {mark.name for mark in marks}


def names_and_tests(namespace: dict[str, Any]) -> dict[str, Any]:
    return {name: test for name, test in namespace.items() if name.startswith("test_")}


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_an_example_uses_only_what_is_public(example: Path) -> None:
    imports = set(re.findall(r"^ *(?:from|import) (lockstead\S*)", example.read_text("utf-8"), re.MULTILINE))
    assert imports <= PUBLIC
