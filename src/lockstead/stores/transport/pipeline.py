"""For asyncio: one pipelined connection that all tasks share, opened on demand."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from math import inf
from typing import Any, Generic, Protocol, TypeVar

from lockstead.core import lifecycle
from lockstead.runtimes.aio import AsyncRuntime
from lockstead.runtimes.clock import now

MAX_ANSWER_AGE = 0.25
"""Seconds since its last answer within which a server counts as busy; after that it counts as unreachable."""
MIN_CONNECT_TIMEOUT = 1.0
"""Seconds a connection attempt may take even if its first caller has less time left: all callers share it."""
CONNECTION_REFUSED = "connection refused: check that the server runs there"
"""The text of that error, on every store with a server."""


class QueuedError(TimeoutError):
    """A request timed out while the server was still answering those before it."""

    def __init__(self) -> None:
        super().__init__("no answer in time: the server is busy with the requests before this one")


class _Replies:
    """Collects the replies to one request of several commands."""

    __slots__ = ("_count", "_replies", "answer")

    def __init__(self, answer: asyncio.Future[list[Any]], count: int) -> None:
        self.answer = answer
        self._count = count
        self._replies: list[Any] = []

    def done(self) -> bool:
        return self.answer.done()

    def set_result(self, reply: object) -> None:
        self._replies.append(reply)
        if len(self._replies) == self._count:
            self.answer.set_result(self._replies)

    def set_exception(self, error: Exception) -> None:
        self.answer.set_exception(error)


Request = tuple[asyncio.Future[Any] | _Replies, float, float]
"""A command in flight: what gets its reply, when it was sent, and its deadline.

It stays in the queue to consume its reply, even if its caller was cancelled."""


class Pipeline:
    """The requests in flight on one connection, and the one timer for their deadlines."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.is_good = True
        self._is_retired = False
        self._loop = loop
        self._requests: deque[Request] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf
        self.mark_opened()

    def mark_opened(self) -> None:
        """Count as opened from now on: the replies to a greeting are behind it."""
        self._answered_at = now()
        self._has_answered = False

    def abort(self) -> None:
        """Cut the connection."""
        raise NotImplementedError

    def abandon(self) -> None:
        """Drop it in a forked child without using the connection or the loop: both are the parent's."""

    def _enqueue(self, count: int, timeout: float) -> asyncio.Future[list[Any]]:
        """Expect `count` replies to what is being sent."""
        sent = now()
        deadline = sent + timeout
        replies = _Replies(self._loop.create_future(), count)
        self._requests.extend([(replies, sent, deadline)] * count)
        if deadline < self._timer_at:
            self._set_timer(deadline)
        return replies.answer

    def _take_reply(self, reply: object) -> None:
        """Give a reply to the oldest request."""
        self._answered_at = now()
        self._has_answered = True
        answer, _, _ = self._requests.popleft()
        if not answer.done():
            answer.set_result(reply)

    def is_answering(self, within: float = MAX_ANSWER_AGE) -> bool:
        """Return whether the server answered anything in the last `within` seconds."""
        return now() < self._answered_at + within

    def _set_timer(self, moment: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = moment
        self._timer = self._loop.call_later(moment - now(), self._expire_requests)

    def _expire_requests(self) -> None:
        """Fail the requests whose deadline is over, and set the timer for the next one.

        A connection on which answers arrive stays in use: another one would only add to the server's load. So does one
        that was opened a moment ago: a request that had little time left must not end it for those after it.
        """
        moment = now()
        is_answering = self.is_answering()
        is_new = is_answering and not self._has_answered
        self._timer, self._timer_at = None, inf
        next_deadline = inf
        for answer, sent, deadline in self._requests:
            if answer.done():
                continue
            if deadline > moment:
                next_deadline = min(next_deadline, deadline)
                continue
            is_busy = is_answering and sent < self._answered_at
            self.is_good = self.is_good and (is_busy or is_new)
            answer.set_exception(QueuedError() if is_busy else TimeoutError())
        if next_deadline < inf:
            self._set_timer(next_deadline)
        elif not self.is_good:
            self.close()

    def retire(self) -> None:
        """Close once no caller waits for an answer any more."""
        self._is_retired = True
        if all(answer.done() for answer, _, _ in self._requests):
            self.close()

    def close(self, error: Exception | None = None) -> None:
        self.is_good = False
        self.abort()
        self._fail_all(error or ConnectionAbortedError("the connection was closed"))

    def _fail_all(self, error: Exception) -> None:
        while self._requests:
            answer, _, _ = self._requests.popleft()
            if not answer.done():
                answer.set_exception(error)
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._timer_at = None, inf


class Closable(Protocol):
    def retire(self) -> None: ...

    def close(self) -> None: ...

    def abandon(self) -> None: ...


C = TypeVar("C", bound=Closable)


class Shared(Generic[C]):
    """A connection that is opened on demand, once for all callers.

    A caller that is cancelled meanwhile does not cancel the attempt of the others.
    """

    def __init__(self, runtime: AsyncRuntime, connect: Callable[[float], Coroutine[Any, Any, C]]) -> None:
        self.connection: C | None = None
        self._runtime = runtime
        self._connect = connect
        self._connecting: asyncio.Task[C] | None = None
        self._is_closed = False
        lifecycle.at_fork(self, in_child="_forked")

    async def open(self, timeout: float) -> C:
        """Open the connection within a timeout. Raises ConnectionAbortedError once this is closed."""
        connecting = self._connecting
        if connecting is None and not self._is_closed:
            connecting = self._runtime.bind().create_task(
                self._connect(max(timeout, MIN_CONNECT_TIMEOUT)), name="lockstead-connect"
            )
            connecting.add_done_callback(self._connected)
            self._connecting = connecting
        if connecting is not None:
            await asyncio.wait([connecting], timeout=timeout)
            if not connecting.done():
                raise TimeoutError
        if connecting is None or connecting.cancelled() or self._is_closed:
            msg = "the connection was closed"
            raise ConnectionAbortedError(msg)
        return connecting.result()

    def _connected(self, task: asyncio.Task[C]) -> None:
        self._connecting = None
        if not task.cancelled() and task.exception() is None:
            if self.connection is not None:
                self.connection.retire()
            self.connection = task.result()
            if self._is_closed:  # while the attempt was ending, too late to cancel it
                self.close()

    def refresh(self) -> None:
        """Use a new connection from now on; requests in flight on the old one may still be answered."""
        if self.connection is not None:
            self.connection.retire()
            self.connection = None

    def _forked(self) -> None:
        connection, self.connection, self._connecting = self.connection, None, None
        if connection is not None:
            connection.abandon()

    def __del__(self) -> None:
        """Close the connection of a dropped object: the loop would keep what it reads from."""
        if self.connection is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._runtime.call_in_owner(self.connection.close)

    def close(self) -> None:
        self._is_closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        if self.connection is not None:
            self.connection.close()
            self.connection = None
