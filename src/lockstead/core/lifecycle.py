"""Hooks for when the process forks or the interpreter exits.

Hooks around a fork are weak references: they do not keep an object alive that is not used any more.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from contextlib import ExitStack
from typing import Any, Protocol

EXIT_BUDGET = 1.0
"""Seconds that the releases at exit may take, all together, and each candidate of an election that has to resign."""


class Exiting(Protocol):
    def exit(self, budget: float) -> None:
        """Clean up within that many seconds."""
        ...


class Inherited(Protocol):
    def abandon(self) -> None:
        """Drop it in a forked child without sending anything: it is the parent's."""
        ...


_Hooks = list[tuple[weakref.ref[Any], str]]

_before_fork: _Hooks = []
_after_fork_in_parent: _Hooks = []
_after_fork_in_child: _Hooks = []
_registering = threading.RLock()
"""Held during a fork: an object whose hook was not called before it must not be called after it."""

at_exit: set[Exiting] = set()
"""Called when the interpreter exits normally. Strong references: add an object only while it has something to clean
up."""

inherited: weakref.WeakSet[Inherited] = weakref.WeakSet()
"""Connections, idle or in use. A forked child abandons them all: gevent's greenlets go on in it, and would take the
replies that their originals wait for in the parent."""


def at_fork(
    instance: object, *, before: str | None = None, in_parent: str | None = None, in_child: str | None = None
) -> None:
    """Call these methods of `instance` around every fork, in the order of registration, while it lives."""
    with _registering:
        for hooks, method in (
            (_before_fork, before),
            (_after_fork_in_parent, in_parent),
            (_after_fork_in_child, in_child),
        ):
            hooks[:] = [hook for hook in hooks if hook[0]() is not None]
            if method is not None:
                hooks.append((weakref.ref(instance), method))


def _call(hooks: _Hooks) -> None:
    """Call all of them, even if one fails: a child that uses its parent's resources is worse than a traceback."""
    with ExitStack() as calls:
        for reference, method in reversed(hooks):
            if (instance := reference()) is not None:
                calls.callback(getattr(instance, method))


def _before() -> None:
    _registering.acquire()
    _call(_before_fork)


def _in_parent() -> None:
    try:
        _call(_after_fork_in_parent)
    finally:
        _registering.release()


def _in_child() -> None:
    at_exit.clear()
    connections = [(weakref.ref(connection), "abandon") for connection in inherited]
    inherited.clear()
    try:
        _call(connections)
        _call(_after_fork_in_child)
    finally:
        _registering.release()


def _exiting() -> None:
    until = time.monotonic() + EXIT_BUDGET
    for instance in tuple(at_exit):
        instance.exit(max(until - time.monotonic(), 0.0))


weakref.finalize(_exiting, int)  # registers weakref's own hook first: it runs after ours, which still needs sockets
atexit.register(_exiting)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
