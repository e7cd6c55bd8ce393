"""Which of PostgreSQL's stores a URL or an object means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lockstead.core.runtime import Runtime
from lockstead.core.store import Store
from lockstead.errors import InvalidInputError
from lockstead.stores.postgres.address import Options, from_object, parse_url
from lockstead.stores.postgres.advisory.store import AdvisoryStore
from lockstead.stores.postgres.table.store import TableStore


def open_postgres(source: object, runtime: Runtime, options: Mapping[str, Any]) -> Store:
    """Open the store of a URL, or of psycopg's or SQLAlchemy's object."""
    if isinstance(source, str):
        address, settings = parse_url(source)
    else:
        address, settings = from_object(source), Options()
    settings = settings.changed(options)
    address = replace(address, is_session_pooled=settings.pooler == "session")
    if settings.advisory:
        if useless := settings.table_only():
            msg = f"{', '.join(useless)}: this is for the lease table, and advisory locks have none"
            raise InvalidInputError(msg)
        return AdvisoryStore(runtime, address)
    ear = address
    if settings.listen:
        ear, heard = parse_url(settings.listen)
        ear = replace(ear, is_session_pooled=heard.pooler == "session")
    return TableStore(runtime, address, schema=settings.schema, push=settings.push, ear=ear)
