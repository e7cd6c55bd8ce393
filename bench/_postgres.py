"""What the PostgreSQL benchmarks share: a server with the lease table, and a minimal client."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psycopg
from psycopg import pq

from bench import _measure
from lockstead.stores.postgres.table.schema import script
from tests.servers.binaries import POSTGRES_FLAVOURS, PostgresFlavour
from tests.servers.postgres import PostgresServer

TTL = 30


def options(description: str | None) -> argparse.ArgumentParser:
    parser = _measure.options(description)
    flavours = ", ".join(POSTGRES_FLAVOURS)
    parser.add_argument("--flavour", type=POSTGRES_FLAVOURS.__getitem__, default="postgres18", help=flavours)
    return parser


@contextmanager
def served(flavour: PostgresFlavour, **settings: str) -> Iterator[str]:
    """Start a server with its defaults, fsync included, except `settings`; yield its URL, with the lease table."""
    with PostgresServer(flavour, **settings) as server:
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute(script("lockstead").encode())
        yield server.url


def sqlalchemy_url(url: str) -> str:
    return url.replace("postgresql://", "postgresql+psycopg://", 1)


class Wire:
    """libpq with prepared statements, and nothing else."""

    def __init__(self, url: str) -> None:
        self._connection = pq.PGconn.connect(url.encode())

    def prepare(self, name: bytes, text: str) -> None:
        self._check(self._connection.prepare(name, text.encode()))

    def call(self, name: bytes, params: Sequence[bytes] = ()) -> bytes | None:
        return self._check(self._connection.exec_prepared(name, params)).get_value(0, 0)

    def _check(self, result: pq.abc.PGresult) -> pq.abc.PGresult:
        if result.status == pq.ExecStatus.FATAL_ERROR:
            raise RuntimeError(result.error_message)
        return result

    def close(self) -> None:
        self._connection.finish()
