"""The language rules that a machine can check: see CONTRIBUTING.md, "House rules" and "Words"."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.harness.tree import ROOT

REJECTED = {
    "he|him|his|himself|she|her|hers|herself": "name the role: the holder, the waiter, another client, the store",
    "whoever|whom|those who|somebody|nobody|everybody|anybody": "name the role: the holder, another client, no client",
    "told": "notified, signalled, given",
    "in vain": "say what failed, or which condition was not met",
    "hears?|heard|overheard|deaf|mailbox(es)?": "receive; the connection is the subscriber",
    "rung|bell|doorbell|latch": "event; the socket is the notify socket",
    "stumble[sd]?|surveys?|mourns?": "fail, scan, handle the loss",
    "insists?|knocks?|nurses?": "retry, probe, recover",
    "heirs?": "reservation",
    "debts?|owe[ds]?": "pending releases; cost or level of a rate limit",
    "ousted|burnt|unsure": "not primary, tombstone, in doubt",
    "strangers?|outsiders?|intruders?": "removed node, forger, another client",
    "stor(y|ies)": "scenario",
    "time[-_]outs?": "timeout",
    "fail[-_]overs?": "failover",
}
"""Words that are not used, and what to write instead. In backquotes a word is a word. Parts of identifiers count."""
PATTERNS = {
    re.compile(rf"(?<![`a-z0-9])({words.replace(' ', '[ _]')})(?![`a-z0-9])", re.IGNORECASE): instead
    for words, instead in REJECTED.items()
}
ACCOUNT = '"nobody"'
"""The unprivileged account of the system."""
FOLDERS = ("src", "tests", "docs", "bench", "examples")
SUFFIXES = {".py", ".lua", ".sql", ".md", ".c"}


def texts() -> list[Path]:
    found = [path for each in FOLDERS for path in (ROOT / each).rglob("*") if path.suffix in SUFFIXES]
    top = [*ROOT.glob("*.md"), ROOT / "Makefile", ROOT / "pyproject.toml"]
    return [path for path in sorted([*top, *found]) if path != Path(__file__)]


def rejected_in(text: str) -> list[str]:
    """Find lines with a rejected word, and say what to write instead."""
    return [
        f"{line.strip()}  <- {match[1]!r}: {instead}"
        for line in text.splitlines()
        for pattern, instead in PATTERNS.items()
        if (match := pattern.search(line.replace(ACCOUNT, "")))
    ]


@pytest.mark.parametrize("path", texts(), ids=lambda path: str(path.relative_to(ROOT)))
def test_rejected_words_are_not_used(path: Path) -> None:
    assert rejected_in(path.read_text("utf-8")) == []


@pytest.mark.parametrize(
    "line",
    [
        "Whoever holds it keeps his place.",
        "def wake_everybody():",
        "def test_a_time_out_is_kept():",
        "A fail-over ends it.",
        "def _begin_to_hear(self):",
        "those_who_wait = []",
        "# It waited in vain.",
    ],
)
def test_a_line_with_a_rejected_word_is_found(line: str) -> None:
    assert any(found.startswith(line) for found in rejected_in(line))


def test_a_rejected_word_is_shown_with_its_replacement() -> None:
    assert rejected_in("the holder is told") == ["the holder is told  <- 'told': notified, signalled, given"]


@pytest.mark.parametrize(
    "line",
    [
        "the holder, then this one: `nobody` is a user of the system",
        'user = "nobody"',
        "a timeout, a failover, the history, the other, here",
    ],
)
def test_a_line_without_a_rejected_word_is_not_found(line: str) -> None:
    assert rejected_in(line) == []


def test_every_kind_of_text_is_read() -> None:
    read = {str(path.relative_to(ROOT)) for path in texts()}
    assert {"Makefile", "pyproject.toml", "CONTRIBUTING.md", "tests/servers/full_disk.c"} <= read
    assert {Path(path).parts[0] for path in read} >= set(FOLDERS)
