"""Choose between PostgreSQL's two stores: the lease table and advisory locks."""

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
    """Open the store of a URL, or of an object of psycopg or SQLAlchemy."""
    if isinstance(source, str):
        address, settings = parse_url(source)
    else:
        address, settings = from_object(source), Options()
    settings = settings.with_overrides(options)
    address = replace(address, is_session_pooled=settings.pooler == "session")
    if settings.advisory:
        if ignored := settings.table_only():
            msg = f"{', '.join(ignored)}: an option of the lease table, without effect on advisory locks: remove it"
            raise InvalidInputError(msg)
        return AdvisoryStore(runtime, address)
    subscriber = address
    if settings.listen:
        if not settings.listen.partition("://")[0].lower().startswith("postgres"):
            msg = "listen must be a URL that begins with postgresql://"
            raise InvalidInputError(msg)
        subscriber, listen_settings = parse_url(settings.listen)
        subscriber = replace(subscriber, is_session_pooled=listen_settings.pooler == "session")
    return TableStore(runtime, address, schema=settings.schema, push=settings.push, subscriber=subscriber)
