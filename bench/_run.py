"""Run the programs in turn, each in its own process, and save their results."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Thread
from time import monotonic
from typing import IO, Any, NamedTuple

from bench._measure import Progress
from bench._report import ROOT, Result, save

LAST_LINES = 15
EXTRA_TIME = 60.0
"""Seconds that a program may take on top of three times its duration, before it counts as stuck."""


class Duration(NamedTuple):
    """The seconds that a program takes on an idle machine."""

    full: float
    quick: float


PROGRAMS: Mapping[str, Duration] = {
    "pair": Duration(30, 5),
    "redis_pair": Duration(75, 12),
    "postgres_pair": Duration(60, 12),
    "redis_fanout": Duration(45, 8),
    "handover": Duration(60, 10),
    "redis_handover": Duration(180, 20),
    "postgres_handover": Duration(60, 10),
    "held": Duration(30, 6),
    "redis_held": Duration(30, 6),
    "line": Duration(50, 8),
    "names": Duration(50, 8),
    "recovery": Duration(60, 8),
    "rates": Duration(40, 6),
}


class Schedule:
    """Describes the progress of a run, by the time that has passed and the expected rest."""

    def __init__(self, expected: Mapping[str, float]) -> None:
        self.expected = expected
        self._began = monotonic()

    def progress(self, name: str, seconds: float) -> str:
        number = list(self.expected).index(name)
        later = sum(list(self.expected.values())[number + 1 :])
        passed = monotonic() - self._began
        whole = passed + max(self.expected[name] - seconds, 0.0) + later
        place = f"[{number + 1}/{len(self.expected)}] {name} {clock(seconds)} of {clock(self.expected[name])}"
        return f"{place}, all {clock(passed)} of {clock(whole)}"


def run_all(chosen: Sequence[str], folder: Path, *, is_quick: bool) -> list[str]:
    """Run programs and save their results; return the names of those that failed."""
    schedule = Schedule({name: PROGRAMS[name].quick if is_quick else PROGRAMS[name].full for name in chosen})
    failed = []
    for name in chosen:
        command = [sys.executable, "-m", f"bench.{name}", "--json", *["--quick"] * is_quick]
        result = run(name, command, schedule, is_quick=is_quick)
        save(result, folder)
        if result.failure is not None:
            failed.append(name)
        print(f"{schedule.progress(name, result.seconds)}{', FAILED' * (name in failed)}", flush=True)
    return failed


def run(name: str, command: Sequence[str], schedule: Schedule, *, is_quick: bool) -> Result:
    """Run one program and show its progress; kill it if it is stuck."""
    began = monotonic()
    deadline = began + 3 * schedule.expected[name] + EXTRA_TIME
    last_lines: deque[str] = deque(maxlen=LAST_LINES)
    progress = Progress()
    with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
        program = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            cwd=ROOT,
            start_new_session=True,
        )
        assert program.stderr is not None
        listener = Thread(target=collect, args=(program.stderr, last_lines), daemon=True)
        listener.start()
        try:
            while program.poll() is None and monotonic() < deadline:
                progress.show(f"{schedule.progress(name, monotonic() - began)}  {last_lines[-1] if last_lines else ''}")
                listener.join(0.5)
        finally:
            is_stuck = program.poll() is None
            if is_stuck:
                os.killpg(program.pid, signal.SIGKILL)
            program.wait()
            progress.end()
        listener.join(1.0)  # a process it left behind may keep the pipe open
        output.seek(0)
        reports = documents(output.read())
    seconds = monotonic() - began
    if is_stuck:
        last_lines.append(f"did not end within {seconds:.0f} s")
    has_failed = program.returncode != 0 or not reports
    return Result(name, seconds, is_quick, "\n".join(last_lines) if has_failed else None, reports)


def collect(stream: IO[str], lines: deque[str]) -> None:
    with stream:
        lines.extend(line.rstrip() for line in stream)


def documents(text: str) -> list[dict[str, Any]]:
    """Parse consecutive JSON documents, up to the first that is incomplete."""
    found = []
    decoder = json.JSONDecoder()
    while text := text.lstrip():
        try:
            document, end = decoder.raw_decode(text)
        except ValueError:
            break
        found.append(document)
        text = text[end:]
    return found


def clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"
