"""Packing of commands, and what is heard on a channel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import hiredis

Arg = str | bytes
"""No number: hiredis would make a string of it, which a signal interrupts, and does not see that it has none."""

pack = cast("Callable[[tuple[Arg, ...]], bytes]", cast("Any", hiredis.pack_command))
PING = pack(("PING",))


def published(reply: Any) -> bytes | None:
    """Give what was published on a channel; None of what else arrives there: answers to a PING, be they refusals."""
    match reply:
        case [b"message", _, bytes(message)]:
            return message
    return None
