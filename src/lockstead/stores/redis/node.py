"""What the store asks of a driver: to exchange commands with one server."""

from __future__ import annotations

from typing import Any, Protocol

from lockstead.stores.redis.address import Address


class Node(Protocol):
    """One server. Each request is sent once: no driver of ours repeats anything behind the engine's back."""

    address: Address
    is_checked: bool
    """Whether the server's configuration was looked at."""

    async def ask(self, payload: bytes, count: int, timeout: float) -> list[Any]:
        """Send packed commands and return their `count` replies; an error reply is one of them.

        Raises StoreError, transient if the request may have been carried out.
        """
        ...

    def refresh(self) -> None:
        """Use new connections from now on: the name may lead elsewhere by now."""
        ...

    def close(self) -> None: ...
