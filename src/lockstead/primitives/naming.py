"""What locks are called: by themselves, after their parts, or after the arguments of a decorated call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from datetime import date, datetime
from enum import Enum
from typing import Any
from uuid import UUID

from lockstead.core.checks import check_name
from lockstead.errors import InvalidInputError
from lockstead.primitives.callables import title

Naming = str | Callable[..., str]
Part = str | int | UUID | date | Enum


def lock_name(*parts: Part) -> str:
    """Join parts to a name such as ``resource:id:action``; other parts give another name.

    Colons, percent signs and what is not printable are percent-encoded, so that no part can pass for two. A part counts
    by its text: 7 is "7", an enumeration's member is its value. Raises InvalidInputError for a part that is empty or
    has no text that everybody would agree on, and for a name of more than 512 characters.
    """
    return check_name(":".join(_encode(part) for part in parts))


def _encode(part: Part) -> str:
    value = part.value if isinstance(part, Enum) else part
    if isinstance(value, datetime | bool) or not isinstance(value, str | int | UUID | date):
        msg = (
            f"a part of a lock's name is text, a whole number, a UUID or a date, got {type(value).__name__}: "
            "pass the text that all who share the lock would write"
        )
        raise InvalidInputError(msg)
    text = str(value)
    if not text:
        msg = "a part of a lock's name must not be empty: leave it out, or give what is missing a name, such as '-'"
        raise InvalidInputError(msg)
    return "".join(
        character if character.isprintable() and character not in ":%" else _percent(character) for character in text
    )


def _percent(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))


def literal(naming: Naming) -> str:
    """Give the name as it is written; what is named by a function of each call only has the name of that."""
    return getattr(naming, "__qualname__", "a function") if callable(naming) else naming


def varies(naming: Naming) -> bool:
    """Tell whether a decorated function's calls may each have a name of their own."""
    return callable(naming) or "{" in naming or "}" in naming


def listed(namings: Iterable[Naming]) -> list[Naming]:
    """Take several names; a string is one, not as many as it has letters."""
    if isinstance(namings, str) or not isinstance(namings, Iterable):
        msg = f"names must be a list of several, got {namings!r}"
        raise InvalidInputError(msg)
    return list(namings)


def name_for_calls(naming: Naming, function: Callable[..., Any]) -> Callable[..., str]:
    """Make a function that names a call: from a template such as ``"account:{account_id}"``, or by `naming` itself.

    A template that no arguments could fill is refused here, not at the first call.
    """
    if callable(naming):
        return naming
    try:
        signature = inspect.signature(function)
    except ValueError as error:
        msg = f"{title(function)} does not say what it takes: name its calls by a function"
        raise InvalidInputError(msg, name=naming) from error
    try:
        naming.format(**dict.fromkeys(signature.parameters, _Anything()))
    except LookupError as error:
        msg = f"{naming!r} mentions what {title(function)}{signature} does not take"
        raise InvalidInputError(msg, name=naming) from error
    except ValueError as error:
        msg = f"{naming!r} is no template: {error}; for a brace as such, write two"
        raise InvalidInputError(msg, name=naming) from error

    def name_call(*args: Any, **kwargs: Any) -> str:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return naming.format(**bound.arguments)

    return name_call


class _Anything:
    """Stands for an argument of any kind."""

    def __getattr__(self, name: str) -> _Anything:
        return self

    def __getitem__(self, key: object) -> _Anything:
        return self

    def __format__(self, spec: str) -> str:
        return "1"
