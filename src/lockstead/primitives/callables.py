"""Checks of functions that users pass in: to be decorated, or to be called back."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from lockstead.errors import InvalidInputError


def check_decorated(function: Callable[..., Any]) -> None:
    """Accept a function that does its work while it is called, or awaited. Raises InvalidInputError."""
    body = _body(function)
    if isinstance(function, classmethod | staticmethod):
        kind = type(function).__name__
        problem = f"is a {kind}: put this decorator below @{kind}"
    elif not callable(function):
        problem = "cannot be called: decorate a function"
    elif inspect.isclass(function):
        problem = "is a class: decorate its methods"
    elif inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body):
        problem = (
            "is a generator function, whose work begins after the call has returned: put the lock, or the wait, inside"
        )
    else:
        return
    msg = f"{title(function)} {problem}"
    raise InvalidInputError(msg)


def makes_coroutines(function: Callable[..., Any]) -> bool:
    """Return whether a call only creates a coroutine, and returns before any work was done."""
    return inspect.iscoroutinefunction(_body(function))


def title(function: Callable[..., Any]) -> str:
    """Return a function's name for messages; partials and other objects have none."""
    return getattr(function, "__qualname__", None) or f"{function!r:.80}"


def _body(function: Callable[..., Any]) -> Any:
    """Find the function that a call runs: under partials, or `__call__` of a callable object's class."""
    while isinstance(function, functools.partial):
        function = function.func
    return function if inspect.isroutine(function) else getattr(type(function), "__call__", None)  # noqa: B004 (the function itself is needed)
