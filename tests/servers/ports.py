"""Ports that stay reserved while the server behind them is down."""

from __future__ import annotations

import random
import socket
from contextlib import suppress

HOST = "127.0.0.1"
BUS = 10_000
"""How far above a cluster node's port its bus is: fixed before Redis 7."""

_PORTS = range(10_000, 20_000)
"""Below what the kernel gives to outgoing connections, which could take the port of a server that is restarted; its
bus is below that too."""


class Port:
    """A number no other test process on this machine picks until it is closed or its process ends."""

    def __init__(self) -> None:
        # Not the seeded generator of a test: workers that draw the same numbers would only meet each other.
        draw = random.SystemRandom()
        for _ in range(1000):
            self.number = draw.choice(_PORTS)
            if (reservation := _reserve(self.number)) is None:
                continue
            if _is_free(self.number) and _is_free(self.number + BUS):
                self._reservation = reservation
                return
            reservation.close()
        msg = f"no free port between {_PORTS.start} and {_PORTS.stop}"
        raise OSError(msg)

    def close(self) -> None:
        self._reservation.close()


def _reserve(number: int) -> socket.socket | None:
    """Bind a name in the abstract namespace, which the kernel frees with the process."""
    reservation = socket.socket(socket.AF_UNIX)
    with suppress(OSError):
        reservation.bind(f"\0lockstead-test-port-{number}")
        return reservation
    reservation.close()
    return None


def _is_free(number: int) -> bool:
    with socket.socket() as ping:
        ping.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            ping.bind((HOST, number))
        except OSError:
            return False
        return True
