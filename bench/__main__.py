"""Run every benchmark in turn, and make one report of the results.

A program that fails is reported with its last lines, and the rest still runs.
"""

from __future__ import annotations

import argparse
import signal
import sys

from bench._plots import draw
from bench._report import ROOT, describe_machine, load, publish, summary, write_report
from bench._run import PROGRAMS, run_all

RESULTS = ROOT / "bench" / "results"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="take two minutes instead of a quarter of an hour")
    parser.add_argument("--only", type=names, default=list(PROGRAMS), metavar="NAME,NAME", help=", ".join(PROGRAMS))
    parser.add_argument("--publish", action="store_true", help="run nothing: put the last results into docs/")
    arguments = parser.parse_args()
    if arguments.publish:
        if not (results := load(RESULTS, PROGRAMS)):
            sys.exit("there is nothing to publish: run `make bench` first")
        publish(results, RESULTS, ROOT / "docs")
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # or the child would keep running
    RESULTS.mkdir(exist_ok=True)
    describe_machine(RESULTS, is_quick=arguments.quick)
    failed = run_all(arguments.only, RESULTS, is_quick=arguments.quick)
    results = load(RESULTS, PROGRAMS)
    for name, why in draw(results, RESULTS).items():
        print(f"{name} could not be drawn:\n{why}", file=sys.stderr)
        failed.append(name)
    print(f"{summary(results)}: see {write_report(results, RESULTS).relative_to(ROOT)}")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def names(text: str) -> list[str]:
    chosen = text.split(",")
    if unknown := set(chosen) - set(PROGRAMS):
        raise argparse.ArgumentTypeError(f"no such benchmark: {', '.join(sorted(unknown))}")
    return [name for name in PROGRAMS if name in chosen]


if __name__ == "__main__":
    main()
