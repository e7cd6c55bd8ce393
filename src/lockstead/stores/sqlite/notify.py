"""Wake-ups between the processes of one machine: a datagram to the socket of whoever waits."""

from __future__ import annotations

import secrets
import socket
import sys
import weakref
from contextlib import suppress

from lockstead.core.runtime import Runtime
from lockstead.stores.waiters import WaiterEvents

HAS_ABSTRACT_SOCKETS = sys.platform == "linux"
"""Sockets with a name but no file: a process that is killed leaves nothing behind."""


class NotifySocket:
    """The mailbox of one store object, and the socket through which other processes ring it.

    Not promised: that a ring arrives. Somebody whose socket is full, or who lives in another network namespace,
    finds out at its next heartbeat.
    """

    def __init__(self, runtime: Runtime, *, listens: bool) -> None:
        self.address = ""
        self._runtime = runtime
        self._listens = listens
        self._socket: socket.socket | None = None
        self._close: weakref.finalize[[], NotifySocket] | None = None
        self.reset()

    def reset(self) -> None:
        """Wait for nothing: at first, and in a forked child, which must not shut its parent's socket down."""
        if self._close is not None:
            self._close.detach()
        if self._socket is not None:
            self._socket.close()
        self._mailbox = WaiterEvents(self._runtime)
        self._starting = self._runtime.mutex()
        self._socket = self._close = None
        self._listening = False

    def hang_up(self) -> None:
        """Have an address, from before anybody could be told it."""
        if self._socket is None and HAS_ABSTRACT_SOCKETS:
            opened = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            address = f"lockstead/{secrets.token_hex(8)}" if self._listens else ""
            try:
                if address:
                    opened.bind(f"\0{address}")
                close = weakref.finalize(self, opened.close)
            except BaseException:
                opened.close()
                raise
            self._socket, self._close, self.address = opened, close, address

    def expect(self, owner: str) -> None:
        self._mailbox.open(owner)

    def forget(self, owner: str) -> None:
        self._mailbox.close(owner)

    def ring(self, owner: str, address: str) -> None:
        """Wake a place here, or in the process that has the address."""
        if not self._mailbox.ring(owner) and self._socket is not None and address:
            with suppress(OSError):
                # not sendto, of which gevent's waits until there is room
                self._socket.sendmsg([owner.encode()], (), socket.MSG_DONTWAIT, f"\0{address}")

    async def wait(self, owner: str, timeout: float) -> bool:
        if not self._listening and self._listens:
            self._listen()
        return await self._mailbox.wait(owner, timeout)

    def close(self) -> None:
        if self._close is not None:
            self._close()
            self._socket = None

    def _listen(self) -> None:
        """Hear what has rung since the address exists: the socket has kept it."""
        mailbox = self._mailbox  # not self, which must be collectable while somebody listens
        with self._starting:
            if self._listening or self._socket is None or self._close is None:
                return
            try:
                stop = self._runtime.listen(
                    self._socket, lambda message: mailbox.ring(message.decode(errors="replace"))
                )
                self._close.detach()
                self._close = weakref.finalize(self, stop)
                self._listening = True
            except BaseException:  # an interrupt: whether anything listens is not known, so it does elsewhere
                if not self._listening:
                    with suppress(OSError):
                        self._socket.shutdown(socket.SHUT_RDWR)
                    self._socket.close()
                    self._socket = None
                    self.hang_up()
                raise
