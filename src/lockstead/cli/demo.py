"""`lockstead demo`: a crash and a pause in the middle of the work, and every increment counts exactly once.

The workers are processes of their own and really contend, wait, crash and pause; only how long each works, and to whom
it happens, is decided here.
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
from lockstead.cli.demo_worker import Ledger
from lockstead.cli.outcome import Exit, Failure
from lockstead.cli.text import BOLD, CYAN, DIM, GREEN, RED, YELLOW, styled, takes_colour
from lockstead.stores.registry import shown

FEWEST, MOST = 4, 12
TTL = 2.0
LATENESS = 0.5
"""What a busy machine may add to a takeover."""
WORK = 0.2
"""How long each section lasts."""
INCREMENTS = 2
"""How often each worker increments, if it lives."""
KILLED_GRANT, PAUSED_GRANT = 2, 4
"""Which of the grants ends in a crash, and which in a pause."""
WRITES_MISSED = 2
"""How often others write during the pause: a late write of what was read before would undo the second."""
DEADLINE = 18.0
SHOWN_DIGITS = 8


class Check(NamedTuple):
    passed: bool
    claim: str


def demo(arguments: Namespace) -> int:
    """Act it out, narrate it, and exit with 0 only if every check holds."""
    if not FEWEST <= arguments.workers <= MOST:
        msg = f"--workers must be from {FEWEST} to {MOST} (one is killed, one is paused, and two must be left)"
        raise Failure(Exit.BAD_INPUT, msg)
    with tempfile.TemporaryDirectory(prefix="lockstead-demo-") as directory:
        url = arguments.url or os.environ.get("LOCKSTEAD_URL") or f"sqlite:///{directory}/locks.db"
        with open_client(url, TTL) as locks:
            locks.inspect("demo:")  # a store that cannot be reached is better told once than by every worker
        timeline = Timeline(silent=arguments.json)
        timeline.introduce(url if url.startswith("sqlite:") else shown(url), arguments.workers)
        with Stage(arguments.workers, url, Path(directory), timeline) as stage:
            checks = stage.play()
    if arguments.json:
        told = {"ok": all(check.passed for check in checks), "checks": [check._asdict() for check in checks]}
        print(json.dumps(told | {"events": timeline.events}, indent=2))
    else:
        timeline.print_checks(checks)
    return 0 if all(check.passed for check in checks) else 1


class Timeline:
    """Prints the timeline as it happens, or, if silent, only remembers it."""

    def __init__(self, *, silent: bool) -> None:
        self.events: list[dict[str, Any]] = []
        self._silent = silent
        self._colours = takes_colour(sys.stdout)
        self._started = time.monotonic()

    def introduce(self, url: str, workers: int) -> None:
        self._print(f"{workers} processes share a counter in a file, and one lock on")
        self._print(f"{url}.")
        self._print(f"Each counts {INCREMENTS} times: acquire, read, work, write what was read plus one, release.")
        self._print(f"A lease lasts {TTL:g} s and is renewed while its holder lives. Each holder has a larger")
        self._print("fence, and the file refuses to be written with a smaller one than it has seen.\n")

    def begin(self) -> None:
        self._started = time.monotonic()

    def tell(self, who: str, what: str, colour: str = "", moment: float | None = None) -> None:
        """Tell what somebody did, now or at another moment."""
        at = (time.monotonic() if moment is None else moment) - self._started
        self.events.append({"at": round(at, 3), "who": who, "what": what})
        shown = styled(what, colour, wanted=self._colours and bool(colour))
        self._print(f"{styled(f'{at:6.2f} s', DIM, wanted=self._colours)}  {who:<9}  {shown}")

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


class Stage:
    """The workers, what is done to them, and what came of it."""

    def __init__(self, workers: int, url: str, directory: Path, timeline: Timeline) -> None:
        self._timeline = timeline
        path = directory / "counter.json"
        self._ledger = Ledger(path)
        self._ledger.create()
        self._fences: list[int] = []
        self._writes = 0
        self._refused = 0
        self._paused = ""
        self._missed = 0
        self._fault: tuple[str, float] | None = None
        self._takeovers: dict[str, float] = {}
        # One pipe for all: what a holder says before it releases comes before what the next one says.
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
                env=os.environ | {"LOCKSTEAD_URL": url},  # arguments can be seen by every user of the machine
            )
        os.close(writer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._processes.values():
            process.kill()
            process.communicate()
        os.close(self._reader)

    def play(self) -> list[Check]:
        """Direct the workers until all are through."""
        ready = 0
        for event in self._events():
            worker, moment = event["worker"], event["time"]
            match event["what"]:
                case "ready":
                    ready += 1
                    if ready == len(self._processes):
                        self._begin()
                case "holds":
                    self._holds(worker, event["fence"], moment)
                case "wrote":
                    self._writes += 1
                    self._timeline.tell(worker, f"counts to {event['counter']}, and releases", moment=moment)
                    self._missed += bool(self._paused)
                    if self._missed == WRITES_MISSED:
                        self._resume()
                case "refused":
                    self._refused += 1
                    late, newest = _short(event["fence"]), _short(event["newest"])
                    what = f"counts to {event['counter']} with fence {late}: REFUSED, the file has seen {newest}"
                    self._timeline.tell(worker, what, GREEN, moment)
                case "lost":
                    self._timeline.tell(worker, "sees that it lost the lock, and asks for it again", moment=moment)
                case "done":
                    self._timeline.tell(worker, "is done", DIM, moment)
        return self._checks()

    def _begin(self) -> None:
        self._timeline.begin()
        self._timeline.tell("all", "are ready, and ask for the lock")
        for worker in self._processes:
            self._proceed(worker)

    def _holds(self, worker: str, fence: int, moment: float) -> None:
        """Let a new holder work, or have an accident."""
        self._fences.append(fence)
        what = f"holds the lock, fence {_short(fence)}"
        if self._fault is not None:
            accident, since = self._fault
            self._fault = None
            self._takeovers[accident] = moment - since
            what += f": took over {moment - since:.2f} s after the {accident}"
            self._timeline.tell(worker, what, CYAN, moment)
        else:
            self._timeline.tell(worker, what, moment=moment)
        time.sleep(WORK)
        grant = len(self._fences)
        if grant == KILLED_GRANT:
            self._processes[worker].kill()
            self._timeline.tell(worker, "KILLED (SIGKILL) in the middle of its work: it can release nothing", RED)
            self._await_takeover("kill")
        elif grant == PAUSED_GRANT:
            self._processes[worker].send_signal(signal.SIGSTOP)
            self._paused = worker
            self._timeline.tell(worker, "PAUSED (SIGSTOP) in the middle of its work: it can renew nothing", YELLOW)
            self._await_takeover("pause")
        else:
            self._proceed(worker)

    def _await_takeover(self, accident: str) -> None:
        self._fault = accident, time.monotonic()
        self._timeline.tell("", f"the others wait until its lease ends, which takes {TTL:g} s at most", DIM)

    def _resume(self) -> None:
        """Wake the paused worker, which has no idea how much time went by, with its write yet to come."""
        worker, self._paused, self._missed = self._paused, "", 0
        self._timeline.tell(worker, "RESUMED (SIGCONT): goes on where it was, as if it held the lock", YELLOW)
        self._proceed(worker)
        self._processes[worker].send_signal(signal.SIGCONT)

    def _proceed(self, worker: str) -> None:
        stdin = self._processes[worker].stdin
        assert stdin is not None
        with suppress(BrokenPipeError):  # it crashed, which the checks will show
            stdin.write(b"\n")
            stdin.flush()

    def _events(self) -> Iterator[dict[str, Any]]:
        """Yield what the workers tell until the last of them has ended."""
        deadline = time.monotonic() + DEADLINE
        pending = b""
        while True:
            if not select.select([self._reader], [], [], max(deadline - time.monotonic(), 0.0))[0]:
                self._timeline.tell("", f"still not over after {DEADLINE:g} s: giving up", RED)
                return
            received = os.read(self._reader, 65536)
            if not received:
                return
            *lines, pending = (pending + received).split(b"\n")
            yield from map(json.loads, lines)

    def _checks(self) -> list[Check]:
        counter = self._ledger.read()
        expected = INCREMENTS * (len(self._processes) - 1)
        growing = all(before < after for before, after in pairwise(self._fences))
        checks = [
            Check(
                counter == self._writes == expected,
                f"the counter is {counter}: all {expected} increments of those who lived, none lost, none twice",
            ),
            Check(growing, f"each of {len(self._fences)} holders had a larger fence than the one before"),
        ]
        for accident in ("kill", "pause"):
            seconds = self._takeovers.get(accident)
            claim = f"after the {accident} the next one held within the lease's {TTL:g} s"
            checks.append(
                Check(
                    seconds is not None and seconds <= TTL + LATENESS, f"{claim}: {seconds:.2f} s" if seconds else claim
                )
            )
        checks.append(Check(self._refused == 1, "the paused worker's late write was refused by its fence"))
        return checks


def _short(fence: int) -> str:
    """Leave out the digits that the fences of one minute share."""
    digits = str(fence)
    return digits if len(digits) <= SHOWN_DIGITS else f"…{digits[-SHOWN_DIGITS:]}"
