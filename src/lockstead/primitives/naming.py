"""Names of locks: literal, joined from parts, or made from the arguments of a decorated call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from datetime import date, datetime
from enum import Enum
from string import Formatter
from typing import Any
from uuid import UUID

from lockstead.core.checks import check_name
from lockstead.errors import InvalidInputError
from lockstead.primitives.callables import title

Naming = str | Callable[..., str]
_FORMATTER = Formatter()
Part = str | int | UUID | date | Enum


def lock_name(*parts: Part) -> str:
    """Join parts to a name such as ``resource:id:action``; different parts give different names.

    Colons, percent signs and characters that are not printable are percent-encoded, so that no part can pass for two. A
    part is taken by its text: 7 is "7", an enum member is its value. Raises InvalidInputError for a part that is empty
    or has no unambiguous text (a float, a datetime), and for a name of more than 512 characters.
    """
    return check_name(":".join(_encode(part) for part in parts))


def _encode(part: Part) -> str:
    value = part.value if isinstance(part, Enum) else part
    if isinstance(value, datetime | bool) or not isinstance(value, str | int | UUID | date):
        msg = (
            f"a part of a lock's name is text, a whole number, a UUID or a date, got {type(value).__name__}: "
            "pass a text that is the same in every client"
        )
        raise InvalidInputError(msg)
    text = str(value)
    if not text:
        msg = "a part of a lock's name must not be empty: leave it out, or give what is missing a name, such as '-'"
        raise InvalidInputError(msg)
    return _escaped(text)


def _escaped(text: str) -> str:
    return "".join(
        character if character.isprintable() and character not in ":%" else _percent(character) for character in text
    )


def _percent(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))


def static_name(naming: Naming) -> str:
    """Return the name or template as it is written; for a naming function, the name of that function."""
    return getattr(naming, "__qualname__", "a function") if callable(naming) else naming


def is_per_call(naming: Naming) -> bool:
    """Return whether the calls of a decorated function may have different names."""
    return callable(naming) or "{" in naming or "}" in naming


def check_name_list(namings: Iterable[Naming]) -> list[Naming]:
    """Accept several names, but not a string: that is one name, not one for each of its characters."""
    if isinstance(namings, str) or not isinstance(namings, Iterable):
        msg = f"names must be a list of names, got {namings!r}"
        raise InvalidInputError(msg)
    return list(namings)


def name_for_calls(naming: Naming, function: Callable[..., Any]) -> Callable[..., str]:
    """Make a function that names a call: from a template such as ``"account:{account_id}"``, or `naming` itself.

    An argument is encoded as `lock_name` encodes a part, so that none can pass for two; a call whose argument is None
    or empty is refused. A template with an unknown parameter is refused here, not at the first call.
    """
    if callable(naming):
        return naming
    try:
        signature = inspect.signature(function)
    except ValueError as error:
        msg = f"{title(function)} has no signature: pass a function that names its calls"
        raise InvalidInputError(msg, name=naming) from error
    try:
        naming.format(**dict.fromkeys(signature.parameters, _Anything()))
    except LookupError as error:
        msg = f"{naming!r} names a parameter that {title(function)}{signature} does not have"
        raise InvalidInputError(msg, name=naming) from error
    except ValueError as error:
        msg = f"{naming!r} is not a valid template: {error}; for a literal brace, write two"
        raise InvalidInputError(msg, name=naming) from error

    fields = list(_FORMATTER.parse(naming))

    def name_call(*args: Any, **kwargs: Any) -> str:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return "".join(
            literal if field is None else literal + _part(naming, field, spec, conversion, bound.arguments)
            for literal, field, spec, conversion in fields
        )

    return name_call


def _part(naming: str, field: str, spec: str | None, conversion: str | None, arguments: dict[str, Any]) -> str:
    """Format one field of a template, and encode it as `lock_name` encodes a part."""
    value, _ = _FORMATTER.get_field(field, (), arguments)
    text = format(_FORMATTER.convert_field(value, conversion), (spec or "").format(**arguments))
    if value is None or not text:
        msg = (
            f"{{{field}}} of the name {naming!r} is {value!r:.40} in this call: calls without it would share one lock; "
            "give what is missing a name, such as '-'"
        )
        raise InvalidInputError(msg, name=naming)
    return _escaped(text)


class _Anything:
    """A placeholder for an argument of any kind."""

    def __getattr__(self, name: str) -> _Anything:
        return self

    def __getitem__(self, key: object) -> _Anything:
        return self

    def __format__(self, spec: str) -> str:
        return "1"
