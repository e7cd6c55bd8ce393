"""The SQL that makes the lease table, for a schema of one's choice."""

from __future__ import annotations

from importlib.resources import files

VERSION = 1
"""The last migration that this release has, and needs."""


def quoted(identifier: str) -> str:
    """Write an identifier as SQL wants it, whatever is in it."""
    return '"' + identifier.replace('"', '""') + '"'


def script(schema: str) -> str:
    """Give all migrations, in order. They may be run again, on a schema of any earlier version."""
    folder = files("leasehold.stores.postgres").joinpath("migrations")
    texts = [file.read_text("utf-8") for file in sorted(folder.iterdir(), key=lambda file: file.name)]
    return "\n".join(texts).replace("{schema}", quoted(schema))
