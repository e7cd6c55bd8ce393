"""Checks of functions that users pass in: to be decorated, or to be called back."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from lockstead.errors import InvalidInputError

T = TypeVar("T")


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


def check_plain(function: Callable[..., Any]) -> None:
    """Accept a function that a blocking client can call, and whose work is done when it returns."""
    check_decorated(function)
    if makes_coroutines(function):
        msg = f"{title(function)} is a coroutine function: use AsyncDistributedLock"
        raise InvalidInputError(msg)


def check_coroutine(function: Callable[..., Any]) -> None:
    """Accept a coroutine function: any other would block the loop."""
    check_decorated(function)
    if not makes_coroutines(function):
        msg = f"{title(function)} is not a coroutine function: use DistributedLock"
        raise InvalidInputError(msg)


def check_work(function: Callable[..., Any]) -> None:
    """Accept what a blocking client can call, and whose work is done when it returns. See also `returned`."""
    _check_called(function)
    if makes_coroutines(function):
        msg = f"{title(function)} is a coroutine function: use AsyncDistributedLock"
        raise InvalidInputError(msg)


def check_async_work(function: Callable[..., Any]) -> None:
    """Accept a coroutine function, or a lambda, which may return the awaitable of one: ``lambda: fetch(url)``."""
    _check_called(function)
    if not makes_coroutines(function) and getattr(function, "__name__", "") != "<lambda>":
        msg = f"{title(function)} is not a coroutine function: use DistributedLock"
        raise InvalidInputError(msg)


def _check_called(function: Callable[..., Any]) -> None:
    if not callable(function):
        msg = f"{function!r:.80} cannot be called: pass a function that takes no arguments"
        raise InvalidInputError(msg)
    body = _body(function)
    if inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body):
        msg = f"{title(function)} is a generator function, whose work begins after the call has returned"
        raise InvalidInputError(msg)


def check_callback(function: Callable[..., Any], option: str) -> None:
    """Accept a function that a thread can call back."""
    check_async_callback(function, option)
    if makes_coroutines(function):
        msg = f"{option}: {title(function)} is a coroutine function, which no thread awaits: use AsyncDistributedLock"
        raise InvalidInputError(msg)


def check_async_callback(function: Callable[..., Any], option: str) -> None:
    """Accept what can be called; what it returns is awaited if it can be."""
    if not callable(function):
        msg = f"{option} must be a function, or None, got {function!r:.80}"
        raise InvalidInputError(msg)


def returned(value: T) -> T:
    """Return a function's result, unless it is a coroutine: then nothing was done yet. Raises InvalidInputError."""
    if not inspect.iscoroutine(value):
        return value
    value.close()
    msg = f"the function returned a coroutine, {value.__qualname__}, which no thread awaits: use AsyncDistributedLock"
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
