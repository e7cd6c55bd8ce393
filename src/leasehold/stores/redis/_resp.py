"""Packing of commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import hiredis

Arg = str | bytes | int

pack = cast("Callable[[tuple[Arg, ...]], bytes]", cast("Any", hiredis.pack_command))
