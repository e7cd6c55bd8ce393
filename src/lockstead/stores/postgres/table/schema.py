"""The SQL that creates the lease table, in a schema of the user's choice."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.resources import files

from lockstead.errors import InvalidInputError
from lockstead.stores.statements import load

VERSION = 3
"""The last migration that this release has, and needs."""
MAX_IDENTIFIER = 63
"""Bytes of an identifier: the server truncates longer ones."""

_SQL = load("lockstead.stores.postgres.table")
_GRANTS = ("grant_schema", "grant_tables", "grant_sequences", "grant_functions")


def check_schema(schema: str) -> str:
    """Accept a name that is safe anywhere in a script: in quotes of either kind, and in dollar quotes."""
    if isinstance(schema, str) and re.fullmatch(r"[\w-]+", schema) and len(schema.encode()) <= MAX_IDENTIFIER:
        return schema
    msg = f"schema must be 1 to {MAX_IDENTIFIER} bytes of letters, digits, '_' and '-', got {schema!r}"
    raise InvalidInputError(msg)


def quoted(identifier: str) -> str:
    """Quote an identifier for SQL, whatever is in it."""
    return '"' + identifier.replace('"', '""') + '"'


def script(schema: str) -> str:
    """Return all migrations, in order, as one statement. It may be run again, on a schema of any earlier version."""
    check_schema(schema)
    folder = files("lockstead.stores.postgres.table")
    steps = sorted(folder.joinpath("migrations").iterdir(), key=lambda file: file.name)
    return (
        folder.joinpath("migrate.sql")
        .read_text("utf-8")
        .replace("{migrations}", "\n".join(step.read_text("utf-8") for step in steps))
        .replace("{version}", str(VERSION))
        .replace("{schema_text}", f"'{schema}'")
        .replace("{schema}", quoted(schema))
    )


def grants(schema: str, roles: Sequence[str]) -> str:
    """Return the statements that let these roles use the lease table, and no more."""
    if not roles:
        return ""
    parts = {"schema": quoted(schema), "roles": ", ".join(map(quoted, roles))}
    return "".join(f"{_SQL[grant].format(**parts)};\n" for grant in _GRANTS)


def migration_sql(schema: str = "lockstead", *, grant: Sequence[str] = ()) -> str:
    """Return the SQL that creates the lease table or brings it up to date, for a migration of your own.

    Run it as it is, without parameters: with Alembic's `op.execute`, or Django's `migrations.RunSQL`.
    """
    return script(schema) + grants(schema, grant)
