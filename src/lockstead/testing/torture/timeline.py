"""Draw a history: a lane for each client, with what it waited for and held, and faults as bands.

`python -m lockstead.testing.torture.timeline HISTORIES FILE.svg`. The tooltip of an element says what it was, and its
line in the files. It needs no library, so that it can be drawn wherever a run failed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from html import escape
from itertools import cycle
from math import inf
from pathlib import Path

from lockstead.testing.torture.checkers import Violation
from lockstead.testing.torture.history import Acquire, Fault, History, Operation

X = Callable[[float], float]
"""Maps a time to its horizontal position."""

SECOND = 60
"""Pixels per second."""
LEFT, TOP, ROW, BAR = 110, 58, 13, 9
LABELS = 3
"""Rows for the names of faults, since some are close to each other."""
COLOURS = ("#0a58ca", "#2f8fe6", "#6aa5dd", "#041f4d", "#a8693a", "#6d8764", "#8d6e97", "#4d4d4d")
FAULT, WRONG = "#d9534f", "#d00000"
STYLE = "text{font:11px sans-serif;fill:#333} .n{font-weight:bold} .f{fill:#a33}"


def draw(history: History, accused: Collection[Operation] = ()) -> str:
    """Draw all of it, with the operations of violations in red."""
    known = [one for one in history.operations if one.invoked < inf]
    zero = min((one.invoked for one in known), default=0.0)
    end = max(history.last_seen.values(), default=zero)
    names = sorted({one.name for one in history.acquires})
    colours = dict(zip(names, cycle(COLOURS), strict=False))
    lanes = _lanes(history)
    width = LEFT + (end - zero) * SECOND + 20
    bottom = TOP + sum(len(rows) * ROW + 8 for rows in lanes.values())
    height = bottom + LABELS * ROW + 10

    def x(at: float) -> float:
        return LEFT + (min(at, end) - zero) * SECOND

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}">',
        f"<style>{STYLE}</style>",
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="white"/>',
        *_legend(colours),
        *_scale(zero, end, bottom, x),
    ]
    wrong = {(one.client, one.line) for one in accused}
    for number, fault in enumerate(fault for fault in history.faults if not fault.target):
        parts.append(_band(fault, x, TOP, bottom - TOP))
        under = bottom + ROW * (1 + number % LABELS)
        parts.append(f'<text class="f" x="{x(fault.invoked):.1f}" y="{under}">{escape(fault.name)}</text>')
    top = TOP
    for client, rows in lanes.items():
        depth = len(rows) * ROW
        parts.append(f'<text class="n" x="4" y="{top + 10}">{escape(client)}</text>')
        parts.append(f'<line x1="{LEFT}" x2="{width - 20:.0f}" y1="{top - 3}" y2="{top - 3}" stroke="#ddd"/>')
        parts += [_band(one, x, top - 2, depth + 4) for one in history.faults if one.target == client]
        for number, row in enumerate(rows):
            for one in row:
                parts += _bars(
                    one, x, top + number * ROW, colours[one.name], history, wrong=(one.client, one.line) in wrong
                )
        top += depth + 8
    return "\n".join([*parts, "</svg>"])


def _lanes(history: History) -> dict[str, list[list[Acquire]]]:
    """Give each client as many rows as it had concurrent operations."""
    lanes: dict[str, list[list[Acquire]]] = {}
    for one in sorted(history.acquires, key=lambda one: one.invoked):
        rows = lanes.setdefault(one.client, [])
        for row in rows:
            if _end(row[-1], history) <= one.invoked:
                row.append(one)
                break
        else:
            rows.append([one])
    return dict(sorted(lanes.items()))


def _end(one: Acquire, history: History) -> float:
    """Return when its client had finished with it, or recorded its last event."""
    if not one.is_granted:
        end = one.completed
    elif one.release is not None:
        end = one.release.completed
    else:
        end = max(one.completed, one.believed_until)
    return end if end < inf else history.last_seen[one.client]


def _bars(one: Acquire, x: X, top: float, colour: str, history: History, *, wrong: bool) -> Iterator[str]:
    title = f"<title>{escape(one.title)}</title>"
    end = _end(one, history)
    waited = min(one.completed, end)
    middle = top + BAR / 2
    yield (
        f'<line x1="{x(one.invoked):.1f}" x2="{x(waited):.1f}" y1="{middle}" y2="{middle}" stroke="{colour}" '
        f'stroke-width="{3 if wrong else 1}">{title}</line>'
    )
    if one.is_granted:
        held = max(min(one.believed_until, one.released_at), one.completed)
        border = f' stroke="{WRONG}" stroke-width="2"' if wrong else ""
        yield _rectangle((x(one.completed), x(held)), top, BAR, f'fill="{colour}"{border}', title)
        yield _rectangle((x(held), x(end)), top, BAR, f'fill="{colour}" fill-opacity="0.25"', title)


def _band(fault: Fault, x: X, top: float, height: float) -> str:
    look = f'fill="{FAULT}" fill-opacity="0.18"'
    return _rectangle(
        (x(fault.invoked), x(fault.completed)), top, height, look, f"<title>{escape(fault.title)}</title>"
    )


def _rectangle(span: tuple[float, float], top: float, height: float, look: str, title: str) -> str:
    start, end = span
    width = max(end - start, 1.0)
    return f'<rect x="{start:.1f}" y="{top}" width="{width:.1f}" height="{height}" {look}>{title}</rect>'


def _legend(colours: dict[str, str]) -> Iterator[str]:
    at = LEFT
    for name, colour in colours.items():
        yield f'<rect x="{at}" y="8" width="10" height="10" fill="{colour}"/><text x="{at + 14}" y="17">{name}</text>'
        at += 30 + 7 * len(name)
    yield f'<rect x="{at}" y="8" width="10" height="10" fill="{FAULT}" fill-opacity="0.3"/>'
    yield f'<text x="{at + 14}" y="17">fault; lines wait, bars hold, pale bars are past their trust window</text>'


def _scale(zero: float, end: float, bottom: float, x: X) -> Iterator[str]:
    for second in range(int(end - zero) + 1):
        at = x(zero + second)
        yield f'<line x1="{at}" x2="{at}" y1="{TOP - 14}" y2="{bottom}" stroke="#f0f0f0"/>'
        yield f'<text x="{at + 2}" y="{TOP - 18}">{zero + second:.0f} s</text>'


def accused(violations: Iterable[Violation]) -> list[Operation]:
    return [one for violation in violations for one in violation.operations]


def main() -> None:
    histories, target = map(Path, sys.argv[1:])
    target.write_text(draw(History.read(sorted(histories.glob("*.jsonl")))))


if __name__ == "__main__":
    main()
