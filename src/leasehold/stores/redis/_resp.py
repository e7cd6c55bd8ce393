"""Packing of commands, and what is heard on a channel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import hiredis

Arg = str | bytes
"""No number: hiredis would make a string of it, which a signal interrupts, and does not see that it has none."""

pack = cast("Callable[[tuple[Arg, ...]], bytes]", cast("Any", hiredis.pack_command))
PING = pack(("PING",))


def woken(message: Any) -> str | None:
    """Tell whom a message wakes; None of what else is heard on a channel: answers to a PING, be they refusals."""
    if isinstance(message, list) and message[0] == b"message":
        return str(message[2], "utf-8")
    return None
