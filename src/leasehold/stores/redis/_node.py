"""What the store asks of a driver: to exchange commands with one server, and to hear what it is told there."""

from __future__ import annotations

from typing import Any, Protocol

from leasehold._model import Wake
from leasehold.stores.redis._address import Address


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


class Ear(Protocol):
    """Hears the wake-ups for the places of one store object, on one connection."""

    channel: str

    def expect(self, owner: str) -> None:
        """Keep what arrives for a place from before it is asked for."""
        ...

    def forget(self, owner: str) -> None: ...

    async def wait(self, owner: str, timeout: float) -> Wake:
        """Wait for a grant. Returns a hint whenever one may have been missed."""
        ...

    def close(self) -> None: ...
