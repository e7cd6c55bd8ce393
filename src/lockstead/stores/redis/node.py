"""The store's port to one server: exchange commands with it."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Protocol

from lockstead.stores.redis.address import Address


class Node(Protocol):
    """One server. Each request is sent once: only the engine decides to retry."""

    address: Address
    is_checked: bool
    """Whether the server's configuration was checked."""

    async def ask(self, payload: bytes, count: int, timeout: float) -> list[Any]:
        """Send packed commands and return their `count` replies; an error reply is one of them.

        Raises StoreError, transient if the request may have been applied.
        """
        ...

    def ask_one(self, payload: bytes, timeout: float, now: float) -> Awaitable[Any]:
        """Send one packed command and return its reply, which may be an error reply: the path of every acquisition.

        `now`: when the timeout began, read from the runtime's clock a moment ago, so that it is not read again.

        Raises StoreError, and one of `FAILURES` as it is, after which the request may have been applied.
        """
        ...

    def refresh(self) -> None:
        """Use new connections from now on: the host name may resolve to another server by now."""
        ...

    def close(self) -> None: ...
