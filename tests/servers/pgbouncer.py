"""A PgBouncer of the test's own, where the system has one: no wheel brings it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Self

import psycopg

from tests.harness.conditions import eventually
from tests.servers.dialects import Postgres
from tests.servers.pooler import PoolMode
from tests.servers.ports import HOST, Port
from tests.servers.postgres import PostgresServer, private_directory, query, unprivileged
from tests.servers.process import ServerError, ServerProcess
from tests.servers.tls import Authority

VARIABLE = "LOCKSTEAD_PGBOUNCER"


def pgbouncer_program() -> Path | None:
    """Find the program: named by an environment variable, on the PATH, or where systems keep it for root."""
    if named := os.environ.get(VARIABLE):
        if not os.access(named, os.X_OK):
            raise ServerError(f"{VARIABLE}={named} cannot be executed")
        return Path(named)
    found = shutil.which("pgbouncer", path=os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin")))
    return Path(found) if found else None


class PgBouncer:
    """A PgBouncer on a free port of the loopback in front of a server; settings are those of its `[pgbouncer]`.

    Raises ServerError, with its log, if it does not start.
    """

    dialect = Postgres

    def __init__(
        self, server: PostgresServer, *, pool_mode: PoolMode = "transaction", pool_size: int = 2, **settings: str
    ) -> None:
        if (program := pgbouncer_program()) is None:
            raise ServerError(f"no pgbouncer: install the system's, or name one by {VARIABLE}")
        self.server = server
        self.settings = {"pool_mode": pool_mode, "default_pool_size": str(pool_size)} | settings
        self._port = Port()
        self._directory = private_directory()
        self._log = self._directory.path / "log"
        configuration = self._directory.path / "pgbouncer.ini"
        configuration.write_text(self._configuration())
        configuration.chmod(0o644)
        self._process = ServerProcess([program, configuration], self._log, user=unprivileged())
        try:
            eventually(self._answers, "pgbouncer answers")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def port(self) -> int:
        return self._port.number

    @property
    def url(self) -> str:
        return self.url_at(self.port)

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def url_at(self, port: int, tls: Authority | None = None) -> str:
        return self.server.url_at(port, tls)

    def close(self) -> None:
        self._process.kill()
        self._port.close()
        self._directory.close()

    def _answers(self) -> bool:
        if not self._process.is_running:
            raise ServerError(f"pgbouncer did not start:\n{self.log}")
        try:
            return query(self.url, "SELECT 1") == [(1,)]
        except psycopg.OperationalError:
            return False

    def _configuration(self) -> str:
        settings = {
            "listen_addr": HOST,
            "listen_port": str(self.port),
            "unix_socket_dir": "",
            "auth_type": "any",
            "max_client_conn": "500",
        } | self.settings
        lines = [f"{name} = {value}" for name, value in settings.items()]
        target = f"* = host={HOST} port={self.server.port} user=postgres"
        return "\n".join(["[databases]", target, "[pgbouncer]", *lines, ""])
