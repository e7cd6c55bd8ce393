"""Real processes, spoken to line by line."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing, suppress
from typing import Any

from tests.harness.conditions import PATIENCE
from tests.harness.tree import TESTS


def boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Worker:
    """A worker script, by its path in `tests`, in a process of its own that answers in lines of JSON."""

    def __init__(self, script: str, *args: object, env: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(TESTS / script), *map(str, args)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | (env or {}),
            start_new_session=True,
        )
        self.pid = self.process.pid
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

    def answer(self, within: float = PATIENCE) -> dict[str, Any]:
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

    def signal(self, number: signal.Signals) -> float:
        """Send a signal and say when, on the clock the locks use."""
        now = boottime()
        os.kill(self.pid, number)
        return now

    def kill(self) -> float:
        return self.signal(signal.SIGKILL)

    def wait(self, within: float = PATIENCE) -> int:
        """Wait for the end; the exit status."""
        status = self.process.wait(within)
        for reader in self._readers:
            reader.join(within)
        return status

    def dispose(self) -> None:
        """End the worker and whatever it forked."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe is not None
            with closing(pipe):
                pass


def run(script: str, *args: object, within: float = PATIENCE, env: dict[str, str] | None = None) -> Worker:
    """Run a worker script to its end."""
    worker = Worker(script, *args, env=env)
    try:
        worker.process.wait(within)
    except subprocess.TimeoutExpired:
        os.killpg(worker.pid, signal.SIGABRT)
    finally:
        worker.process.wait()
        worker.dispose()
    return worker
