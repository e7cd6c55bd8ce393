"""Storage that enforces fences, without faults: registers in the runner's process, accessed over a socket."""

from __future__ import annotations

import json
import secrets
import socket
import socketserver
import threading
from contextlib import suppress
from typing import Any, Self

REQUEST_TIMEOUT = 20.0
"""Seconds that an answer may take: only an overloaded machine needs as much."""


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    request_queue_size = 256


class Registers:
    """Registers by name, each of which accepts no fence below the newest it has seen."""

    def __init__(self) -> None:
        self.address = f"\0lockstead-torture-{secrets.token_hex(8)}"
        self._values: dict[str, tuple[Any, int]] = {}
        self._mutex = threading.Lock()
        registers = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                with suppress(OSError):  # the client was killed
                    if line := self.rfile.readline():
                        self.wfile.write(json.dumps(registers.answer(**json.loads(line))).encode() + b"\n")

        self._server = _Server(self.address, Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, name: str, fence: int | None = None, value: Any = None) -> dict[str, Any]:
        """Read a register; or, with a fence, write to it."""
        with self._mutex:
            kept, newest = self._values.get(name, (None, 0))
            is_accepted = fence is not None and fence >= newest
            if is_accepted:
                self._values[name] = value, fence or 0
        return {"value": kept, "fence": newest, "accepted": is_accepted}


def ask(address: str, **request: Any) -> dict[str, Any]:
    """Send a request to the registers at an address, on its own connection: an interrupt leaves no unread answer."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(REQUEST_TIMEOUT)
        connection.connect(address)
        connection.sendall(json.dumps(request).encode() + b"\n")
        with connection.makefile("rb") as answers:
            answer: dict[str, Any] = json.loads(answers.readline())
    return answer
