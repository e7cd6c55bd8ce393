"""A server's process: ended by its number, together with whatever it forked."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.harness.conditions import DEADLINE, eventually
from tests.harness.processes import spawn, state_of
from tests.servers.reaper import children, kill_all, reaper


class ServerError(RuntimeError):
    """A server could not be found or did not start; says what its log says."""


class Directory:
    """A temporary directory that is removed even if its process was killed."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="lockstead-"))
        reaper().send("remove", self.path)

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        reaper().send("removed", self.path)


class ServerProcess:
    """A process in a session of its own, out of reach of the terminal's Ctrl-C, that ends with its starter."""

    def __init__(
        self,
        command: Sequence[str | Path],
        log: Path,
        environment: Mapping[str, str] | None = None,
        user: str | None = None,
    ) -> None:
        with log.open("ab") as output:
            self._process = spawn(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | (environment or {}),
                cwd=log.parent,
                **identity(user),
            )
        self.pid = self._process.pid
        reaper().send("watch", self.pid)

    @property
    def is_running(self) -> bool:
        """Return whether the process is there; a paused one is."""
        return self._process.poll() is None

    @property
    def is_paused(self) -> bool:
        # One that ended meanwhile waits for its parent.
        return self.is_running and {state_of(pid) for pid in (self.pid, *children(self.pid))} <= {"T", "Z", None}

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Ask for an end, orderly if that is what the signal means, and wait for it."""
        self._signal(number)
        self.resume()
        try:
            self._process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            self.kill()
        self._forget()

    def kill(self) -> None:
        """End it without a warning, as a power cut does to its memory (but not to what it gave to the kernel)."""
        if self.is_running:
            forked = kill_all(self.pid)
            self._process.wait(DEADLINE)
            eventually(lambda: {state_of(pid) for pid in forked} <= {"Z", None}, f"all of {self.pid} are gone")
        self._forget()

    def pause(self) -> None:
        """Let it neither run nor close its connections, as a machine that hangs."""
        self._signal(signal.SIGSTOP)
        self._signal_children(signal.SIGSTOP)
        eventually(lambda: self.is_paused, f"process {self.pid} is stopped")

    def resume(self) -> None:
        self._signal_children(signal.SIGCONT)
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        """Send to its group, where those it forked stay unless they leave it."""
        if self.is_running:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def _signal_children(self, number: signal.Signals) -> None:
        for pid in children(self.pid) if self.is_running else []:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _forget(self) -> None:
        reaper().send("forget", self.pid)


def identity(user: str | None) -> dict[str, Any]:
    """Name to `subprocess` the user to run something as."""
    if user is None:
        return {}
    known = pwd.getpwnam(user)
    return {"user": known.pw_uid, "group": known.pw_gid, "extra_groups": []}
