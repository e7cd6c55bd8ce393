"""Measure cases beside each other in one run, so that a busy moment hits them all, and print what came out."""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import nan
from statistics import quantiles
from typing import Any, NamedTuple, TypeVar

Case = TypeVar("Case")
Sample = TypeVar("Sample")


class Spread(NamedTuple):
    """Where samples lie. Means are left out: one pause of the machine decides them."""

    median: float
    p10: float
    p90: float
    p99: float

    def scaled(self, factor: float) -> Spread:
        return Spread(*(factor * value for value in self))


def spread(samples: Sequence[float]) -> Spread:
    """Say where samples lie: nowhere, if there are not even two."""
    cuts = quantiles(samples, n=100, method="inclusive") if len(samples) > 1 else [nan] * 99
    return Spread(cuts[49], cuts[9], cuts[89], cuts[98])


def interleave(
    cases: Mapping[Case, Callable[[], Iterable[Sample]]], rounds: int, warm_up: int = 1
) -> dict[Case, list[Sample]]:
    """Let every case take some samples per round, in a new order each time; those of the first rounds do not count."""
    samples: dict[Case, list[Sample]] = {case: [] for case in cases}
    for turn in range(warm_up + rounds):
        for case in random.sample(list(cases), len(cases)):
            taken = cases[case]()
            if turn >= warm_up:
                samples[case] += taken
    return samples


def options(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return parser


def report(question: str, rows: Sequence[Mapping[str, Any]], *, as_json: bool) -> None:
    """Print rows, all with the same columns; a float is shown with three digits, a Spread as median and range."""
    machine = f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, Python {platform.python_version()}"
    if as_json:
        plain = [{k: v._asdict() if isinstance(v, Spread) else v for k, v in row.items()} for row in rows]
        print(json.dumps({"question": question, "machine": machine, "rows": plain}, ensure_ascii=False, indent=2))
        return
    cells = [list(rows[0]), *([_shown(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    adjust = [str.ljust if isinstance(value, str) else str.rjust for value in rows[0].values()]
    print(f"\n{question}  ({machine})\n")
    for line in cells:
        print("  ".join(put(cell, width) for put, cell, width in zip(adjust, line, widths, strict=True)).rstrip())
    sys.stdout.flush()


def _shown(value: object) -> str:
    if isinstance(value, Spread):
        return f"{_shown(value.median)} ({_shown(value.p10)}-{_shown(value.p90)})"
    if isinstance(value, float):
        return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
    return "-" if value is None else str(value)
