"""Pack commands, and parse what arrives on a subscription."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import hiredis

Arg = str | bytes
"""Not a number: hiredis would convert it to a string, and does not notice if a signal interrupts that."""

pack = cast("Callable[[tuple[Arg, ...]], bytes]", cast("Any", hiredis.pack_command))
PING = pack(("PING",))


def published(reply: Any) -> bytes | None:
    """Return a message published on the channel; None for anything else: replies to PING, errors included."""
    match reply:
        case [b"message", _, bytes(message)]:
            return message
    return None
