"""What a server was asked to do, and by how many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis

from tests.servers.redis import RedisServer


@contextmanager
def commands_of(server: RedisServer) -> Iterator[Counter[str]]:
    """Count the commands a server processes inside the with-block, by name; the counter is filled at its end.

    Commands that a script calls are counted as well, and so are those with which a client opens a connection
    (`hello`, `client|setinfo`); what this asks itself is not. Not for a server that restarts meanwhile.
    """
    counted: Counter[str] = Counter()
    client = server.client()
    try:
        before = _calls(client)
        yield counted
        counted.update(_calls(client) - before)
        counted -= Counter(info=1)
    finally:
        client.close()


def connections_to(server: RedisServer) -> list[dict[str, Any]]:
    """List the clients connected to a server, as CLIENT LIST describes them, without replicas and the one that asks."""
    client = server.client(single_connection_client=True)
    try:
        me = str(client.client_id())
        return [one for one in client.client_list() if one["id"] != me and not set(one["flags"]) & set("MS")]
    finally:
        client.close()


def _calls(client: redis.Redis) -> Counter[str]:
    stats = client.info("commandstats")
    return Counter({name.removeprefix("cmdstat_"): stat["calls"] for name, stat in stats.items()})
