"""Wake-ups between the processes of one machine: a datagram to the waiter's socket."""

from __future__ import annotations

import secrets
import socket
import sys
import weakref
from contextlib import suppress

from lockstead.core.runtime import Runtime
from lockstead.stores.waiters import WaiterEvents

HAS_ABSTRACT_SOCKETS = sys.platform == "linux"
"""Abstract sockets have a name but no file, so that a killed process leaves none behind."""


class NotifySocket:
    """The events of one store object's waiters, and the socket through which other processes set them.

    Not promised: that a notification arrives. A waiter whose socket is full, or that is in another network namespace,
    finds its grant at its next heartbeat.
    """

    def __init__(self, runtime: Runtime, *, listens: bool) -> None:
        self.address = ""
        self._evidence = ""
        self._runtime = runtime
        self._listens = listens
        self._socket: socket.socket | None = None
        self._close: weakref.finalize[[], NotifySocket] | None = None
        self.reset()

    def reset(self) -> None:
        """Start without waiters and socket: at first, and in a forked child, which must not shut down its parent's."""
        if self._close is not None:
            self._close.detach()
        if self._socket is not None:
            self._socket.close()
        self._waiters = WaiterEvents(self._runtime)
        self._starting = self._runtime.mutex()
        self._socket = self._close = None
        self._listening = False

    def bind(self, evidence: str = "") -> None:
        """Bind the socket, before its address is written to the database; the address ends with the evidence."""
        self._evidence = evidence
        if self._socket is None and HAS_ABSTRACT_SOCKETS:
            opened = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            address = f"lockstead/{secrets.token_hex(8)}" if self._listens else ""
            if evidence:
                address += f"/{evidence}"
            try:
                if self._listens:
                    opened.bind(f"\0{address}")
                close = weakref.finalize(self, opened.close)
            except BaseException:
                opened.close()
                raise
            self._socket, self._close, self.address = opened, close, address

    def expect(self, owner: str) -> None:
        self._waiters.open(owner)

    def forget(self, owner: str) -> None:
        self._waiters.close(owner)

    def has_places(self) -> bool:
        """Return whether there may be a place of this store object."""
        return self._waiters.has_places()

    def notify(self, owner: str, address: str) -> None:
        """Wake a place's waiter in this process, or in the process at the address."""
        if not self._waiters.notify(owner) and self._socket is not None and address:
            with suppress(OSError):
                # not sendto: gevent's version waits while the receiver's buffer is full
                self._socket.sendmsg([owner.encode()], (), socket.MSG_DONTWAIT, f"\0{address}")

    async def wait(self, owner: str, timeout: float) -> bool:
        if not self._listening and self._listens:
            self._listen()
        return await self._waiters.wait(owner, timeout)

    def close(self) -> None:
        if self._close is not None:
            self._close()
            self._socket = None

    def _listen(self) -> None:
        """Receive notifications, also those that the socket has buffered since it was bound."""
        waiters = self._waiters  # not self, which must be collectable while the callback is registered
        with self._starting:
            if self._listening or self._socket is None or self._close is None:
                return
            try:
                stop = self._runtime.listen(
                    self._socket, lambda message: waiters.notify(message.decode(errors="replace"))
                )
                self._close.detach()
                self._close = weakref.finalize(self, stop)
                self._listening = True
            except BaseException:  # an interrupt: it is unknown whether the runtime listens, so start with a new socket
                if not self._listening:
                    with suppress(OSError):
                        self._socket.shutdown(socket.SHUT_RDWR)
                    self._socket.close()
                    self._socket = None
                    self.bind(self._evidence)
                raise
