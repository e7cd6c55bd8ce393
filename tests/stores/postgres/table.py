"""A lease table in a schema of the test's own, with a clock of its own if it wants one."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, Self

import psycopg

from lockstead import DistributedLock
from lockstead.runtimes.threads import ThreadRuntime
from lockstead.stores import open_store
from lockstead.stores.postgres.table.schema import script
from lockstead.stores.postgres.table.store import TableStore
from tests.servers.binaries import POSTGRES18
from tests.servers.postgres import PostgresServer

EPOCH = 1_900_000_000
"""When a clock of the test's own begins."""


class Table:
    """The table, and its clients. Statements are written with {s} for the schema."""

    def __init__(
        self, server: PostgresServer, schema: str, *, clock: bool = False, changes: Mapping[str, str] | None = None
    ) -> None:
        self.url = server.url
        self.schema = schema
        self._stack = ExitStack()
        self._has_clock = clock
        self.connection = self.connect()
        self.connection.execute(f"CREATE SCHEMA {schema}".encode())
        text = script(schema)
        if clock:
            self.sql(f"CREATE TABLE {{s}}.test_time AS SELECT to_timestamp({EPOCH}) AS moment")
            self.sql(
                "CREATE FUNCTION {s}.test_clock() RETURNS timestamptz LANGUAGE sql VOLATILE AS"
                " 'SELECT moment FROM {s}.test_time'"
            )
            text = text.replace("clock_timestamp()", f"{schema}.test_clock()")
        for old, new in (changes or {}).items():
            assert old in text
            text = text.replace(old, new)
        self.connection.execute(text.encode())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def connect(self, **options: Any) -> psycopg.Connection:
        """Connect as a user of SQL would."""
        return self._stack.enter_context(psycopg.connect(self.url, **({"autocommit": True} | options)))

    def sql(self, statement: str, *parameters: Any, on: psycopg.Connection | None = None) -> Any:
        """Run a statement; return what is in the first column of the first row."""
        cursor = (on or self.connection).execute(statement.format(s=self.schema).encode(), parameters or None)
        row = cursor.fetchone() if cursor.description else None
        return None if row is None else row[0]

    def rows(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        return self.connection.execute(statement.format(s=self.schema).encode(), parameters or None).fetchall()

    def psql(self, statement: str) -> str:
        """Run a statement with psql; return what it prints, or its error."""
        program = POSTGRES18.program.path.with_name("psql")
        done = subprocess.run(
            [program, self.url, "-qAt", "-v", "VERBOSITY=verbose", "-c", statement.format(s=self.schema)],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        return (done.stdout if done.returncode == 0 else done.stderr).strip()

    def step_clock(self, seconds: float) -> None:
        self.sql("UPDATE {s}.test_time SET moment = moment + make_interval(secs => %s)", seconds)

    def client(self, **options: Any) -> DistributedLock:
        return self._stack.enter_context(DistributedLock(self.url, schema=self.schema, **options))

    def store(self) -> TableStore:
        """Open a store for threads; on the clock of the test's own, if there is one."""
        store = open_store(self.url, ThreadRuntime(), schema=self.schema)
        assert isinstance(store, TableStore)
        if self._has_clock:
            for name, statement in vars(store._statements).items():
                text = statement.text.replace(b"pg_catalog.clock_timestamp()", f"{self.schema}.test_clock()".encode())
                setattr(store._statements, name, statement._replace(text=text))
        self._stack.callback(store._server.close)
        self._stack.callback(store._subscriber.close)
        return store
