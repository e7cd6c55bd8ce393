"""The table of log lines in docs/guide.md has every line that the library logs, and no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.harness.tree import ROOT

SOURCE = ROOT / "src" / "lockstead"
LEVELS = {"debug": "DEBUG", "info": "INFO", "warning": "WARNING", "error": "ERROR", "exception": "ERROR", "log": ""}
"""By method of a logger; a level that is computed is not compared."""
PLACEHOLDER = re.compile(r"%[-+ #0-9.]*[a-zA-Z]")
ROW = re.compile(r"^\| ([A-Za-z, ]+) \| `([^`]+)`", re.MULTILINE)


class LogCall(NamedTuple):
    """One call of a logger in the library."""

    where: str
    level: str
    text: str

    def logs(self, level: str, line: str) -> bool:
        """Return whether a row of the table may be an example of this call."""
        pattern = ".+".join(map(re.escape, PLACEHOLDER.split(self.text)))
        return re.fullmatch(pattern, line) is not None and self.level in level


def log_calls(source: str, where: str) -> Iterator[LogCall]:
    """Find the calls of a logger. Raises AssertionError for one whose text is not constant."""
    tree = ast.parse(source)
    constants = {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="log" | "logger"), attr=method)) if method in LEVELS:
                given = node.args[1 if method == "log" else 0]
                text = constants.get(given.id) if isinstance(given, ast.Name) else getattr(given, "value", None)
                place = f"{where}:{node.lineno}"
                assert isinstance(text, str), f"{place}: the text of a log line is a constant, so that it can be found"
                assert PLACEHOLDER.sub("", text).strip(" :;"), f"{place}: a log line has words of its own"
                yield LogCall(place, LEVELS[method], text)


def modules() -> list[Path]:
    return [path for path in sorted(SOURCE.rglob("*.py")) if "testing" not in path.relative_to(SOURCE).parts]


def rows() -> list[tuple[str, str]]:
    section = (ROOT / "docs" / "guide.md").read_text("utf-8").partition("\n## Logs\n")[2].partition("\n## ")[0]
    return ROW.findall(section)


CALLS = [call for path in modules() for call in log_calls(path.read_text("utf-8"), str(path.relative_to(ROOT)))]


def test_the_guide_lists_every_log_line() -> None:
    missing = [call for call in CALLS if not any(call.logs(*row) for row in rows())]
    assert CALLS
    assert not missing, f"add to the table in docs/guide.md, Logs: {missing}"


def test_the_guide_lists_no_other_log_line() -> None:
    assert [line for level, line in rows() if not any(call.logs(level, line) for call in CALLS)] == []


def test_a_call_is_found_with_its_level_and_its_text() -> None:
    source = 'IT = "%s: it"\ndef f():\n    log.exception("%s: lost %r" ": why", 1, 2)\n    log.log(level, IT, 3)'
    first, second = log_calls(source, "f.py")
    assert first == ("f.py:3", "ERROR", "%s: lost %r: why")
    assert first.logs("ERROR", "redis://db: lost 'x': why")
    assert not first.logs("WARNING", "redis://db: lost 'x': why")
    assert not first.logs("ERROR", "redis://db: lost 'x'")
    assert second.logs("WARNING, then DEBUG", "redis://db: it")


@pytest.mark.parametrize("call", ["log.info(text)", 'log.info(f"lost {name}")', 'log.warning("%s: %s", 1, 2)'])
def test_a_text_that_cannot_be_listed_is_an_error(call: str) -> None:
    with pytest.raises(AssertionError):
        list(log_calls(call, "f.py"))
