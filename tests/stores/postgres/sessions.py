"""What a server knows of a client's sessions and of the lease table, by the URL's application_name."""

from __future__ import annotations

from typing import Any

from tests.harness.clients import Harness
from tests.servers.postgres import PostgresServer


def named(url: str, application: str) -> str:
    """Name all sessions of the clients that use the URL."""
    return f"{url}?application_name={application}"


def listening(server: PostgresServer, application: str) -> list[int]:
    """List the sessions that listen; they do once the server has answered."""
    query = "SELECT pid FROM pg_stat_activity WHERE application_name = %s AND query LIKE 'LISTEN %%' AND state = 'idle'"
    return [pid for (pid,) in server.sql(query, [application])]


def asking(server: PostgresServer, application: str) -> list[int]:
    """List the sessions on which requests are sent."""
    query = "SELECT pid FROM pg_stat_activity WHERE application_name = %s AND query NOT LIKE 'LISTEN %%'"
    return [pid for (pid,) in server.sql(query, [application])]


def places(harness: Harness, server: PostgresServer) -> list[tuple[Any, ...]]:
    """List the owners of places, by name and in the order of fences, dead ones too."""
    return server.sql(f"SELECT name, holder FROM {harness.options['schema']}.distributed_locks ORDER BY name, fence")
