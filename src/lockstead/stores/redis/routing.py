"""Find the server of a key: the only one, the primary that Sentinels name, or the cluster's node for its slot."""

from __future__ import annotations

from binascii import crc_hqx
from collections.abc import Callable
from typing import Any, Protocol

from lockstead.errors import StoreError
from lockstead.stores.redis.address import Address, Deployment
from lockstead.stores.redis.errors import refused
from lockstead.stores.redis.node import Node
from lockstead.stores.redis.resp import pack

SLOTS = 16384
SENTINEL_TIMEOUT = 0.5
"""Seconds that one Sentinel has to answer: then the next one is asked."""
MIN_NODE_TIMEOUT = 0.2
"""Seconds that each node of a cluster has to answer, however many share the caller's timeout."""
_MASTER = "GET-MASTER-ADDR-BY-NAME"

MakeNode = Callable[[Address], Node]


class Route(Protocol):
    may_change: bool
    """Whether another server may take over after a failover."""
    primary: Node | None
    """The server of all keys, if it is known; None in a cluster."""

    def known(self, key: bytes) -> Node | None:
        """Return the server that has this key, if it is known."""
        ...

    async def find(self, key: bytes, timeout: float) -> Node:
        """Look up the server that has this key."""
        ...

    def invalidate(self, node: Node) -> None:
        """Look the server up again next time: this one did not answer, or replied that it is the wrong one."""
        ...

    def follow(self, key: bytes, target: str, node: Node, *, permanent: bool) -> Node:
        """Return the server that a redirection names; `permanent` (MOVED, not ASK) is remembered for its slot."""
        ...

    def close(self) -> None: ...


def route(deployment: Deployment, make: MakeNode) -> Route:
    if deployment.is_cluster:
        return _Cluster(deployment, make)
    if deployment.sentinels:
        return _Sentinel(deployment, make)
    return _Single(deployment, make)


class _Single:
    may_change = False

    def __init__(self, deployment: Deployment, make: MakeNode) -> None:
        (address,) = deployment.addresses
        self._node = make(address)
        self.primary: Node | None = self._node

    def known(self, key: bytes) -> Node:
        return self._node

    async def find(self, key: bytes, timeout: float) -> Node:
        return self._node

    def invalidate(self, node: Node) -> None:
        """Do nothing: there is no other server."""

    def follow(self, key: bytes, target: str, node: Node, *, permanent: bool) -> Node:
        raise _cluster_node_error(node)

    def close(self) -> None:
        self._node.close()


class _Sentinel:
    may_change = True

    def __init__(self, deployment: Deployment, make: MakeNode) -> None:
        (self._template,) = deployment.addresses
        self._service = deployment.service
        self._sentinels = [make(address) for address in deployment.sentinels]
        self._make = make
        self.primary: Node | None = None

    def known(self, key: bytes) -> Node | None:
        return self.primary

    async def find(self, key: bytes, timeout: float) -> Node:
        failures = []
        for sentinel in self._sentinels:
            try:
                (reply,) = await sentinel.ask(
                    pack(("SENTINEL", _MASTER, self._service)), 1, min(timeout, SENTINEL_TIMEOUT)
                )
                if isinstance(reply, Exception):
                    raise refused(sentinel.address, reply)
            except StoreError as error:
                failures.append(str(error))
                continue
            if reply is None:
                failures.append(f"{sentinel.address}: does not know the service {self._service!r}")
                continue
            host, port = reply
            return self._primary_at(self._template.at(host.decode(), int(port)))
        msg = f"no Sentinel names the primary of {self._service!r}: {'; '.join(failures)}"
        raise StoreError(msg, transient=True)

    def _primary_at(self, address: Address) -> Node:
        """Make the primary's node, unless a concurrent caller has."""
        if self.primary is not None and self.primary.address != address:
            self.invalidate(self.primary)
        if self.primary is None:
            self.primary = self._make(address)
        return self.primary

    def invalidate(self, node: Node) -> None:
        """Look the primary up again, at another Sentinel first: the one that named it may be outdated."""
        if node is self.primary:
            self.primary = None
            node.refresh()
            self._sentinels.append(self._sentinels.pop(0))

    def follow(self, key: bytes, target: str, node: Node, *, permanent: bool) -> Node:
        raise _cluster_node_error(node)

    def close(self) -> None:
        for node in (*self._sentinels, *([self.primary] if self.primary else ())):
            node.close()


class _Cluster:
    may_change = True

    def __init__(self, deployment: Deployment, make: MakeNode) -> None:
        self._seeds = list(deployment.addresses)
        self._make = make
        self.primary: Node | None = None
        self._nodes: dict[tuple[str, int], Node] = {}
        self._ranges: list[tuple[int, int, Node]] = []
        self._moved_slots: dict[int, Node] = {}
        self._invalidated = ""

    def known(self, key: bytes) -> Node | None:
        slot = slot_of(key)
        if slot in self._moved_slots:
            return self._moved_slots[slot]
        return next((node for first, last, node in self._ranges if first <= slot <= last), None)

    async def find(self, key: bytes, timeout: float) -> Node:
        """Ask one node after another for the slot table, until one knows which node has this key's slot."""
        failures = []
        known = [node.address for node in list(self._nodes.values())]
        addresses = sorted(dict.fromkeys([*known, *self._seeds]), key=lambda address: str(address) == self._invalidated)
        for address in addresses:
            node = self._node_at(address.host, address.port)
            try:
                (reply,) = await node.ask(
                    pack(("CLUSTER", "SLOTS")), 1, max(timeout / len(addresses), MIN_NODE_TIMEOUT)
                )
                if isinstance(reply, Exception):
                    raise refused(address, reply)
            except StoreError as error:
                failures.append(error)
                continue
            self._ranges = [self._range(address, *entry) for entry in reply]
            self._moved_slots = {}
            if found := self.known(key):
                self._drop_removed_nodes()
                return found
            failures.append(StoreError(f"{address}: does not know the node of slot {slot_of(key)}", transient=True))
        reasons = "; ".join(map(str, failures))
        msg = f"no node of the cluster knows which node has the lock's slot: {reasons}"
        raise StoreError(msg, transient=any(failure.transient for failure in failures))

    def _drop_removed_nodes(self) -> None:
        """Drop nodes that are no longer part of the cluster, by its own slot table."""
        current = {id(node) for _, _, node in self._ranges}
        for endpoint, node in list(self._nodes.items()):
            if id(node) not in current:
                self._nodes.pop(endpoint, None)
                node.refresh()

    def _range(self, source: Address, first: int, last: int, primary: list[Any], *_: Any) -> tuple[int, int, Node]:
        is_known = primary[0] not in (None, b"", b"?")  # a node may not know its own address
        host = primary[0].decode() if is_known else source.host
        return first, last, self._node_at(host, primary[1])

    def _node_at(self, host: str, port: int) -> Node:
        node = self._nodes.get((host, port))
        if node is None:
            node = self._nodes[host, port] = self._make(self._seeds[0].at(host, port))
        return node

    def invalidate(self, node: Node) -> None:
        self._invalidated = str(node.address)
        self._ranges = []
        self._moved_slots = {}

    def follow(self, key: bytes, target: str, node: Node, *, permanent: bool) -> Node:
        host, _, port = target.rpartition(":")
        found = self._node_at(host if host not in ("", "?") else node.address.host, int(port))
        if permanent:
            self._moved_slots[slot_of(key)] = found
        return found

    def close(self) -> None:
        for node in list(self._nodes.values()):
            node.close()


def _cluster_node_error(node: Node) -> StoreError:
    return StoreError(f"{node.address}: this is a node of a cluster; use redis+cluster://")


def slot_of(key: bytes) -> int:
    """Compute the slot of a key. Only the part in braces counts, if there is one."""
    start = key.find(b"{")
    if start >= 0:
        end = key.find(b"}", start + 1)
        if end > start + 1:
            key = key[start + 1 : end]
    return crc_hqx(key, 0) % SLOTS
