"""The language rules that a machine can check: see CONTRIBUTING.md, "House rules"."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.harness.tree import ROOT

PERSONS = re.compile(
    r"(?<![`\w])(he|him|his|himself|whoever|whom|somebody|nobody|everybody|anybody)(?![`\w])", re.IGNORECASE
)
"""Pronouns of people: a process is no person, so its role is named instead. In backquotes a word is a word."""
ACCOUNT = '"nobody"'
"""The unprivileged account of the system."""
SUFFIXES = {".py", ".lua", ".sql", ".md"}


def texts() -> list[Path]:
    folders = [ROOT / "src", ROOT / "tests", ROOT / "docs"]
    found = [path for each in folders for path in each.rglob("*") if path.suffix in SUFFIXES and path != Path(__file__)]
    return [ROOT / "README.md", *sorted(found)]


def persons_in(text: str) -> list[str]:
    """Find lines that speak of a process as of a person; identifiers count by their parts."""
    return [line.strip() for line in text.splitlines() if PERSONS.search(line.replace("_", " ").replace(ACCOUNT, ""))]


@pytest.mark.parametrize("path", texts(), ids=lambda path: str(path.relative_to(ROOT)))
def test_rejected_words_are_not_used(path: Path) -> None:
    assert persons_in(path.read_text("utf-8")) == []


def test_a_line_with_a_rejected_word_is_found() -> None:
    assert persons_in("Whoever holds it keeps his place.") == ["Whoever holds it keeps his place."]
    assert persons_in("def wake_everybody():") == ["def wake_everybody():"]
    assert persons_in("the holder, then this one: `nobody` is a user of the system") == []
