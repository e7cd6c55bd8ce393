"""A master that is replaced by its replica when sentinels agree that it is gone."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from typing import Any, Literal, Self

import redis
from redis.exceptions import RedisError
from redis.sentinel import Sentinel

from tests.harness.conditions import eventually
from tests.servers.binaries import VALKEY9, Flavour
from tests.servers.ports import HOST
from tests.servers.redis import RedisServer

SERVICE = "lockstead"
FAILOVER = 30.0
"""How long a failover may take on a loaded machine; they take three or four seconds, or, soon after another, six."""


class SentinelDeployment:
    """A master, replicas and sentinels that all know each other once this returns."""

    service = SERVICE

    def __init__(
        self,
        flavour: Flavour = VALKEY9,
        *,
        replicas: int = 1,
        sentinels: int = 3,
        password: str | None = None,
        **options: Any,
    ) -> None:
        with ExitStack() as stack:
            master = stack.enter_context(RedisServer(flavour, password=password, **options))
            options["replicaof"] = _place(master)
            self.servers = [master]
            for _ in range(replicas):
                self.servers.append(stack.enter_context(RedisServer(flavour, password=password, **options)))
            settings = [
                f"monitor {SERVICE} {_place(master)} {sentinels // 2 + 1}",
                f"down-after-milliseconds {SERVICE} 2000",
                f"failover-timeout {SERVICE} 2000",
            ]
            if password:
                settings.append(f"auth-pass {SERVICE} {password}")
            text = "".join(f"sentinel {line}\n" for line in settings)
            self.sentinels = [stack.enter_context(RedisServer(flavour, sentinel=text)) for _ in range(sentinels)]
            self._await_whole()
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._stack.close()

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Where the sentinels are."""
        return [sentinel.address for sentinel in self.sentinels]

    @property
    def password(self) -> str | None:
        return self.servers[0].password

    @property
    def log(self) -> str:
        """What the sentinels say of each other and of the servers."""
        return "\n".join(f"{sentinel}:\n{sentinel.log}" for sentinel in self.sentinels)

    def master(self) -> RedisServer:
        """Return the server that the sentinels agree to be the master; wait until they do."""
        server: RedisServer = eventually(self._agreed, "the sentinels agree on a master", FAILOVER)
        return server

    def replicas(self) -> list[RedisServer]:
        master = self.master()
        return [server for server in self.servers if server is not master]

    def client(self, **options: Any) -> redis.Redis:
        """Make a client of the master, whichever it is when it connects; close it after use."""
        sentinel = Sentinel(self.addresses, socket_timeout=5.0)
        defaults: dict[str, Any] = {"password": self.password, "decode_responses": True, "socket_timeout": 5.0}
        client: redis.Redis = sentinel.master_for(SERVICE, **(defaults | options))
        return client

    def failover(self, how: Literal["kill", "pause"] = "kill") -> RedisServer:
        """Take the master away, and return the one that is elected instead.

        A paused master takes itself for one when it is resumed: for ten seconds, until a sentinel corrects it.
        """
        old = self.master()
        if how == "kill":
            old.kill()
        else:
            old.pause()

        def elected() -> RedisServer | None:
            new = self._agreed()
            return new if new and new is not old and _role(new) == "master" else None

        server: RedisServer = eventually(elected, "a new master is elected", FAILOVER)
        return server

    def restore(self) -> None:
        """Bring back whatever was taken away, old masters as replicas, and wait until all see it."""
        for sentinel in self.sentinels:
            _bring_back(sentinel)
        master = self.master()
        master.options.pop("replicaof", None)
        _bring_back(master)
        for server in self.replicas():
            server.options["replicaof"] = _place(master)
            if server.is_paused or _role(server) == "master":
                # Sentinels that once saw it answer as a master ask again only after ten seconds.
                server.kill()
            _bring_back(server)
        self._await_whole()

    def _agreed(self) -> RedisServer | None:
        """Return the master if all sentinels that answer name the same."""
        ports = {_master_port(sentinel) for sentinel in self.sentinels if sentinel.is_running}
        return next((server for server in self.servers if ports == {server.port}), None)

    def _await_whole(self) -> None:
        eventually(self._is_whole, "master, replicas and sentinels see each other", FAILOVER)

    def _is_whole(self) -> bool:
        return all(self._is_seen_whole_by(sentinel) for sentinel in self.sentinels)

    def _is_seen_whole_by(self, sentinel: RedisServer) -> bool:
        with sentinel.client() as client:
            master = client.sentinel_master(SERVICE)
            replicas = client.sentinel_slaves(SERVICE)
        known = {int(replica["port"]) for replica in replicas} | {int(master["port"])}
        return (
            known == {server.port for server in self.servers}
            and master["num-other-sentinels"] == len(self.sentinels) - 1
            and master["flags"] == "master"
            and all(_is_healthy(replica) for replica in replicas)
        )


def _is_healthy(replica: dict[str, Any]) -> bool:
    return bool(replica["flags"] == "slave" and replica["master-link-status"] == "ok")


def _place(server: RedisServer) -> str:
    return f"{HOST} {server.port}"


def _bring_back(server: RedisServer) -> None:
    server.resume()
    if not server.is_running:
        server.restart()


def _role(server: RedisServer) -> str | None:
    with suppress(RedisError), server.client(socket_timeout=1.0) as client:
        return str(client.info("replication")["role"])
    return None


def _master_port(sentinel: RedisServer) -> int | None:
    with suppress(RedisError), sentinel.client(socket_timeout=1.0) as client:
        address = client.sentinel_get_master_addr_by_name(SERVICE)
        return int(address[1]) if address else None
    return None
