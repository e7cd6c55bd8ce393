"""Hooks for when the process forks or ends.

Hooks around a fork are weak references: they do not keep an object alive that is not used any more.

A process that ends by `os._exit` calls no hook of `atexit`. Children that `multiprocessing` and billiard fork, and the
pool processes of Celery, end so, but call hooks of their own first. They are used where those modules are loaded.
Not promised: anything for a process that calls `os._exit` itself, as RQ's do, or is killed.
"""

from __future__ import annotations

import atexit
import importlib
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
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


LAST = -1_000_000
"""The priority of a finalizer of `multiprocessing` that runs after all others: they may use locks."""

_Hooks = list[tuple[weakref.ref[Any], str]]

_before_fork: _Hooks = []
_after_fork_in_parent: _Hooks = []
_after_fork_in_child: _Hooks = []
_registering = threading.RLock()
"""Held during a fork: an object whose hook was not called before it must not be called after it."""

at_exit: set[Exiting] = set()
"""Called when the process ends normally. Strong references: add an object only while it has something to clean up."""

_first_at_exit: list[Callable[[], object]] = []

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


def first_at_exit(call: Callable[[], object]) -> None:
    """Call this when the process ends normally, before what is `at_exit`: the latest first, as `atexit` does."""
    _first_at_exit.append(call)
    atexit.register(call)


def not_at_exit(call: Callable[[], object]) -> None:
    """Undo `first_at_exit`, once or more often than it was called."""
    atexit.unregister(call)
    _first_at_exit[:] = [other for other in _first_at_exit if other != call]


def _call(hooks: _Hooks) -> None:
    """Call all of them, even if one fails: a child that uses its parent's resources is worse than a traceback."""
    with ExitStack() as calls:
        for reference, method in reversed(hooks):
            if (instance := reference()) is not None:
                calls.callback(getattr(instance, method))


def _before() -> None:
    _registering.acquire()
    try:
        _register_with_others()
    finally:
        _call(_before_fork)


def _in_parent() -> None:
    try:
        _call(_after_fork_in_parent)
    finally:
        _registering.release()


def _in_child() -> None:
    at_exit.clear()
    _first_at_exit.clear()
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


def _register_with_others() -> None:
    """Register with modules whose processes end by `os._exit`, if they are loaded: at the import, and at forks."""
    global _is_registered
    signals, util = sys.modules.get("celery.signals"), sys.modules.get("multiprocessing.util")
    if util is None and "billiard.process" in sys.modules:  # whose children import it too late for us
        util = importlib.import_module("multiprocessing.util")
    if util is not None and not _is_registered:
        _is_registered = True
        util.register_after_fork(_exiting, _add_finalizer)  # a child starts without its parent's finalizers
        _add_finalizer(_exiting)  # this may be a child that has begun already
    if signals is not None:
        signals.worker_process_shutdown.connect(_ending, weak=False, dispatch_uid="lockstead")


def _add_finalizer(_: object) -> None:
    sys.modules["multiprocessing.util"].Finalize(None, _finalizing, exitpriority=LAST)


def _finalizing() -> None:
    """Clean up in a child that ends by `os._exit`; other processes will call what is registered with `atexit`.

    A child of `multiprocessing` waits for its threads only after this, and they may hold locks until then. A child of
    billiard does not wait for threads.
    """
    multiprocessing, billiard = sys.modules["multiprocessing"], sys.modules.get("billiard")
    if multiprocessing.parent_process() is not None:
        if multiprocessing.get_start_method(allow_none=True) == "spawn":
            return
        if _threads_to_wait_for():
            threading.Thread(target=_end_after_threads, name="lockstead-exit", daemon=False).start()
        else:
            _ending()
    elif billiard is not None and billiard.current_process().name != "MainProcess":
        _ending()


def _threads_to_wait_for() -> list[threading.Thread]:
    mine = {threading.main_thread(), threading.current_thread()}
    return [thread for thread in threading.enumerate() if not thread.daemon and thread not in mine]


def _end_after_threads() -> None:
    while threads := _threads_to_wait_for():
        for thread in threads:
            thread.join()
    _ending()


def _ending(**_: object) -> None:
    """Clean up where `atexit` calls nothing."""
    for call in reversed(tuple(_first_at_exit)):
        call()
    _exiting()


_is_registered = False
_register_with_others()
weakref.finalize(_exiting, int)  # registers weakref's own hook first: it runs after ours, which still needs sockets
atexit.register(_exiting)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
