"""`lockstead demo`: one holder is killed, one is paused, and still every increment counts exactly once.

The workers are real processes that contend, wait, crash and pause; only how long each works, and which grant ends in a
fault, is decided here.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import signal
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Self

from lockstead.cli.client import open_client
from lockstead.cli.demo_worker import CounterFile
from lockstead.cli.outcome import Exit, Failure
from lockstead.cli.text import BOLD, CYAN, DIM, GREEN, RED, YELLOW, styled, takes_colour
from lockstead.stores.registry import redact

MIN_WORKERS, MAX_WORKERS = 4, 12
TTL = 2.0
LATENESS = 0.5
"""Seconds that a busy machine may add to a takeover."""
WORK = 0.2
"""Seconds of work under the lock."""
INCREMENTS = 2
"""How often each worker increments, unless it is killed."""
KILLED_GRANT, PAUSED_GRANT = 2, 4
"""Which of the grants ends in a crash, and which in a pause."""
WRITES_MISSED = 2
"""How often other workers write during the pause: a late write of the value read before it would undo the second."""
DEADLINE = 18.0
SHOWN_DIGITS = 8


class Check(NamedTuple):
    passed: bool
    claim: str


def demo(arguments: Namespace) -> int:
    """Run the scenario, print what happens, and return 0 only if every check passed."""
    if not MIN_WORKERS <= arguments.workers <= MAX_WORKERS:
        msg = f"--workers must be from {MIN_WORKERS} to {MAX_WORKERS}: one is killed, one is paused, two must be left"
        raise Failure(Exit.BAD_INPUT, msg)
    with tempfile.TemporaryDirectory(prefix="lockstead-demo-") as directory:
        url = arguments.url or os.environ.get("LOCKSTEAD_URL") or f"sqlite:///{directory}/locks.db"
        with open_client(url, TTL) as locks:
            locks.inspect("demo:")  # an unreachable store is reported once, not by every worker
        timeline = Timeline(silent=arguments.json)
        timeline.print_introduction(url if url.startswith("sqlite:") else redact(url), arguments.workers)
        with Scenario(arguments.workers, url, Path(directory), timeline) as scenario:
            checks = scenario.run()
    if arguments.json:
        result = {"ok": all(check.passed for check in checks), "checks": [check._asdict() for check in checks]}
        print(json.dumps(result | {"events": timeline.events}, indent=2))
    else:
        timeline.print_checks(checks)
    return 0 if all(check.passed for check in checks) else 1


class Timeline:
    """Prints events as they happen, or, if silent, only records them."""

    def __init__(self, *, silent: bool) -> None:
        self.events: list[dict[str, Any]] = []
        self._silent = silent
        self._colours = takes_colour(sys.stdout)
        self._started = time.monotonic()

    def print_introduction(self, url: str, workers: int) -> None:
        self._print(
            f"{workers} worker processes increment a counter in a file, {INCREMENTS} times each, under one lock in"
        )
        self._print(f"{url}.")
        self._print("Each time, a worker acquires the lock, reads the counter, works, writes the counter plus one,")
        self._print(
            f"and releases the lock. A lease lasts {TTL:g} s and is renewed while its holder runs. Every holder gets"
        )
        self._print("a larger fence than the one before; the file refuses a write whose fence is smaller than one it")
        self._print("has seen.\n")

    def start(self) -> None:
        self._started = time.monotonic()

    def add(self, process: str, what: str, colour: str = "", moment: float | None = None) -> None:
        """Add an event that happened now, or at the given moment."""
        at = (time.monotonic() if moment is None else moment) - self._started
        self.events.append({"at": round(at, 3), "process": process, "what": what})
        shown = styled(what, colour, wanted=self._colours and bool(colour))
        self._print(f"{styled(f'{at:6.2f} s', DIM, wanted=self._colours)}  {process:<9}  {shown}")

    def print_checks(self, checks: list[Check]) -> None:
        self._print(styled("\nWhat was checked", BOLD, wanted=self._colours))
        for check in checks:
            mark = styled("ok    ", GREEN, wanted=self._colours)
            if not check.passed:
                mark = styled("FAILED", RED, wanted=self._colours)
            self._print(f"  {mark}  {check.claim}")

    def _print(self, text: str) -> None:
        if not self._silent:
            print(text, flush=True)


class Scenario:
    """The worker processes, the faults injected into them, and the results."""

    def __init__(self, workers: int, url: str, directory: Path, timeline: Timeline) -> None:
        self._timeline = timeline
        path = directory / "counter.json"
        self._counter_file = CounterFile(path)
        self._counter_file.create()
        self._fences: list[int] = []
        self._writes = 0
        self._refused = 0
        self._paused = ""
        self._missed = 0
        self._fault: tuple[str, str, float] | None = None
        """Its kind, its worker and its time, until the next worker holds the lock."""
        self._takeovers: dict[str, float] = {}
        # One pipe for all workers: what a holder reports before its release arrives before the next holder's report.
        self._reader, writer = os.pipe()
        name = f"demo:{secrets.token_hex(4)}"
        self._processes = {}
        for number in range(1, workers + 1):
            worker = f"worker {number}"
            command = [sys.executable, "-m", "lockstead.cli.demo_worker", worker, name, str(path)]
            self._processes[worker] = subprocess.Popen(  # noqa: S603 - a module of our own
                [*command, str(TTL), str(INCREMENTS)],
                stdin=subprocess.PIPE,
                stdout=writer,
                process_group=0,
                env=os.environ | {"LOCKSTEAD_URL": url},  # every user of the machine can read arguments
            )
        os.close(writer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._processes.values():
            process.kill()
            process.communicate()
        os.close(self._reader)

    def run(self) -> list[Check]:
        """Let the workers proceed until all have ended, inject the faults, and return the checks."""
        ready = 0
        for event in self._events():
            worker, moment = event["worker"], event["time"]
            match event["what"]:
                case "ready":
                    ready += 1
                    if ready == len(self._processes):
                        self._start()
                case "holds":
                    self._on_grant(worker, event["fence"], moment)
                case "wrote":
                    self._writes += 1
                    self._timeline.add(worker, f"writes {event['counter']} and releases the lock", moment=moment)
                    self._missed += bool(self._paused)
                    if self._missed == WRITES_MISSED:
                        self._resume()
                case "refused":
                    self._refused += 1
                    late, newest = _short(event["fence"]), _short(event["newest"])
                    what = f"writes {event['counter']} with fence {late}: REFUSED, the file has seen fence {newest}"
                    self._timeline.add(worker, what, GREEN, moment)
                case "lost":
                    what = "detects that its lease has expired, and requests the lock again"
                    self._timeline.add(worker, what, moment=moment)
                case "done":
                    self._timeline.add(worker, "is done", DIM, moment)
        return self._checks()

    def _start(self) -> None:
        self._timeline.start()
        self._timeline.add("all", "request the lock: one becomes its holder, the others are waiters in a queue")
        for worker in self._processes:
            self._proceed(worker)

    def _on_grant(self, worker: str, fence: int, moment: float) -> None:
        """Let a new holder work, then write, or kill or pause it."""
        self._fences.append(fence)
        what = f"holds the lock, fence {_short(fence)}"
        if self._fault is not None:
            fault, holder, since = self._fault
            self._fault = None
            self._takeovers[fault] = moment - since
            what += f": {holder}'s lease expired {moment - since:.2f} s after the {fault}"
            self._timeline.add(worker, what, CYAN, moment)
        else:
            self._timeline.add(worker, what, moment=moment)
        time.sleep(WORK)
        grant = len(self._fences)
        if grant == KILLED_GRANT:
            self._processes[worker].kill()
            self._timeline.add(worker, "KILLED (SIGKILL) while it holds the lock: it will never release it", RED)
            self._await_takeover(worker, "kill")
        elif grant == PAUSED_GRANT:
            self._processes[worker].send_signal(signal.SIGSTOP)
            self._paused = worker
            self._timeline.add(worker, "PAUSED (SIGSTOP) while it holds the lock: it cannot renew its lease", YELLOW)
            self._await_takeover(worker, "pause")
        else:
            self._proceed(worker)

    def _await_takeover(self, holder: str, fault: str) -> None:
        self._fault = fault, holder, time.monotonic()
        self._timeline.add("", f"the waiters wait until the lease expires: at most {TTL:g} s", DIM)

    def _resume(self) -> None:
        """Resume the paused worker, whose clock check and write are still ahead of it."""
        worker, self._paused, self._missed = self._paused, "", 0
        self._timeline.add(worker, "RESUMED (SIGCONT): continues as if it still held the lock", YELLOW)
        self._proceed(worker)
        self._processes[worker].send_signal(signal.SIGCONT)

    def _proceed(self, worker: str) -> None:
        stdin = self._processes[worker].stdin
        assert stdin is not None
        with suppress(BrokenPipeError):  # it crashed, and the checks will fail
            stdin.write(b"\n")
            stdin.flush()

    def _events(self) -> Iterator[dict[str, Any]]:
        """Yield what the workers report until the last of them has ended."""
        deadline = time.monotonic() + DEADLINE
        pending = b""
        while True:
            if not select.select([self._reader], [], [], max(deadline - time.monotonic(), 0.0))[0]:
                self._timeline.add("", f"not finished after {DEADLINE:g} s: aborted", RED)
                return
            received = os.read(self._reader, 65536)
            if not received:
                return
            *lines, pending = (pending + received).split(b"\n")
            yield from map(json.loads, lines)

    def _checks(self) -> list[Check]:
        counter = self._counter_file.read()
        expected = INCREMENTS * (len(self._processes) - 1)
        growing = all(before < after for before, after in pairwise(self._fences))
        checks = [
            Check(
                counter == self._writes == expected,
                f"the counter is {counter}: all {expected} increments of the surviving workers, none lost, none twice",
            ),
            Check(growing, f"each of the {len(self._fences)} grants had a larger fence than the one before"),
        ]
        for fault in ("kill", "pause"):
            seconds = self._takeovers.get(fault)
            claim = f"after the {fault}, the next waiter held the lock within the lease's {TTL:g} s"
            checks.append(
                Check(
                    seconds is not None and seconds <= TTL + LATENESS, f"{claim}: {seconds:.2f} s" if seconds else claim
                )
            )
        checks.append(Check(self._refused == 1, "the paused worker's late write was refused: its fence was too small"))
        return checks


def _short(fence: int) -> str:
    """Leave out the digits that the fences of one minute share."""
    digits = str(fence)
    return digits if len(digits) <= SHOWN_DIGITS else f"…{digits[-SHOWN_DIGITS:]}"
