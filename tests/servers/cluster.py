"""A cluster, made without a command-line tool, whose slots can be moved while it is in use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Self

import redis
from redis.cluster import ClusterNode, RedisCluster
from redis.crc import key_slot

from tests.harness.conditions import eventually
from tests.servers.binaries import VALKEY9, Flavour
from tests.servers.ports import HOST
from tests.servers.redis import RedisServer

SLOTS = 16384
AGREEMENT = 30.0
"""How long the nodes may take to agree on a loaded machine; they take two or three seconds."""


class ClusterDeployment:
    """Masters that share the slots, each with its replicas, that all know each other once this returns."""

    def __init__(self, flavour: Flavour = VALKEY9, *, masters: int = 3, replicas: int = 0, **options: Any) -> None:
        defaults = {"cluster_enabled": "yes", "cluster_node_timeout": "2000"}
        with ExitStack() as stack:
            self.nodes = [
                stack.enter_context(RedisServer(flavour, **(defaults | options)))
                for _ in range(masters * (1 + replicas))
            ]
            self._ids = {node: str(_ask(node, "CLUSTER", "MYID")) for node in self.nodes}
            self._join(self.nodes[:masters], self.nodes[masters:])
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._stack.close()

    @property
    def addresses(self) -> list[tuple[str, int]]:
        return [node.address for node in self.nodes]

    @property
    def url(self) -> str:
        """The URL of one node, from which a client finds the others."""
        return self.nodes[0].url

    def client(self, **options: Any) -> redis.RedisCluster:
        """Make a client of the cluster; close it after use."""
        nodes = [ClusterNode(host, port) for host, port in self.addresses]
        return RedisCluster(startup_nodes=nodes, **({"decode_responses": True} | options))

    def owner(self, slot: int) -> RedisServer:
        """Return the master that serves a slot, wherever the nodes agree."""
        node: RedisServer = eventually(lambda: self._agreed_owner(slot), f"one owner of slot {slot}", AGREEMENT)
        return node

    def other_master(self, slot: int) -> RedisServer:
        """Return a master that does not serve a slot."""
        owner = self.owner(slot)
        return next(node for node in self.masters() if node is not owner)

    def masters(self) -> list[RedisServer]:
        return [node for node in self.nodes if node.is_running and "master" in _view(node)[self._ids[node]].flags]

    def ports_seen_by(self, node: RedisServer) -> set[int]:
        """Return the ports by which a node would send clients to the others, and to itself."""
        with node.client() as client:
            seen = client.execute_command("CLUSTER NODES")
        return {int(address.partition(":")[2]) for address in seen}

    def move_slot(self, slot: int, to: RedisServer) -> None:
        """Move a slot and its keys to another master."""
        with self.moving_slot(slot, to):
            pass

    @contextmanager
    def moving_slot(self, slot: int, to: RedisServer) -> Iterator[SlotMove]:
        """Begin to move a slot to another master, and complete it at the end of the with-block.

        Inside, its old owner answers with ASK for keys it does not have (any more): move some, or all, with
        `move_keys()`.
        """
        source = self.owner(slot)
        move = SlotMove(slot, source, to)
        _ask(to, "CLUSTER", "SETSLOT", slot, "IMPORTING", self._ids[source])
        _ask(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", self._ids[to])
        try:
            yield move
        finally:
            move.move_keys()
            for node in (to, source, *self.masters()):
                _ask(node, "CLUSTER", "SETSLOT", slot, "NODE", self._ids[to])
            self.owner(slot)

    def failover(self, master: RedisServer) -> RedisServer:
        """Kill a master that has a replica, and return the one that serves its slots instead."""
        slot = next(iter(_view(master)[self._ids[master]].slots))
        master.kill()

        def promoted() -> RedisServer | None:
            owner = self._agreed_owner(slot)
            return owner if owner is not master and self._is_ok() else None

        node: RedisServer = eventually(promoted, "a replica takes over", AGREEMENT)
        return node

    def restore(self) -> None:
        """Bring back what was taken away, and wait until the cluster is whole."""
        for node in self.nodes:
            node.resume()
            if not node.is_running:
                node.restart()
        eventually(self._is_whole, "the nodes see each other", AGREEMENT)

    def _join(self, masters: list[RedisServer], replicas: list[RedisServer]) -> None:
        for number, node in enumerate(self.nodes, 1):
            # Nodes that meet with the same epoch would have to settle first which of them has it.
            _ask(node, "CLUSTER", "SET-CONFIG-EPOCH", number)
        for number, node in enumerate(masters):
            slots = range(SLOTS * number // len(masters), SLOTS * (number + 1) // len(masters))
            _ask(node, "CLUSTER", "ADDSLOTS", *slots)
        for node in self.nodes:
            for other in self.nodes:
                if other is not node:
                    _ask(node, "CLUSTER", "MEET", HOST, other.port)
        eventually(self._is_acquainted, "the nodes know each other", AGREEMENT)
        for number, node in enumerate(replicas):
            _ask(node, "CLUSTER", "REPLICATE", self._ids[masters[number % len(masters)]])
        eventually(self._is_whole, "the nodes agree on the slots", AGREEMENT)

    def _is_acquainted(self) -> bool:
        return all(_view(node).keys() == set(self._ids.values()) for node in self.nodes)

    def _is_whole(self) -> bool:
        return self._is_acquainted() and self._is_ok() and all(_is_linked(node) for node in self.nodes)

    def _is_ok(self) -> bool:
        states = [_ask(node, "CLUSTER INFO") for node in self.nodes if node.is_running]
        return all(state["cluster_state"] == "ok" and state["cluster_slots_ok"] == str(SLOTS) for state in states)

    def _agreed_owner(self, slot: int) -> RedisServer | None:
        views = [_view(node) for node in self.nodes if node.is_running]
        owners = {next((name for name, seen in view.items() if slot in seen.slots), None) for view in views}
        return next((node for node in self.nodes if owners == {self._ids[node]}), None)


class SlotMove:
    """A slot on its way."""

    def __init__(self, slot: int, source: RedisServer, to: RedisServer) -> None:
        self.slot = slot
        self.source = source
        self.to = to

    def move_keys(self, *keys: str) -> None:
        """Move some of the slot's keys, or all that are left."""
        if keys:
            assert {key_slot(key.encode()) for key in keys} == {self.slot}
            self._migrate(keys)
            return
        while left := _ask(self.source, "CLUSTER", "GETKEYSINSLOT", self.slot, 100):
            self._migrate(left)

    def _migrate(self, keys: tuple[str, ...] | list[str]) -> None:
        _ask(self.source, "MIGRATE", HOST, self.to.port, "", 0, 5000, "KEYS", *keys)


class _Seen:
    """What a node says of another."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self.name: str = fields["node_id"]
        self.flags: list[str] = fields["flags"].split(",")
        self.slots = {slot for span in fields["slots"] for slot in range(int(span[0]), int(span[-1]) + 1)}


def _view(node: RedisServer) -> dict[str, _Seen]:
    seen = map(_Seen, _ask(node, "CLUSTER NODES").values())
    return {other.name: other for other in seen if "handshake" not in other.flags}


def _is_linked(node: RedisServer) -> bool:
    with node.client() as client:
        state = client.info("replication")
    return bool(state["role"] == "master" or state["master_link_status"] == "up")


def _ask(node: RedisServer, *command: Any) -> Any:
    with node.client() as client:
        return client.execute_command(*command)
