"""Where a URL or an object leads to."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from lockstead import DistributedLock, InvalidInputError
from lockstead.stores import Source
from lockstead.stores.postgres.address import from_object, parse_url
from tests.harness.clients import Harness, ask
from tests.servers.postgres import PostgresServer


@pytest.mark.parametrize(
    ("url", "settings"),
    [
        ("postgresql://h/db", {"host": "h", "dbname": "db"}),
        ("postgres://u:p%40ss@h:1/db", {"user": "u", "password": "p@ss", "host": "h", "port": "1", "dbname": "db"}),
        ("postgresql:///db", {"dbname": "db"}),
        ("postgresql://", {}),
        ("postgresql:///db?host=/tmp&schema=s", {"dbname": "db", "host": "/tmp"}),
        ("postgresql://[::1]:7/db?push=no", {"host": "::1", "port": "7", "dbname": "db"}),
        ("postgresql://a:1,b:2/db?target_session_attrs=read-write", {"host": "a,b", "port": "1,2", "dbname": "db"}),
        ("postgresql://h/db?options=-c%20work_mem%3D4MB", {"options": "-c work_mem=4MB"}),
        ("postgresql://h/db?application_name=a+b", {"application_name": "a+b"}),
    ],
)
def test_a_url_is_read_as_libpq_reads_it(url: str, settings: dict[str, str]) -> None:
    address, _ = parse_url(url)
    assert settings.items() <= address.settings.items()
    assert address.settings["client_encoding"] == "UTF8"


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("postgresql://u:s3cr%zzet@h/db", "percent-encode"),
        ("postgresql://u:s3cret@[::1/db", "percent-encode"),
        ("postgresql://u:s3cret@h/db?bogus=1", "bogus"),
        ("postgresql://u:pa?s3cret@h/db", "percent-encode"),
        ("postgresql://u:s3cret@a,b,c:1,2/db?port=1,2", "as many ports"),
        ("postgresql://u:s3cret@h:x/db", "percent-encode|number"),
        ("postgresql://u:s3cret@h/db?connect_timeout=soon", "connect_timeout"),
        ("postgresql://u:s3cret@h/db?push=maybe", "push"),
        ("postgresql://u:s3cret@h/db?pooler=transaction", "pooler"),
        ("postgresql://u:s3cret@h/db?schema=a'b", "schema"),
        ("postgresql://u:s3cret@h/db?schema=" + "s" * 64, "schema"),
        ("postgresql://u:s3cret@h/db?schema=", "schema"),
    ],
)
def test_a_bad_url_is_refused_without_showing_its_password(url: str, reason: str) -> None:
    with pytest.raises(InvalidInputError, match=reason) as refusal:
        DistributedLock(url)
    assert "s3cr" not in str(refusal.value)


@pytest.mark.parametrize(
    ("url", "settings"),
    [
        ("postgresql+psycopg://u:p@h:1/db", {"host": "h", "user": "u", "password": "p", "dbname": "db"}),
        ("postgresql+psycopg://u@/db?host=a:1&host=b:2", {"host": "a,b", "port": "1,2"}),
        ("postgresql+psycopg://u@h/db?sslmode=require", {"host": "h", "sslmode": "require"}),
    ],
)
def test_an_engine_connects_where_its_url_does(url: str, settings: dict[str, str]) -> None:
    for engine in (sa.create_engine(url), create_async_engine(url)):
        assert settings.items() <= from_object(engine).settings.items()
    asyncpg = create_async_engine("postgresql+asyncpg://u:p@h:1/db")
    assert {"host": "h", "port": "1", "password": "p"}.items() <= from_object(asyncpg).settings.items()


@pytest.mark.parametrize(
    ("engine", "reason"),
    [
        (create_async_engine("postgresql+asyncpg://u:p@h/db?ssl=require"), "ssl"),
        (sa.create_engine("sqlite://"), "sqlite"),
    ],
)
def test_an_engine_that_cannot_be_followed_is_refused(engine: Any, reason: str) -> None:
    with pytest.raises(InvalidInputError, match=reason):
        DistributedLock(engine)


def test_the_settings_of_a_connection_or_engine_object_are_used(server: PostgresServer, schema: str) -> None:
    with psycopg.connect(server.url) as connection:
        sources: list[Source] = [connection, sa.create_engine(server.url.replace("postgresql:", "postgresql+psycopg:"))]
        for source in sources:
            with DistributedLock(source, schema=schema) as locks, locks.lock("x") as handle:
                assert handle.fence > 0
    with pytest.raises(InvalidInputError, match="closed"):
        DistributedLock(connection)


@pytest.fixture
def silent() -> Iterator[int]:
    """Listen, and send nothing to clients that connect."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


async def test_a_silent_host_leaves_time_for_the_next_host(
    harness: Harness, server: PostgresServer, silent: int
) -> None:
    _, _, place = server.url.partition("@")
    database = place.partition("/")[2]
    url = f"postgresql://postgres@127.0.0.1:{silent},127.0.0.1:{server.port}/{database}"
    handle = await ask(harness.client(url).acquire("x", timeout=10))
    await ask(handle.release())


async def test_a_host_name_that_cannot_be_resolved_is_skipped(harness: Harness, server: PostgresServer) -> None:
    database = server.url.rpartition("/")[2]
    url = f"postgresql://postgres@nowhere.invalid:{server.port},127.0.0.1:{server.port}/{database}"
    await ask((await ask(harness.client(url).acquire("x", timeout=10))).release())


async def test_a_slow_lookup_of_a_host_name_stops_no_other_client(
    harness: Harness, server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, asked = threading.Event(), threading.Event()
    look_up = socket.getaddrinfo

    def slow(host: Any, *args: Any, **options: Any) -> Any:
        if host == "slow.test":
            asked.set()
            assert answer.wait(10)
            host = "127.0.0.1"
        return look_up(host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    locks = harness.client(server.url.replace("127.0.0.1", "slow.test"))
    acquiring = harness.start(lambda: locks.acquire("x", timeout=10))
    await harness.until(asked.is_set, "the name is looked up")
    other = await ask(harness.client(server.url).acquire("y", timeout=5))
    answer.set()
    await ask((await acquiring.result()).release())
    await ask(other.release())
