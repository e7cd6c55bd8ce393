"""Children that other libraries fork end by os._exit, and leave nothing behind all the same: programs/children.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.processes import Program
from tests.harness.sqlite import rows

FORKING = ("fork", "forkserver", "pool", "billiard", "celery")
SAID = {"hold": [], "hold_in_asyncio": [], "lead": ["lost False True"]}


def output(path: Path, *args: str) -> list[str]:
    program = Program("processes/programs/children.py", args[0], path, *args[1:])
    try:
        said, errors = program.communicate(within=25)
    finally:
        program.dispose()
    assert program.status == 0, errors
    assert "lockstead" not in errors
    return [line for line in said.splitlines() if line and not line.startswith("worker: ")]  # which Celery says


@pytest.mark.parametrize("work", SAID)
@pytest.mark.parametrize("library", [*FORKING, "spawn"])
def test_a_child_that_ends_releases_what_it_holds_and_stops_leading(library: str, work: str, path: Path) -> None:
    assert output(path, library, work) == SAID[work]
    assert rows(path) == []


@pytest.mark.parametrize("library", FORKING)
def test_a_child_that_imports_lockstead_itself_releases_what_it_holds(library: str, path: Path) -> None:
    assert output(path, library, "hold", "late") == []
    assert rows(path) == []


@pytest.mark.parametrize("library", ["fork", "forkserver", "spawn"])
def test_a_thread_that_the_child_waits_for_holds_its_lock_to_its_end(library: str, path: Path) -> None:
    assert output(path, library, "hold_in_a_thread") == ["held to the end"]
    assert rows(path) == []
