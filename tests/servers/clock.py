"""A wall clock that can be stepped while its server runs.

A library preloaded into the server adds an offset to what the kernel says. It takes neither root nor a compiler of the
system's, and unlike libfaketime it takes no lock: Debian's Redis 7 starts under it.
"""

from __future__ import annotations

from pathlib import Path

from tests.servers.preload import Preload


class SteppedClock(Preload):
    """The wall clock of the servers started in its environment."""

    source = Path(__file__).with_name("stepped_clock.c")
    variable = "LOCKSTEAD_CLOCK"

    @property
    def offset(self) -> float:
        """How many seconds the clock is ahead of the machine's."""
        return self._number

    @offset.setter
    def offset(self, seconds: float) -> None:
        self._write(seconds)

    def step(self, seconds: float) -> None:
        """Set the clock forward, or back, for the next time the server looks at it."""
        self.offset += seconds

    def stop_at(self, seconds: float) -> None:
        """Let it stand still and read so many seconds since the epoch, until it is stopped at another time."""
        self._write(self.offset, seconds)
