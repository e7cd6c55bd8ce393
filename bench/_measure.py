"""Measure cases interleaved in one run, so that a busy moment affects them all, and print the results."""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isnan, nan
from shutil import get_terminal_size
from statistics import quantiles
from time import monotonic
from typing import Any, NamedTuple, TypeVar

Case = TypeVar("Case")
Sample = TypeVar("Sample")

PROGRESS_EVERY = 5.0
"""Seconds between two progress lines, where they cannot overwrite each other."""


class Spread(NamedTuple):
    """The distribution of samples. No mean: a single pause of the machine decides it."""

    median: float
    p10: float
    p90: float
    p99: float

    def scaled(self, factor: float) -> Spread:
        return Spread(*(factor * value for value in self))


def spread(samples: Sequence[float]) -> Spread:
    """Return the percentiles of samples: nan if there are fewer than two."""
    cuts = quantiles(samples, n=100, method="inclusive") if len(samples) > 1 else [nan] * 99
    return Spread(cuts[49], cuts[9], cuts[89], cuts[98])


class Target(NamedTuple):
    """A bound for a figure, and the figure of this run: nan if it could not be measured."""

    what: str
    figure: float
    bound: float
    at_least: bool = False
    """Whether more is better."""

    @property
    def met(self) -> bool:
        return self.figure >= self.bound if self.at_least else self.figure <= self.bound

    @property
    def verdict(self) -> str:
        if isnan(self.figure):
            return "not measured"
        return "met" if self.met else "MISSED"

    @property
    def wanted(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {shown(self.bound)}"


class Progress:
    """Prints progress on stderr: on one line of a terminal, or every few seconds elsewhere."""

    def __init__(self) -> None:
        self._in_place = sys.stderr.isatty()
        self._printed_at = monotonic()

    def show(self, text: str) -> None:
        if self._in_place:
            room = get_terminal_size().columns - 1
            print(f"\r\033[K{text[:room]}", end="", file=sys.stderr, flush=True)
        elif monotonic() >= self._printed_at + PROGRESS_EVERY:
            self._printed_at = monotonic()
            print(text, file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._in_place:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def interleave(
    cases: Mapping[Case, Callable[[], Iterable[Sample]]], rounds: int, warm_up: int = 1
) -> dict[Case, list[Sample]]:
    """Take samples of every case per round, in a random order each time; those of warm-up rounds do not count."""
    samples: dict[Case, list[Sample]] = {case: [] for case in cases}
    progress = Progress()
    for turn in range(warm_up + rounds):
        for case in random.sample(list(cases), len(cases)):
            progress.show(f"round {turn + 1} of {warm_up + rounds}: {_named(case)}")
            taken = cases[case]()
            if turn >= warm_up:
                samples[case] += taken
    progress.end()
    return samples


def _named(case: object) -> str:
    return ", ".join(map(str, case)) if isinstance(case, tuple) else str(case)


def options(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--quick", action="store_true", help="run for some seconds only: fewer rounds, fewer cases")
    return parser


def report(
    question: str,
    rows: Sequence[Mapping[str, Any]],
    *,
    as_json: bool,
    targets: Sequence[Target] = (),
    broken: Mapping[str, str] | None = None,
) -> None:
    """Print rows, all with the same columns; a float is shown with three digits, a Spread as median and range.

    Then print the targets, and which peers are not in the rows and why.
    """
    machine = f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, Python {platform.python_version()}"
    broken = broken or {}
    if as_json:
        result = {
            "question": question,
            "machine": machine,
            "rows": [{name: _plain(value) for name, value in row.items()} for row in rows],
            "targets": [{**_plain(target), "met": target.met} for target in targets],
            "broken": broken,
        }
        print(json.dumps(result, ensure_ascii=False, indent=2))
        return
    print(f"\n{question}  ({machine})\n")
    _print_table([list(rows[0]), *([shown(value) for value in row.values()] for row in rows)], list(rows[0].values()))
    if targets:
        print()
        _print_table(
            [[target.verdict, target.what, shown(target.figure), target.wanted] for target in targets], ["", "", 0, 0]
        )
    for peer, why in broken.items():
        print(f"\n{peer} is missing: {why}")
    sys.stdout.flush()


def _print_table(lines: Sequence[Sequence[str]], values: Sequence[object]) -> None:
    """Align text to the left and everything else to the right, by the types of one line's values."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    adjust = [str.ljust if isinstance(value, str) else str.rjust for value in values]
    for line in lines:
        print("  ".join(put(cell, width) for put, cell, width in zip(adjust, line, widths, strict=True)).rstrip())


def _plain(value: Any) -> Any:
    """Convert a value for JSON, which has no nan."""
    if isinstance(value, Spread | Target):
        return {name: _plain(part) for name, part in value._asdict().items()}
    return None if isinstance(value, float) and isnan(value) else value


def shown(value: object) -> str:
    if isinstance(value, Spread):
        return f"{shown(value.median)} ({shown(value.p10)}-{shown(value.p90)})"
    if isinstance(value, float) and not isnan(value):
        return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
    return "-" if value is None or isinstance(value, float) else str(value)
