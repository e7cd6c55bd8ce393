"""Packing of commands, and what is heard on a channel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import hiredis

Arg = str | bytes | int

pack = cast("Callable[[tuple[Arg, ...]], bytes]", cast("Any", hiredis.pack_command))


def is_wake_up(message: Any) -> bool:
    """Tell a message from what else is heard on a channel: answers to a PING, be they refusals."""
    return isinstance(message, list) and message[0] == b"message"
