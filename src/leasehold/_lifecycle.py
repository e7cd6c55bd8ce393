"""What becomes of live objects when the process forks or the interpreter exits.

Only weak references are kept: an object nobody uses any more is not kept alive to be cleaned up.
"""

from __future__ import annotations

import atexit
import os
import time
import weakref
from collections.abc import Callable
from typing import Any

EXIT_BUDGET = 1.0
"""Seconds that all clean-up at exit together may take."""

_Hooks = list[weakref.WeakMethod[Callable[..., Any]]]

_before_fork: _Hooks = []
_after_fork_in_parent: _Hooks = []
_after_fork_in_child: _Hooks = []
_at_exit: _Hooks = []


def at_fork(
    *,
    before: Callable[[], Any] | None = None,
    in_parent: Callable[[], Any] | None = None,
    in_child: Callable[[], Any] | None = None,
) -> None:
    """Call these bound methods around every fork, in the order of registration."""
    for hooks, method in (
        (_before_fork, before),
        (_after_fork_in_parent, in_parent),
        (_after_fork_in_child, in_child),
    ):
        if method is not None:
            hooks.append(weakref.WeakMethod(method, hooks.remove))


def at_exit(method: Callable[[float], Any]) -> None:
    """Call a bound method, with the seconds it may take, when the interpreter exits in the ordinary way."""
    _at_exit.append(weakref.WeakMethod(method, _at_exit.remove))


def _call(hooks: _Hooks) -> None:
    for reference in list(hooks):
        if (method := reference()) is not None:
            method()


def _exiting() -> None:
    until = time.monotonic() + EXIT_BUDGET
    for reference in tuple(_at_exit):
        if (method := reference()) is not None:
            method(max(until - time.monotonic(), 0.0))


atexit.register(_exiting)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: _call(_before_fork),
        after_in_parent=lambda: _call(_after_fork_in_parent),
        after_in_child=lambda: _call(_after_fork_in_child),
    )
