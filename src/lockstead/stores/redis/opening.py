"""Open the Redis store of a URL or of client objects: one deployment, or a quorum of several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lockstead.core.runtime import Runtime
from lockstead.core.store import Store
from lockstead.runtimes.threads import ThreadRuntime
from lockstead.stores.quorum.store import Quorum
from lockstead.stores.redis.address import Options, from_client, parse_url
from lockstead.stores.redis.member import BlockingMember
from lockstead.stores.redis.store import RedisStore


def open_redis(source: object, runtime: Runtime, options: Mapping[str, Any]) -> Store:
    """Open the store of a URL or a client object; for several client objects, or redlock://, a quorum of them."""
    if isinstance(source, str):
        deployments, settings = parse_url(source)
        is_quorum = source.lower().startswith("redlock")
    else:
        is_quorum = isinstance(source, Sequence)
        deployments = (
            [from_client(client) for client in source] if isinstance(source, Sequence) else [from_client(source)]
        )
        settings = Options()
    settings = settings.changed(options)
    kind = BlockingMember if is_quorum and isinstance(runtime, ThreadRuntime) else RedisStore
    stores = [
        kind(
            runtime,
            deployment,
            key_prefix=settings.key_prefix,
            min_replicas=settings.min_replicas,
            confirm_grants=settings.confirm_grants,
            strict=settings.strict,
            is_member=is_quorum,
        )
        for deployment in deployments
    ]
    if not is_quorum:
        return stores[0]
    names = [str(deployment.addresses[0]) for deployment in deployments]
    return Quorum(runtime, stores, names, node_timeout=settings.node_timeout)
