"""A command that tortures stores for some minutes, and reports the results."""

from __future__ import annotations

import argparse
import logging
import secrets
import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lockstead.testing.torture.runner import ArenaMaker, Report, read, torture
from lockstead.testing.torture.timeline import accused, draw

SLICE = 60.0
"""Seconds that one arena is tortured at a time."""
PROGRESS_EVERY = 10.0
"""Seconds between two progress lines of an arena."""


def main(arenas: Iterable[ArenaMaker], words: Sequence[str] | None = None) -> int:
    """Torture these arenas, as the command line says, and return the exit code."""
    known = {arena.__name__: arena for arena in arenas}
    arguments = _parse(known, words)
    seed = arguments.seed if arguments.seed is not None else secrets.randbelow(10**9)
    names = arguments.arena.split(",") if arguments.arena else list(known)
    end = time.monotonic() + 60 * arguments.minutes
    logging.getLogger("lockstead").setLevel(logging.ERROR)  # the runner's own clients are affected by the faults, too
    print(f"seed {seed}; {', '.join(names)}; {arguments.minutes:g} minutes", flush=True)
    reports: list[Report] = []
    with ThreadPoolExecutor(arguments.at_once) as pool:
        while not reports or time.monotonic() < end:
            left = end - time.monotonic()
            seconds = max(min(arguments.slice, left, left * arguments.at_once / len(names)), 5.0)
            futures = [pool.submit(_torture, known[name], seconds, seed, arguments) for name in names]
            for future in futures:
                report = future.result()
                _plot(report, reports, arguments)
                reports.append(report)
            seed += 1
    summarize(reports)
    return 0 if all(report.is_good for report in reports) else 1


def _parse(known: Collection[str], words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Torture stores for some minutes, and report the results.")
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--arena", default="", help=f"some of {','.join(known)} (default: all)")
    parser.add_argument("--seed", type=int, help="of the first round; each further round adds 1 (default: random)")
    parser.add_argument("--slice", type=float, default=SLICE, help="seconds that an arena is tortured at a time")
    parser.add_argument("--at-once", type=int, default=2, help="how many arenas at a time")
    parser.add_argument("--plot", type=Path, help="draw the timeline of the first run that failed, or of the first run")
    parser.add_argument("--keep", action="store_true", help="keep the histories of good runs, too")
    arguments = parser.parse_args(words)
    if unknown := {*arguments.arena.split(",")} - {*known, ""}:
        parser.error(f"no arena is called {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return arguments


def _torture(arena: ArenaMaker, seconds: float, seed: int, arguments: argparse.Namespace) -> Report:
    name = arena.__name__
    began = time.monotonic()
    printed = 0.0

    def say(line: str) -> None:
        nonlocal printed
        now = time.monotonic()
        if now - printed >= PROGRESS_EVERY:
            printed = now
            print(f"{name:>9} {now - began:4.0f} s  {line}", flush=True)

    report = torture(arena, seconds, seed, say=say, keep=arguments.keep or arguments.plot is not None)
    print(f"{report}".partition("\n")[0], flush=True)
    return report


def _plot(report: Report, earlier: list[Report], arguments: argparse.Namespace) -> None:
    """Draw the first run, or instead of it the first that failed; then delete histories that are not to be kept."""
    if report.histories is None:
        return
    if arguments.plot and (not earlier or (not report.is_good and all(one.is_good for one in earlier))):
        arguments.plot.write_text(draw(read(report.histories), accused(report.violations)))
    if report.is_good and not arguments.keep:
        report.discard()


def summarize(reports: list[Report]) -> None:
    """Print the operations, the faults and the violations of all runs."""
    for name in dict.fromkeys(report.arena for report in reports):
        ours = [report for report in reports if report.arena == name]
        print(f"\n{name}: {len(ours)} runs, {sum(report.seconds for report in ours):.0f} s")
        print("  operations:", _list(sum((report.operations for report in ours), Counter[str]())))
        print("  faults:", _list(sum((report.faults for report in ours), Counter[str]())))
        seconds, kind = max(report.worst_recovery for report in ours)
        print(f"  worst recovery: {seconds:.2f} s, after {kind}")
    bad = [report for report in reports if not report.is_good]
    for report in bad:
        print(f"\n{report}")
    operations = sum(report.operations.total() for report in reports)
    faults = sum((report.faults for report in reports), Counter[str]())
    violations = sum(len(report.violations) + len(report.errors) for report in reports)
    seconds, kind = max(report.worst_recovery for report in reports)
    print(f"\nall faults: {_list(faults)}")
    print(
        f"{operations} operations, {faults.total()} faults, {violations} violations; "
        f"worst recovery {seconds:.2f} s, after {kind}"
    )


def _list(counts: Counter[str]) -> str:
    return ", ".join(f"{what} {number}" for what, number in sorted(counts.items())) or "none"
