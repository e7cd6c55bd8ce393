"""What the author of a store does with the contract, and that it finds what is broken."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lockstead.testing import contract
from lockstead.testing.contract import suite

ROOT = Path(__file__).parents[2]
BROKEN = {
    "AnyOwnerLeaves": "test_only_the_owner_leaves_and_only_once",
    "RenewalsResurrect": "test_a_renewal_never_resurrects",
    "NewcomersOvertake": "test_a_newcomer_does_not_overtake_a_waiter",
    "TicketsRepeat": "test_tickets_grow_over_names_and_over_empty_lines",
    "RefusalsAreForgotten": "test_a_join_that_arrives_after_its_owner_left_is_refused",
    "WaitersLiveOn": "test_a_waiting_place_lives_for_a_heartbeat_not_for_its_ttl",
    "StepsMix": "test_of_many_joins_at_once_one_holds_and_all_have_tickets_of_their_own[threads]",
}
"""What is broken, and which test says so."""
OF_STORES = {"store": "stores/test_contract.py", "abilities": "stores/test_capabilities.py"}
"""Subjects of the contract that are not behaviour of the client, and where they run on ours."""

AUTHORS_TESTS = """
import pytest
from lockstead.testing.contract import *
from tests.kit.broken import {store}

@pytest.fixture
def open_store(tmp_path):
    return lambda runtime: {store}(runtime, tmp_path)
"""


def test_a_store_that_is_broken_fails_the_test_that_is_about_it(tmp_path: Path) -> None:
    for store in ("FileStore", *BROKEN):
        (tmp_path / f"test_{store}.py").write_text(AUTHORS_TESTS.format(store=store))
    sound = run(tmp_path, *(f"test_FileStore.py::{test}" for test in BROKEN.values()))
    assert "13 passed" in sound, sound
    broken = run(tmp_path, *(f"test_{store}.py::{test}" for store, test in BROKEN.items()))
    assert "13 failed" in broken, broken
    assert "isinstance(Standing(ticket=" in broken, "what was asserted is shown"


def test_a_missing_open_store_fixture_is_named(tmp_path: Path) -> None:
    (tmp_path / "test_nothing.py").write_text("from lockstead.testing.contract import *")
    assert "fixture 'open_store' not found" in run(tmp_path, "test_nothing.py::test_the_first_to_join_holds")


def run(folder: Path, *tests: str) -> str:
    """Run tests in a folder of their author's, who has nothing but pytest and is strict."""
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


def test_every_test_of_every_subject_comes_by_the_one_import() -> None:
    modules = {path.stem for path in Path(contract.__file__).parent.glob("*.py")} - {"__init__", "rigs", "suite"}
    assert set(suite.SUBJECTS) == modules
    assert all(
        (ROOT / "tests" / OF_STORES.get(each, f"behaviour/{each}/test_contract.py")).exists() for each in modules
    )
    tests = [name for each in modules for name in vars(getattr(contract, each)) if name.startswith("test_")]
    assert sorted([*tests, "driver", "rig"]) == sorted(suite.__all__)


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_an_example_uses_only_what_is_public(example: Path) -> None:
    imports = re.findall(r"^ *(?:from|import) .*", example.read_text("utf-8"), re.MULTILINE)
    assert [each for each in imports if re.search(r"\b_[a-z]", each)] == []
