"""Disks that can be slow or full while a program runs: a library preloaded into it stands before the kernel."""

from __future__ import annotations

from pathlib import Path

from tests.servers.preload import Preload


class SlowDisk(Preload):
    """The disk of the programs started in its environment."""

    source = Path(__file__).with_name("slow_disk.c")
    variable = "LOCKSTEAD_DISK"

    @property
    def delay(self) -> float:
        """How many seconds it takes longer until something is surely written."""
        return self._number

    @delay.setter
    def delay(self, seconds: float) -> None:
        self._write(seconds)


class FullDisk(Preload):
    """The directory it is made in, to the programs started in its environment."""

    source = Path(__file__).with_name("full_disk.c")
    variable = "LOCKSTEAD_FULL"

    @property
    def is_full(self) -> bool:
        """Whether nothing can be written there, neither new nor in place of the old."""
        return bool(self._number)

    @is_full.setter
    def is_full(self, full: bool) -> None:
        self._write(float(full))
