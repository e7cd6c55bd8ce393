"""A Redis or Valkey server of the test's own."""

from __future__ import annotations

import itertools
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

import redis
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as Unreachable
from redis.exceptions import TimeoutError as Unresponsive
from redis.retry import Retry

from tests.harness.conditions import DEADLINE, eventually
from tests.servers.binaries import VALKEY9, Flavour
from tests.servers.clock import SteppedClock
from tests.servers.dialects import Resp
from tests.servers.disk import SlowDisk
from tests.servers.ports import HOST, Port
from tests.servers.preload import environment_of
from tests.servers.process import Directory, ServerError, ServerProcess

if TYPE_CHECKING:  # a benchmark does without what makes certificates
    from tests.servers.tls import Authority


class RedisServer:
    """A server on a free port of the loopback, with a temporary directory, that runs once this returns.

    Options of the server's own are given by their names, with underscores: `maxmemory="2mb"`,
    `replicaof="127.0.0.1 6379"`. They may be changed in `options` and hold from the next restart.
    It keeps nothing over a restart unless `append_only`, with which every write is on disk before it is answered.

    Raises ServerError, with the server's log, if it does not start.
    """

    dialect = Resp

    def __init__(
        self,
        flavour: Flavour = VALKEY9,
        *,
        password: str | None = None,
        append_only: bool = False,
        unix_socket: bool = False,
        tls: Authority | None = None,
        clock: bool = False,
        slow_disk: bool = False,
        sentinel: str | None = None,
        **options: str,
    ) -> None:
        if tls and "tls" not in abilities(flavour):
            raise ValueError(f"{flavour} is built without TLS: put a FaultProxy(server, tls=...) in front of it")
        self.flavour = flavour
        self.password = password
        self.options = options
        self._append_only = append_only
        self._tls = tls
        self._sentinel = sentinel
        self._directory = Directory()
        self._log = self._directory.path / "log"
        self._data = self._directory.path / "data"
        self._data.mkdir()
        self._socket = self._directory.path / "socket" if unix_socket else None
        self._clock = SteppedClock(self._directory.path) if clock else None
        self._disk = SlowDisk(self._directory.path) if slow_disk else None
        self._clients: list[redis.Redis] = []
        self._port = Port()
        try:
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
        return self._process.pid

    @property
    def url(self) -> str:
        return self.url_at(self.port, self._tls)

    @property
    def unix_url(self) -> str:
        """The URL of the UNIX socket, for a server that has one."""
        assert self._socket is not None
        return f"unix://{self._credentials}{self._socket}"

    @property
    def clock(self) -> SteppedClock:
        """The wall clock of a server that was started with `clock=True`."""
        assert self._clock is not None
        return self._clock

    @property
    def disk(self) -> SlowDisk:
        """The disk of a server that was started with `slow_disk=True`."""
        assert self._disk is not None
        return self._disk

    @property
    def is_running(self) -> bool:
        return self._process.is_running

    @property
    def is_paused(self) -> bool:
        return self._process.is_paused

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def url_at(self, port: int, tls: Authority | None = None) -> str:
        """Name the server by the port of something that stands in front of it."""
        query = f"?ssl_ca_certs={quote(str(tls.authorities), safe='')}" if tls else ""
        return f"{'rediss' if tls else 'redis'}://{self._credentials}{HOST}:{port}/0{query}"

    def client(self, **options: Any) -> redis.Redis:
        """Make a plain client that retries nothing and answers in strings; it is closed with the server."""
        client = client_of(self.url, **options)
        self._clients.append(client)
        return client

    def stop(self) -> None:
        """End it in an orderly way."""
        self._process.stop()

    def kill(self) -> None:
        self._process.kill()

    def restart(self, *, empty: bool = False) -> None:
        """Start it again on the same port, stopped first if it runs; with `empty`, as if its disk were new."""
        self.stop()
        if empty:
            shutil.rmtree(self._data)
            self._data.mkdir()
        self._start()

    def pause(self) -> None:
        """Stop it from answering; its connections stay, and the kernel still accepts new ones for it."""
        self._process.pause()

    def resume(self) -> None:
        self._process.resume()

    def step_clock(self, seconds: float) -> None:
        """Set its wall clock forward, or back, and wait until a server that is not paused sees it.

        Valkey 9 looks at the wall clock once a millisecond.
        """
        old = self.clock.offset
        self.clock.step(seconds)
        if self.is_running and not self.is_paused:
            with self.client() as client:
                eventually(lambda: _is_nearer(_ahead(client), self.clock.offset, old), f"{self} sees its clock stepped")

    def close(self) -> None:
        """End it and remove everything it had."""
        for client in self._clients:
            client.close()
        if hasattr(self, "_process"):
            self._process.kill()
        self._port.close()
        self._directory.close()

    @property
    def _credentials(self) -> str:
        return f":{quote(self.password, safe='')}@" if self.password else ""

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
        environment = environment_of(part for part in (self._clock, self._disk) if part)
        self._process = ServerProcess(self._command(), self._log, environment)
        with client_of(self.url, socket_timeout=1.0) as client:
            try:
                eventually(lambda: self._answers(client), f"{self} answers")
            except AssertionError as error:
                raise ServerError(f"{error}\n{self.log}") from None

    def _answers(self, client: redis.Redis) -> bool:
        if not self.is_running:
            raise ServerError(f"{self} did not start:\n{self.log}")
        try:
            # Another program on the same port would answer a PING as well.
            return bool(client.ping()) and client.info("server")["process_id"] == self.pid
        except (Unreachable, Unresponsive):
            return False

    def _command(self) -> list[str | Path]:
        command: list[str | Path] = [self.flavour.program.path]
        if self._sentinel is not None:
            command += [self._sentinel_file(), "--sentinel"]
        for name, value in (self._defaults() | self.options).items():
            command += [f"--{name.replace('_', '-')}", *(value.split() or [""])]
        return command

    def _defaults(self) -> dict[str, str]:
        options = {"bind": HOST, "port": str(self.port), "dir": str(self._data)}
        if self._tls:
            options |= {
                "port": "0",
                "tls-port": str(self.port),
                "tls-cert-file": str(self._tls.certificate),
                "tls-key-file": str(self._tls.key),
                "tls-ca-cert-file": str(self._tls.authorities),
                "tls-auth-clients": "no",
            }
        if self._sentinel is not None:
            return options
        options |= {
            "save": "",
            "appendonly": "yes" if self._append_only else "no",
            "appendfsync": "always",
            # A replica that is waited for should not wait for others to join it.
            "repl-diskless-sync-delay": "0",
        }
        if self.flavour.version >= (7,):
            options["enable-debug-command"] = "local"
        if self.password:
            options |= {"requirepass": self.password, "masterauth": self.password}
        if self._socket:
            options["unixsocket"] = str(self._socket)
        return options

    def _sentinel_file(self) -> Path:
        """Write the one configuration file there must be: a sentinel keeps its state in it."""
        file = self._directory.path / "sentinel.conf"
        if not file.exists():
            file.write_text(self._sentinel or "")
        return file


def abilities(flavour: Flavour) -> frozenset[str]:
    """Say what a program was built with, beyond what its version says."""
    # The name of a function of OpenSSL that a program built with TLS imports; the wheels' are built without.
    return frozenset({"tls"} if b"SSL_CTX_new" in flavour.program.path.read_bytes() else ())


def _ahead(client: redis.Redis) -> float:
    """Measure how many seconds a server's clock is ahead of this machine's."""
    seconds, microseconds = client.time()
    return seconds + microseconds / 1e6 - time.time()


def _is_nearer(value: float, to: float, than: float) -> bool:
    """Return whether a clock is nearer to one time than to the other, or as near within its resolution."""
    return abs(value - to) <= abs(value - than) + 1e-6


def client_of(url: str, **options: Any) -> redis.Redis:
    """Make a client for which every fault is one error, at once."""
    defaults = {"decode_responses": True, "retry": Retry(NoBackoff(), 0), "socket_timeout": DEADLINE}
    return redis.Redis.from_url(url, **(defaults | options))
