"""A disk that can be slow while its server runs: a library preloaded into the server delays what waits for it."""

from __future__ import annotations

from pathlib import Path

from tests.servers.preload import Preload


class SlowDisk(Preload):
    """The disk of the servers started in its environment."""

    source = Path(__file__).with_name("slow_disk.c")
    variable = "LEASEHOLD_DISK"

    @property
    def delay(self) -> float:
        """How many seconds it takes longer until something is surely written."""
        return self._seconds

    @delay.setter
    def delay(self, seconds: float) -> None:
        self._tell(seconds)
