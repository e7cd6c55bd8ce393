"""The SQL that makes the lease table, for a schema of one's choice."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.resources import files

from lockstead.errors import InvalidInputError

VERSION = 2
"""The last migration that this release has, and needs."""
MAX_IDENTIFIER = 63


def check_schema(schema: str) -> str:
    """Accept what is safe in any part of a script: in quotes of either kind, and between dollars."""
    if isinstance(schema, str) and re.fullmatch(r"[\w-]+", schema) and len(schema.encode()) <= MAX_IDENTIFIER:
        return schema
    msg = f"schema must be 1 to {MAX_IDENTIFIER} bytes of letters, digits, '_' and '-', got {schema!r}"
    raise InvalidInputError(msg)


def quoted(identifier: str) -> str:
    """Write an identifier as SQL wants it, whatever is in it."""
    return '"' + identifier.replace('"', '""') + '"'


def script(schema: str) -> str:
    """Give all migrations, in order, as one statement. It may be run again, on a schema of any earlier version."""
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
    """Give what lets these roles use the lease table, and no more."""
    if not roles:
        return ""
    to, place = ", ".join(map(quoted, roles)), quoted(schema)
    return (
        f"GRANT USAGE ON SCHEMA {place} TO {to};\n"
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {place} TO {to};\n"
        f"GRANT USAGE, SELECT, UPDATE ON ALL SEQUENCES IN SCHEMA {place} TO {to};\n"
        f"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {place} TO {to};\n"
    )


def migration_sql(schema: str = "lockstead", *, grant: Sequence[str] = ()) -> str:
    """Give the SQL that makes the lease table or brings it up to date, for a migration of your own.

    Run it as it stands, without parameters: with Alembic's `op.execute`, or Django's `migrations.RunSQL`.
    """
    return script(schema) + grants(schema, grant)
