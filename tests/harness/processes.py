"""Real processes: programs of the tests, started, spoken to line by line, stopped and killed."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.harness.conditions import DEADLINE
from tests.harness.tree import ROOT, TESTS


def boottime() -> float:
    """Read the clock that locks in SQLite use, which is the same for all processes."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def state_of(pid: int) -> str | None:
    """Return the letter of a process's state, or None if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return None


def is_alive(pid: int) -> bool:
    """Return whether a process can still do something: a zombie cannot."""
    return state_of(pid) not in {"Z", "X", None}


def spawn(command: Sequence[str | Path], **options: Any) -> subprocess.Popen[str]:
    """Start a command with pipes, in a session of its own, out of reach of the terminal's Ctrl-C."""
    pipe = subprocess.PIPE
    defaults = {"stdin": pipe, "stdout": pipe, "stderr": pipe, "text": True, "start_new_session": True}
    process: subprocess.Popen[str] = subprocess.Popen(command, **(defaults | options))
    return process


def close_pipes(process: subprocess.Popen[str]) -> None:
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with suppress(BrokenPipeError):
                pipe.close()


class Program:
    """A program of the tests, by its path in `tests`, in a process of its own; it can import `tests`."""

    def __init__(self, path: str, *args: object, env: Mapping[str, str] | None = None, **options: Any) -> None:
        imports = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        self.process = spawn(
            [sys.executable, str(TESTS / path), *map(str, args)],
            env={**os.environ, "PYTHONPATH": imports, **(env or {})},
            **options,
        )
        self.pid = self.process.pid

    @property
    def status(self) -> int | None:
        """The exit status, once it has ended."""
        return self.process.poll()

    def signal(self, number: signal.Signals) -> float:
        """Send a signal and say when, on the clock the locks use."""
        now = boottime()
        self.process.send_signal(number)
        return now

    def kill(self) -> float:
        return self.signal(signal.SIGKILL)

    def read_line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def communicate(self, text: str = "", within: float = DEADLINE) -> tuple[str, str]:
        """Send it this, wait for its end, and return what it wrote to its output and to its errors."""
        return self.process.communicate(text, timeout=within)

    def wait(self, within: float = DEADLINE) -> int:
        """Wait for the end; the exit status."""
        return self.process.wait(within)

    def dispose(self) -> None:
        """End the program and whatever it forked."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait()
        close_pipes(self.process)


class Worker(Program):
    """A program that takes requests and replies in lines of JSON."""

    def __init__(self, path: str, *args: object, env: Mapping[str, str] | None = None) -> None:
        super().__init__(path, *args, env=env)
        self.errors = ""
        self._lines: queue.Queue[str] = queue.Queue()
        self._readers = [
            threading.Thread(target=self._read_lines, daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def _read_lines(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self.errors = self.process.stderr.read()

    def send(self, do: str, *args: Any, **options: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([do, args, options]) + "\n")
        self.process.stdin.flush()

    def answer(self, within: float = DEADLINE) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=within)
        except queue.Empty:
            msg = f"worker {self.pid} did not answer within {within:g} s"
            raise AssertionError(msg) from None
        if not line:
            self.wait()
            msg = f"worker {self.pid} ended ({self.process.returncode}) instead of answering: {self.errors}"
            raise AssertionError(msg)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def has_answered(self) -> bool:
        return not self._lines.empty()

    def ask(self, do: str, *args: Any, **options: Any) -> dict[str, Any]:
        self.send(do, *args, **options)
        return self.answer()

    def wait(self, within: float = DEADLINE) -> int:
        status = super().wait(within)
        for reader in self._readers:
            reader.join(within)
        return status


def run(path: str, *args: object, within: float = DEADLINE, env: Mapping[str, str] | None = None) -> Worker:
    """Run a program to its end; one that takes too long is aborted, and says where it hung."""
    worker = Worker(path, *args, env=env)
    try:
        worker.process.wait(within)
    except subprocess.TimeoutExpired:
        os.killpg(worker.pid, signal.SIGABRT)
    finally:
        worker.process.wait()
        worker.dispose()
    return worker
