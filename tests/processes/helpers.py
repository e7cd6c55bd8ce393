"""Real processes, spoken to line by line, and conditions waited for with a deadline."""

from __future__ import annotations

import json
import os
import queue
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from lockstead import DistributedLock
from lockstead.core.runtime import drive
from lockstead.runtimes.threads import ThreadRuntime
from lockstead.stores.sqlite.store import SqliteStore

WORKERS = Path(__file__).parent / "workers"
PATIENCE = 15.0
"""How long a condition that must come true may take on a loaded machine before the test gives up."""


def boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def url_of(path: Path) -> str:
    return f"sqlite:///{path}"


def eventually(condition: Callable[[], Any], what: str, within: float = PATIENCE) -> Any:
    """Return the condition's first true value, looking again until the deadline."""
    deadline = time.monotonic() + within
    while True:
        if value := condition():
            return value
        if time.monotonic() >= deadline:
            msg = f"not within {within:g} s: {what}"
            raise AssertionError(msg)
        time.sleep(0.002)


class Worker:
    """A worker script in a process of its own that answers in lines of JSON."""

    def __init__(self, script: str, *args: object, env: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(WORKERS / script), *map(str, args)],
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


@contextmanager
def transaction_of_a_stranger(path: Path) -> Iterator[sqlite3.Connection]:
    """Keep the database's write lock, as another program might."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=PATIENCE, check_same_thread=False)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
        finally:
            connection.execute("ROLLBACK")


@contextmanager
def client_of(path: Path, **options: Any) -> Iterator[DistributedLock]:
    """Give a client of a store that is not made from a URL, with options of the store's own."""
    store = SqliteStore(ThreadRuntime(), path, **options)
    try:
        with DistributedLock(store) as client:
            yield client
    finally:
        drive(store.close())


def is_free(path: Path, timeout: float = 0.0) -> bool:
    """Tell whether nobody is in the middle of a transaction."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=timeout)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        connection.execute("ROLLBACK")
        return True


def stop_outside_a_transaction(worker: Worker, path: Path) -> float:
    """SIGSTOP a worker, but not while it locks the file, which would stop everybody: that is not promised."""
    while True:
        stopped = worker.signal(signal.SIGSTOP)
        if is_free(path, timeout=0.2):
            return stopped
        worker.signal(signal.SIGCONT)


def rows(path: Path, query: str = "SELECT name, owner FROM place ORDER BY name, ticket") -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path, timeout=PATIENCE)) as connection:
        return connection.execute(query).fetchall()
