"""A PostgreSQL server of the test's own."""

from __future__ import annotations

import itertools
import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self
from urllib.parse import urlsplit

import psycopg

from tests.harness.conditions import eventually
from tests.servers.binaries import POSTGRES18, PostgresFlavour
from tests.servers.clock import SteppedClock
from tests.servers.dialects import Postgres
from tests.servers.disk import SlowDisk
from tests.servers.ports import HOST, Port
from tests.servers.preload import environment_of
from tests.servers.process import Directory, ServerError, ServerProcess, identity
from tests.servers.reaper import reaper, remove_segment

if TYPE_CHECKING:  # a benchmark does without what makes certificates
    from tests.servers.tls import Authority

ROLE = "postgres"
LOOKUP = "lockstead-lookup"
"""The application name of what `PostgresServer.sql` asks, which it does not count as a connection."""

Mode = Literal["fast", "immediate"]
SIGNALS: dict[Mode, signal.Signals] = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}


class PostgresServer:
    """A server on a free port of the loopback, with a data directory of its own, that runs once this returns.

    Settings of the server's own are given by their names: `fsync="off"`, `max_connections="20"`. They may be changed
    in `settings` and hold from the next restart. Every client is trusted as the superuser `postgres`. What is committed
    is kept over a restart, whatever the mode, and over a kill.

    Raises ServerError, with the server's log, if it does not start.
    """

    dialect = Postgres

    def __init__(
        self, flavour: PostgresFlavour = POSTGRES18, *preloaded: type[SteppedClock | SlowDisk], **settings: str
    ) -> None:
        self.flavour = flavour
        self.settings = settings
        self._programs = _programs(flavour)
        self._directory = private_directory()
        self._log = self._directory.path / "log"
        self._data = self._directory.path / "data"
        self._preloaded = [one(self._directory.path) for one in preloaded]
        self._port = Port()
        try:
            # Quicker than initdb by half a second.
            subprocess.run(["cp", "-a", _template(flavour), self._data], check=True)
            self._start_somewhere()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{self.flavour} on port {self.port}>"

    @property
    def port(self) -> int:
        return self._port.number

    @property
    def address(self) -> tuple[str, int]:
        return HOST, self.port

    @property
    def pid(self) -> int:
        """The postmaster's."""
        return self._process.pid

    @property
    def url(self) -> str:
        """The URL of the database `postgres`, which all users of the server share."""
        return self.url_at(self.port)

    @property
    def clock(self) -> SteppedClock:
        """The wall clock of a server that was started with `SteppedClock`."""
        return next(one for one in self._preloaded if isinstance(one, SteppedClock))

    @property
    def disk(self) -> SlowDisk:
        """The disk of a server that was started with `SlowDisk`."""
        return next(one for one in self._preloaded if isinstance(one, SlowDisk))

    @property
    def is_running(self) -> bool:
        return self._process.is_running

    @property
    def is_paused(self) -> bool:
        return self._process.is_paused

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def url_at(self, port: int, tls: Authority | None = None, *, database: str = ROLE) -> str:
        """Name the server by the port of something that stands in front of it."""
        assert tls is None, "PostgreSQL negotiates TLS itself"
        return f"postgresql://{ROLE}@{HOST}:{port}/{database}"

    @contextmanager
    def database(self) -> Iterator[str]:
        """Create an empty database, yield its URL, and drop it at the end together with the sessions that are left.

        Takes 25 to 60 ms without fsync, twice as long with it; a schema takes 0.2 ms.
        """
        name = random_name()
        # Without fsync, copying files is quicker than the default, which logs every page.
        is_copied = self.settings.get("fsync") == "off" and self.flavour.version >= (15,)
        self.sql(f"CREATE DATABASE {name}{' STRATEGY file_copy' if is_copied else ''}")
        try:
            yield self.url_at(self.port, database=name)
        finally:
            if self.is_running and not self.is_paused:
                self.sql(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def sql(self, statement: str, parameters: Sequence[Any] = (), *, database: str = ROLE) -> list[tuple[Any, ...]]:
        """Run a statement of the test's own, committed at once, and return its rows."""
        return query(self.url_at(self.port, database=database), statement, parameters)

    def connections(self, application_name: str | None = None) -> int:
        """Count the clients' connections to all databases, or those of an application; not those of `sql`."""
        ((count,),) = self.sql(
            "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND application_name <> %s"
            " AND (application_name = %s OR %s::text IS NULL)",
            [LOOKUP, application_name, application_name],
        )
        return int(count)

    def terminate(self, session: str | int) -> int:
        """End the connections of an application name, or one by its pid; return how many, when they are gone."""
        column = "pid" if isinstance(session, int) else "application_name"
        rows = self.sql(f"SELECT pg_terminate_backend(pid, 15000) FROM pg_stat_activity WHERE {column} = %s", [session])
        return sum(is_gone for (is_gone,) in rows)

    def stop(self, mode: Mode = "fast") -> None:
        """End it, with a checkpoint (fast) or without (immediate): clients are cut off in both."""
        self._process.stop(SIGNALS[mode])

    def kill(self) -> None:
        """Kill it with all its processes, as a power cut does to its memory (but not to what it gave to the kernel)."""
        self._process.kill()
        self._drop_shared_memory()

    def restart(self, mode: Mode = "fast") -> None:
        """Start it again on the same port, stopped first if it runs; it recovers from its log if it has to."""
        self.stop(mode)
        self._start()

    def pause(self) -> None:
        """Stop all its processes from answering; connections stay, and the kernel still accepts new ones for it."""
        self._process.pause()

    def resume(self) -> None:
        self._process.resume()

    def step_clock(self, seconds: float) -> None:
        """Set its wall clock forward, or back."""
        self.clock.step(seconds)

    def close(self) -> None:
        """End it and remove everything it had."""
        if hasattr(self, "_process"):
            self._process.stop(SIGNALS["immediate"])
            self._drop_shared_memory()
        self._port.close()
        self._directory.close()

    def _start_somewhere(self) -> None:
        """Start on another port if another program took the one that was free a moment ago."""
        for attempt in itertools.count(1):
            try:
                self._start()
            except ServerError as error:
                if attempt == 5 or "already in use" not in str(error):
                    raise
                self._port.close()
                self._port = Port()
                self._log.unlink()
            else:
                return

    def _start(self) -> None:
        self._process = ServerProcess(self._command(), self._log, environment_of(self._preloaded), unprivileged())
        try:
            eventually(self._answers, f"{self} answers")
        except AssertionError as error:
            raise ServerError(f"{error}\n{self.log}") from None
        if (identifier := self._shared_memory()) is not None:
            reaper().send("segment", identifier)

    def _answers(self) -> bool:
        if not self.is_running:
            raise ServerError(f"{self} did not start:\n{self.log}")
        try:
            # Another program on the same port would answer as well.
            return self.sql("SHOW data_directory") == [(str(self._data),)]
        except psycopg.OperationalError:
            return False

    def _command(self) -> list[str | Path]:
        command: list[str | Path] = [self._programs / "postgres", "-D", self._data]
        for name, value in (self._defaults() | self.settings).items():
            command += ["-c", f"{name}={value}"]
        return command

    def _defaults(self) -> dict[str, str]:
        return {
            "listen_addresses": HOST,
            "port": str(self.port),
            "unix_socket_directories": "",
            "max_connections": "200",
            # In files that go with the directory, also after a kill.
            "dynamic_shared_memory_type": "mmap",
        }

    def _shared_memory(self) -> int | None:
        """Return the identifier of the segment with which a postmaster locks its data directory."""
        try:
            lines = (self._data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:  # it ended in an orderly way
            return None
        return int(lines[6].split()[1])

    def _drop_shared_memory(self) -> None:
        if (identifier := self._shared_memory()) is not None:
            remove_segment(identifier)


def query(url: str, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    """Run a statement on a connection of its own, committed at once, and return its rows."""
    with psycopg.connect(url, autocommit=True, application_name=LOOKUP, connect_timeout=15) as connection:
        cursor = connection.execute(statement.encode(), parameters or None)
        return cursor.fetchall() if cursor.description else []


def through(url: str, port: int) -> str:
    """Name the same database by the port of something that stands in front of its server."""
    parts = urlsplit(url)
    return parts._replace(netloc=f"{parts.username}@{parts.hostname}:{port}").geturl()


def random_name() -> str:
    """Draw a name for a database or a schema that needs no quotes."""
    return f"test_{secrets.token_hex(6)}"


def unprivileged() -> str | None:
    """Name the user to run as what refuses to run as root."""
    return "nobody" if os.geteuid() == 0 else None


def private_directory() -> Directory:
    """Make a directory that belongs to the user that `unprivileged` names."""
    directory = Directory()
    if user := unprivileged():
        shutil.chown(directory.path, user)
    return directory


@cache
def _programs(flavour: PostgresFlavour) -> Path:
    """Return the directory with the programs, copied if they are where only root comes."""
    programs = flavour.program.path.resolve().parent
    if (user := unprivileged()) is None or _can_run(programs / "initdb", user):
        return programs
    installation, package = programs.parent, programs.parent.parent
    copy = private_directory().path
    (copy / package.name).mkdir()
    subprocess.run(["cp", "-a", installation, copy / package.name], check=True)
    # A wheel's programs look for their libraries here, from where they are.
    if (libraries := package.with_name(f"{package.name}.libs")).exists():
        subprocess.run(["cp", "-a", libraries, copy], check=True)
    subprocess.run(["chown", "-R", user, copy], check=True)
    return copy / package.name / installation.name / programs.name


def _can_run(program: Path, user: str) -> bool:
    try:
        finished = subprocess.run(
            [program, "--version"], capture_output=True, cwd="/", timeout=15, check=False, **identity(user)
        )
    except PermissionError:
        return False
    return finished.returncode == 0


@cache
def _template(flavour: PostgresFlavour) -> Path:
    """Make what all data directories are copies of; it goes with this process."""
    directory = private_directory().path
    data = directory / "data"
    command: list[str | Path] = [_programs(flavour) / "initdb", "--pgdata", data, "--username", ROLE]
    command += ["--auth", "trust", "--encoding", "UTF8", "--locale", "C", "--no-sync", "--no-instructions"]
    finished = subprocess.run(
        command, capture_output=True, text=True, cwd=directory, timeout=60, check=False, **identity(unprivileged())
    )
    if finished.returncode:
        raise ServerError(f"no data directory for {flavour}: {finished.stdout}{finished.stderr}")
    return data
