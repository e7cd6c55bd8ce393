"""Formatting for people: durations, metadata, tables and colours."""

from __future__ import annotations

import json
import os
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from lockstead.core.quoting import escaped

BOLD, DIM, RED, GREEN, YELLOW, CYAN = "1", "2", "31", "32", "33", "36"

GAP = "  "
MIN_WIDTH = 8
"""How narrow a column may be cut."""


def takes_colour(stream: TextIO) -> bool:
    """Return whether the stream is a terminal with colours, and the user did not switch them off."""
    return stream.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def styled(text: str, style: str, *, wanted: bool) -> str:
    return f"\033[{style}m{text}\033[0m" if wanted else text


def format_duration(seconds: float) -> str:
    """Write a duration in its two largest units."""
    seconds = max(seconds, 0.0)
    if seconds < 9.95:  # noqa: PLR2004 - what rounds to 10 reads better without decimals
        return f"{seconds:.1f}s"
    whole = round(seconds)
    for unit, length, smaller, part in (("d", 86400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if whole >= length:
            rest = whole % length // part
            return f"{whole // length}{unit} {rest}{smaller}" if rest else f"{whole // length}{unit}"
    return f"{whole}s"


def format_metadata(metadata: Mapping[str, Any]) -> str:
    """Write metadata as key=value, with JSON for every value that is not a plain string."""
    return " ".join(f"{key}={_plain(value)}" for key, value in metadata.items())


def _plain(value: object) -> str:
    if isinstance(value, str) and value and " " not in value:
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def format_table(
    rows: Sequence[Sequence[str]], *, width: int | None, shrinkable: Sequence[int], droppable: Sequence[int] = ()
) -> list[str]:
    """Align rows of cells, the first being the header.

    To fit `width`, the `shrinkable` columns are cut, in this order, each to `MIN_WIDTH`, but not the last of them
    before the `droppable` columns were left out, in this order. A very narrow terminal may still be too narrow. None
    means no limit.
    """
    cells = [[escaped(cell) for cell in row] for row in rows]
    columns = list(range(len(cells[0])))
    natural = [max(_width(row[column]) for row in cells) for column in columns]
    yielding, last = [column for column in shrinkable[:-1] if column in columns], shrinkable[-1]
    for dropped in droppable:
        least = sum(min(natural[column], MIN_WIDTH) if column in yielding else natural[column] for column in columns)
        if width is None or least + len(GAP) * (len(columns) - 1) <= width:
            break
        columns.remove(dropped)
    widths = {column: natural[column] for column in columns}
    for column in (*yielding, last):
        if width is not None and column in widths:
            surplus = sum(widths.values()) + len(GAP) * (len(widths) - 1) - width
            widths[column] -= min(max(surplus, 0), max(widths[column] - MIN_WIDTH, 0))
    return [GAP.join(_fit(row[column], room) for column, room in widths.items()).rstrip() for row in cells]


def _fit(text: str, room: int) -> str:
    if _width(text) > room:
        while _width(text) >= room:
            text = text[:-1]
        text += "…"
    return text + " " * (room - _width(text))


def _width(text: str) -> int:
    """Count terminal cells: East Asian wide characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(character) else 1 + (unicodedata.east_asian_width(character) in "WF")
        for character in text
    )
