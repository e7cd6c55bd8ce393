"""Identifiers in SQL."""

from __future__ import annotations

from leasehold.errors import InvalidInputError

MAX_IDENTIFIER = 63


def checked_schema(schema: str) -> str:
    """Accept what the server takes as an identifier, but for the quotes of the functions' bodies."""
    if not isinstance(schema, str) or not 0 < len(schema.encode()) <= MAX_IDENTIFIER or "\0" in schema:
        msg = f"schema must be an identifier of 1 to {MAX_IDENTIFIER} bytes, got {schema!r}"
        raise InvalidInputError(msg)
    if set(schema) & set("${}'") or schema.startswith("pg_"):
        msg = f"schema may not hold $, ', {{ or }}, nor begin with pg_, got {schema!r}"
        raise InvalidInputError(msg)
    return schema


def quoted(identifier: str) -> str:
    """Write an identifier as SQL wants it, whatever is in it."""
    return '"' + identifier.replace('"', '""') + '"'
