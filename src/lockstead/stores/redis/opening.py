"""Open the Redis store of a URL or of client objects: one deployment, or a quorum of several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from lockstead.core.runtime import Runtime
from lockstead.core.store import Store
from lockstead.errors import InvalidInputError
from lockstead.runtimes.threads import ThreadRuntime
from lockstead.stores.quorum.store import Quorum
from lockstead.stores.redis.address import Deployment, Options, from_client, parse_url
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
    if is_quorum:
        _refuse_duplicates(deployments)
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


def _refuse_duplicates(deployments: Sequence[Deployment]) -> None:
    """Refuse a server that would vote twice: the loss of it alone would be that of two nodes."""
    servers = Counter(str(_without_database(each)) for each in deployments)
    for server, times in servers.items():
        if times > 1:
            msg = (
                f"{server} is named {times} times: the nodes of redlock:// have to be different servers, which fail "
                "independently of each other"
            )
            raise InvalidInputError(msg)


def _without_database(deployment: Deployment) -> Deployment:
    return deployment._replace(addresses=[replace(each, database=0) for each in deployment.addresses])
