"""The page on the models names code that is there, and the states that are counted."""

from __future__ import annotations

import re

from tests.harness.tree import ROOT
from tests.model import line_mutants, redlock_mutants
from tests.model.test_line import SCOPES as LINE_SCOPES
from tests.model.test_redlock import SCOPES as REDLOCK_SCOPES

PAGE = (ROOT / "docs/model.md").read_text("utf-8")


def test_the_code_that_the_steps_of_a_model_name_is_there() -> None:
    files = [path for path in (ROOT / "src").rglob("*") if path.suffix in {".py", ".lua", ".sql"}]
    code = "\n".join(path.read_text("utf-8") for path in files)
    rows = PAGE.partition("## What is left out")[0].splitlines()
    steps = [row.split("|")[2] for row in rows if row.count("|") == 3 and "`" in row.split("|")[2]]
    names = {name for step in steps for name in re.findall(r"`([^`(]+)", step) if re.fullmatch(r"[\w./]+", name)}
    assert len(names) > 40
    for name in names:
        if name.endswith((".py", ".lua")):
            assert any(str(path).endswith(f"/{name}") for path in files), name
        else:
            assert re.search(rf"\b{name.rpartition('.')[2]}\b", code), name


def test_mutants_and_scopes_are_counted_right() -> None:
    lines, quorums = len(line_mutants.MUTANTS), len(redlock_mutants.MUTANTS)
    assert f"by {lines} deliberate bugs in the line and {quorums} in Redlock" in PAGE
    assert f"All {lines + quorums} are found" in PAGE
    table = PAGE.partition("## Running them")[2]
    assert len(re.findall(r"^\| (?:line|Redlock): ", table, re.MULTILINE)) == len(LINE_SCOPES) + len(REDLOCK_SCOPES)
