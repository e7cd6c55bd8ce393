"""For threads: a pool of idle connections."""

from __future__ import annotations

from contextlib import suppress
from math import inf
from typing import Generic, Protocol, TypeVar

from lockstead.core import lifecycle
from lockstead.runtimes.threads import ThreadRuntime

MAX_UNCHECKED_IDLE = 1.0
"""Seconds for which an idle connection is assumed to be alive without a check, which is a system call."""


class Idle(Protocol):
    idle_since: float

    def is_broken(self) -> bool:
        """Return whether the server has closed it or sent anything: it has no reason to send on an idle connection."""
        ...

    def close(self) -> None: ...


C = TypeVar("C", bound=Idle)


class Pool(Generic[C]):
    """A connection in use belongs to its user; one that failed is not given back. At most `max_idle` are kept idle.

    In a forked child every connection drops itself, idle or in use: it is the parent's.
    """

    def __init__(self, runtime: ThreadRuntime, max_idle: float = inf) -> None:
        self._now = runtime.now
        self._max_idle = max_idle
        self.idle: list[C] = []
        """Those that are not in use, the last one given back at the end."""
        self.is_closed = False
        lifecycle.at_fork(self, in_child="_forked")

    def take(self) -> C | None:
        while True:
            try:
                connection = self.idle.pop()
            except IndexError:
                return None
            if self._now() < connection.idle_since + MAX_UNCHECKED_IDLE or not connection.is_broken():
                return connection
            connection.close()

    def give_back(self, connection: C) -> None:
        connection.idle_since = self._now()
        if self.is_closed or len(self.idle) >= self._max_idle:
            connection.close()
        else:
            self.idle.append(connection)

    def drop(self) -> None:
        """Use new connections from now on."""
        with suppress(IndexError):  # until there is none: other threads may take them meanwhile
            while True:
                self.idle.pop().close()

    def close(self) -> None:
        """Close the idle connections; one in use is closed when it is given back."""
        self.is_closed = True
        self.drop()

    def _forked(self) -> None:
        self.idle = []
