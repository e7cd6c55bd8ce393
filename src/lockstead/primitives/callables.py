"""What users hand over to be called: whether it does its work during the call, and what to call it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from lockstead.errors import InvalidInputError


def check_decorated(function: Callable[..., Any]) -> None:
    """Accept what does its work while it is called, or awaited. Raises InvalidInputError."""
    body = _body(function)
    if isinstance(function, classmethod | staticmethod):
        kind = type(function).__name__
        problem = f"is a {kind}: put this decorator below @{kind}"
    elif not callable(function):
        problem = "cannot be called: decorate a function"
    elif inspect.isclass(function):
        problem = "is a class: decorate its methods"
    elif inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body):
        problem = "is a generator function, whose work begins when its call is over: put the lock, or the wait, inside"
    else:
        return
    msg = f"{title(function)} {problem}"
    raise InvalidInputError(msg)


def makes_coroutines(function: Callable[..., Any]) -> bool:
    """Tell whether a call only makes a coroutine, and returns before anything was done."""
    return inspect.iscoroutinefunction(_body(function))


def title(function: Callable[..., Any]) -> str:
    """Say what a function is called; partials and other objects have no name."""
    return getattr(function, "__qualname__", None) or f"{function!r:.80}"


def _body(function: Callable[..., Any]) -> Any:
    """Find what a call runs: the function under partials, or that of a callable object's class."""
    while isinstance(function, functools.partial):
        function = function.func
    return function if inspect.isroutine(function) else getattr(type(function), "__call__", None)  # noqa: B004
