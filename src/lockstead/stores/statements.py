"""SQL statements, read from the `statements.sql` beside the code that runs them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files

_HEADING = "-- name: "


@cache
def load(package: str) -> Mapping[str, str]:
    """Read a package's `statements.sql`: the text of each statement, by the name in the line above it.

    A text is one line, without comments and the final semicolon. What is in braces is for the caller to fill in.
    """
    lines_of: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in map(str.strip, files(package).joinpath("statements.sql").read_text("utf-8").splitlines()):
        if line.startswith(_HEADING):
            lines = lines_of[line.removeprefix(_HEADING)] = []
        elif line and not line.startswith("--"):
            lines.append(line)
    return {name: " ".join(lines).removesuffix(";") for name, lines in lines_of.items()}
