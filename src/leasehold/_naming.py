"""What locks are called: by themselves, or after the arguments of a decorated call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from string import Formatter
from typing import Any

from leasehold.errors import InvalidInputError

Naming = str | Callable[..., str]


def literal(naming: Naming) -> str:
    """Give the name as it is written; what is named by a function of each call only has the name of that."""
    return getattr(naming, "__qualname__", "a function") if callable(naming) else naming


def listed(namings: Iterable[Naming]) -> list[Naming]:
    """Take several names; a string is one, not as many as it has letters."""
    if isinstance(namings, str) or not isinstance(namings, Iterable):
        msg = f"names must be a list of several, got {namings!r}"
        raise InvalidInputError(msg)
    return list(namings)


def name_for_calls(naming: Naming, function: Callable[..., Any]) -> Callable[..., str]:
    """Make a function that names a call: from a template such as ``"account:{account_id}"``, or by `naming` itself.

    A template that mentions what the function does not take is refused here, not at the first call.
    """
    if callable(naming):
        return naming
    signature = inspect.signature(function)
    fields = [field for _, field, _, _ in Formatter().parse(naming) if field is not None]
    for field in fields:
        parameter = field.partition(".")[0].partition("[")[0]
        if parameter not in signature.parameters:
            msg = f"{naming!r} mentions {{{field}}}, which {function.__qualname__}{signature} does not take"
            raise InvalidInputError(msg, name=naming)

    def name_call(*args: Any, **kwargs: Any) -> str:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return naming.format(**bound.arguments)

    return name_call
