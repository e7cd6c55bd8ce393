"""A port at which something else answers than the server that was expected."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Self


class WrongServer:
    """Answers whatever arrives with what a function makes of it."""

    def __init__(self, answer: Callable[[bytes], bytes]) -> None:
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        with connection:
            try:
                while request := connection.recv(65536):
                    connection.sendall(self._answer(request))
            except OSError:
                pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
