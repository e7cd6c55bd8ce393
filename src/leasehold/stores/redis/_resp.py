"""Packing of commands."""

from __future__ import annotations

from typing import Any, cast

import hiredis

Arg = str | bytes | int


def pack(*command: Arg) -> bytes:
    return cast("bytes", hiredis.pack_command(cast("Any", command)))
