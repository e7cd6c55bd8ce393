"""Who a client is."""

from __future__ import annotations

import os
import secrets
import socket


def new_holder_id() -> str:
    """Name one client in one process: where to look for it, and nobody else ever."""
    host = "".join(character for character in socket.gethostname() if character.isalnum() or character in "-.")
    return f"{host or 'localhost'}:{os.getpid()}:{secrets.token_hex(4)}"
