"""Real `lockstead` processes on a real SQLite file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from lockstead import DistributedLock, LockInfo
from tests.harness.conditions import eventually
from tests.harness.processes import close_pipes, spawn

COMMAND = (sys.executable, "-m", "lockstead")


class Lockstead:
    """The command, on one test's own store."""

    def __init__(self, directory: Path) -> None:
        self.database = directory / "locks.db"
        self.environment = os.environ | {"PYTHONWARNINGS": "error"}
        self.environment.pop("PYTHONUNBUFFERED", None)
        self._started: list[subprocess.Popen[str]] = []
        self.use(f"sqlite:///{self.database}")

    def use(self, url: str) -> None:
        """Run on another store from now on."""
        self.url = self.environment["LOCKSTEAD_URL"] = url

    def __call__(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run the command to its end."""
        return subprocess.run(
            [*COMMAND, *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
            **({"stdin": subprocess.DEVNULL} | options),
        )

    def json(self, *arguments: str) -> Any:
        """Run the command and read what it prints."""
        finished = self(*arguments, "--json")
        assert finished.returncode == 0, finished.stderr
        return json.loads(finished.stdout)

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """Start the command; whatever is left of it ends with the test."""
        defaults = {"stdin": subprocess.DEVNULL, "start_new_session": False}
        process = spawn([*COMMAND, *arguments], env=self.environment, **(defaults | options))
        self._started.append(process)
        return process

    def hold(self, name: str, *options: str) -> subprocess.Popen[str]:
        """Start a `lockstead run` that holds a name, and wait until it does."""
        process = self.start("run", name, *options, "--", "sleep", "60")
        eventually(lambda: self.info(name), f"{name} is held")
        return process

    def info(self, name: str) -> LockInfo | None:
        with DistributedLock(self.url) as locks:
            return locks.info(name)

    def stop(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(5)
            process.kill()
            process.wait()
            close_pipes(process)
