"""For threads: connections that are idle, each for whoever takes it."""

from __future__ import annotations

from contextlib import suppress
from math import inf
from typing import Generic, Protocol, TypeVar

from lockstead.core import lifecycle
from lockstead.runtimes.threads import ThreadRuntime

FRESH = 1.0
"""For how long an idle connection is taken for alive without a look at it."""


class Idle(Protocol):
    idle_since: float

    def is_broken(self) -> bool:
        """Tell whether the server has closed it, or said anything: it has no reason to."""
        ...

    def close(self) -> None: ...

    def abandon(self) -> None:
        """Let go of it in a forked child, without a word to the server, which serves the parent."""
        ...


C = TypeVar("C", bound=Idle)


class Pool(Generic[C]):
    """One in use belongs to whoever took it; one that failed is not given back. At most `most` are kept idle."""

    def __init__(self, runtime: ThreadRuntime, most: float = inf) -> None:
        self._now = runtime.now
        self._most = most
        self._idle: list[C] = []
        self._is_closed = False
        lifecycle.at_fork(self, in_child="_forked")

    def take(self) -> C | None:
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return None
            if self._now() < connection.idle_since + FRESH or not connection.is_broken():
                return connection
            connection.close()

    def give_back(self, connection: C) -> None:
        connection.idle_since = self._now()
        if self._is_closed or len(self._idle) >= self._most:
            connection.close()
        else:
            self._idle.append(connection)

    def drop(self) -> None:
        """Use new connections from now on."""
        with suppress(IndexError):  # until there is none, whoever else takes them
            while True:
                self._idle.pop().close()

    def close(self) -> None:
        """Let idle connections go; one in use is closed when it is given back."""
        self._is_closed = True
        self.drop()

    def _forked(self) -> None:
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.abandon()
