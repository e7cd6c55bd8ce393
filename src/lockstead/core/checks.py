"""Checks of user input; each error says what would be accepted."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import timedelta
from math import inf, isfinite, isnan
from typing import Any

from lockstead.errors import InvalidInputError

Seconds = float | timedelta

MAX_NAME = 512
MAX_METADATA = 4096
NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
"""NUL as JSON writes it, but not the same text after an escaped backslash."""
MIN_TTL = 0.12
"""More than ten times the margin for clock drift and late signals (`core/timing.py`)."""
MAX_TTL = 365 * 24 * 3600.0


def check_name(name: str) -> str:
    """Accept 1 to 512 printable characters."""
    if isinstance(name, str) and name.isprintable() and 0 < len(name) <= MAX_NAME:
        return name
    if not isinstance(name, str):
        problem = f"must be a string, got {type(name).__name__}"
    elif not name:
        problem = "must not be empty"
    elif len(name) > MAX_NAME:
        problem = f"may have at most {MAX_NAME} characters, got {len(name)}: hash the long part"
    else:
        bad = next(character for character in name if not character.isprintable())
        problem = f"may contain printable characters only, got {bad!r}"
    shown = name[:40] if isinstance(name, str) else ""
    msg = f"a name {problem}"
    raise InvalidInputError(msg, name=shown)


def check_seconds(value: Seconds, what: str) -> float:
    """Accept a number of seconds, or a timedelta, that is not negative; infinity is accepted."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float):
        msg = f"{what} must be seconds or a timedelta, got {type(value).__name__}"
        raise InvalidInputError(msg)
    try:
        seconds = float(value)
    except OverflowError:
        seconds = inf
    if isnan(seconds) or seconds < 0:
        msg = f"{what} must not be negative or NaN, got {seconds:g}"
        raise InvalidInputError(msg)
    return seconds


def check_ttl(value: Seconds, what: str = "ttl") -> float:
    """Accept from `MIN_TTL` to a year."""
    ttl = check_seconds(value, what)
    if MIN_TTL <= ttl <= MAX_TTL:
        return ttl
    if ttl > MAX_TTL:
        problem = "must be at most a year"
        if what == "ttl":
            problem += ": a lease is renewed while it is held, so minutes are enough"
    else:
        problem = f"must be at least {MIN_TTL} s, more than ten times the margin for clock drift and late signals"
    msg = f"{what} {problem}; got {ttl:g} s"
    raise InvalidInputError(msg)


def check_count(value: int, what: str, *, least: int = 1, most: int) -> int:
    """Accept a whole number within bounds."""
    if isinstance(value, bool) or not isinstance(value, int):
        msg = f"{what} must be a whole number, got {value!r:.80}"
        raise InvalidInputError(msg)
    if not least <= value <= most:
        msg = f"{what} must be from {least} to {most}, got {value}"
        raise InvalidInputError(msg)
    return value


def check_flag(value: bool, what: str) -> bool:  # noqa: FBT001 (it is the value to check)
    """Accept True and False, and nothing that is merely true or false."""
    if value is True or value is False:
        return value
    msg = f"{what} must be True or False, got {value!r:.80}"
    raise InvalidInputError(msg)


def check_number(value: float, what: str, *, least: float, most: float) -> float:
    """Accept a finite number within bounds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        msg = f"{what} must be a number, got {value!r:.80}"
        raise InvalidInputError(msg)
    if not (isfinite(value) and least <= value <= most):
        msg = f"{what} must be from {least:g} to {most:g}, got {value:g}"
        raise InvalidInputError(msg)
    return value


def encode_metadata(metadata: Mapping[str, Any]) -> str:
    """Encode a JSON object of up to 4096 bytes."""
    if not isinstance(metadata, Mapping):
        msg = f"metadata must be a mapping that JSON can express, got {type(metadata).__name__}"
        raise InvalidInputError(msg)
    try:
        text = json.dumps(dict(metadata), allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        size = len(text.encode())
    except (TypeError, ValueError, RecursionError) as error:
        msg = f"metadata must be a mapping that JSON can express: {error}"
        raise InvalidInputError(msg) from error
    if NUL.search(text):
        msg = "metadata may not contain the character NUL, which not every store can keep"
        raise InvalidInputError(msg)
    if size > MAX_METADATA:
        msg = f"metadata may take {MAX_METADATA} bytes as JSON, this takes {size}: store a reference instead"
        raise InvalidInputError(msg)
    return text
