"""Run the migrations of the lease table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import psycopg

from lockstead.errors import InvalidInputError
from lockstead.stores.postgres.address import Address
from lockstead.stores.postgres.errors import not_connected
from lockstead.stores.postgres.table.schema import migration_sql, quoted
from lockstead.stores.statements import load

LOCK_TIMEOUT = 10.0
"""Seconds that a migration waits for transactions that use the tables. All other clients queue behind it meanwhile."""

_TOO_NEW = "LS002"
_SQL = load("lockstead.stores.postgres.table")


class Migrated(NamedTuple):
    """The version that a migration found, None if there was no table, and the database it ran in."""

    was: int | None
    database: str
    server: str


def migrate(address: Address, schema: str, roles: Sequence[str] = (), timeout: float = 10.0) -> Migrated:
    """Create the lease table, or bring it up to date, in one transaction.

    Raises InvalidInputError where the server refuses, with what it needs, and StoreError if it cannot be reached.
    """
    sql = migration_sql(schema, grant=roles)
    try:
        with psycopg.connect(address.conninfo, connect_timeout=max(int(timeout), 2)) as connection:
            connection.execute(f"SET LOCAL lock_timeout = {int(LOCK_TIMEOUT * 1000)}".encode())
            connection.execute(_SQL["lock_migration"].encode())
            was = _version(connection, schema)
            connection.execute(sql.encode())
            return Migrated(was, connection.info.dbname, f"{connection.info.host}:{connection.info.port}")
    except psycopg.errors.LockNotAvailable as error:
        msg = f"{address}: a transaction that uses the tables stays open: end it, and try again"
        raise InvalidInputError(msg) from error
    except psycopg.OperationalError as error:
        raise not_connected(address, str(error)) from error
    except psycopg.Error as error:
        raise InvalidInputError(f"{address}: {_explained(error, schema)}") from error


def _version(connection: psycopg.Connection, schema: str) -> int | None:
    row = connection.execute(_SQL["find_table"].encode(), {"table": f"{quoted(schema)}.lock_state"}).fetchone()
    if row is None or row[0] is None:
        return None
    row = connection.execute(_SQL["version"].format(schema=quoted(schema)).encode()).fetchone()
    return None if row is None else int(row[0])


def _explained(error: psycopg.Error, schema: str) -> str:
    text = error.diag.message_primary or str(error)
    if error.sqlstate == _TOO_NEW:
        return f"{text}: upgrade lockstead"
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return (
            f"{text}. A migration needs the right to create schemas (GRANT CREATE ON DATABASE … TO …), or a schema of "
            f"its own (CREATE SCHEMA {quoted(schema)} AUTHORIZATION …); later ones must run as the same role. "
            "Or have an administrator run what `lockstead migrate --print --grant ROLE` prints"
        )
    if isinstance(error, psycopg.errors.UndefinedObject):
        return f"{text}: create it, or name another with --grant"
    return text
