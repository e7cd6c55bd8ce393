"""The identity of a client."""

from __future__ import annotations

import os
import secrets
import socket


def new_holder_id() -> str:
    """Make a unique id of one client in one process: host:pid:random."""
    host = "".join(character for character in socket.gethostname() if character.isalnum() or character in "-.")
    return f"{host or 'localhost'}:{os.getpid()}:{secrets.token_hex(4)}"
