"""A server's process: ended by its number, together with whatever it forked."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tests.processes.helpers import PATIENCE, eventually
from tests.servers.guard import guard


class ServerError(RuntimeError):
    """A server could not be found or did not start; says what its log says."""


class Directory:
    """A temporary directory that goes even if nobody is left to remove it."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="leasehold-"))
        guard().tell("remove", self.path)

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        guard().tell("removed", self.path)


class ServerProcess:
    """A process in a session of its own, out of reach of the terminal's Ctrl-C, that ends with its starter."""

    def __init__(self, command: Sequence[str | Path], log: Path, environment: Mapping[str, str] | None = None) -> None:
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | (environment or {}),
                start_new_session=True,
            )
        self.pid = self._process.pid
        guard().tell("watch", self.pid)

    @property
    def is_running(self) -> bool:
        """Tell whether the process is there; a paused one is."""
        return self._process.poll() is None

    @property
    def is_paused(self) -> bool:
        return self.is_running and _state(self.pid) == "T"

    def stop(self) -> None:
        """Ask for an orderly end, and wait for it."""
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill()
        self._forget()

    def kill(self) -> None:
        """End it without a warning, as a power cut does to its memory (but not to what it gave to the kernel)."""
        self._signal(signal.SIGKILL)
        self._process.wait(PATIENCE)
        self._forget()

    def pause(self) -> None:
        """Let it neither run nor close its connections, as a machine that hangs."""
        self._signal(signal.SIGSTOP)
        eventually(lambda: self.is_paused, f"process {self.pid} is stopped")

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self.is_running:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def _forget(self) -> None:
        guard().tell("forget", self.pid)


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
