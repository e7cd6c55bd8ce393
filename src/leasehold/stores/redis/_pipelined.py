"""Redis for asyncio: one connection on which everybody's requests follow each other, and one that hears."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from math import inf
from typing import Any, cast

import hiredis

from leasehold._model import Wake
from leasehold.errors import StoreError
from leasehold.runtimes.aio import AsyncRuntime
from leasehold.runtimes.threads import ThreadRuntime
from leasehold.stores._mailbox import Mailbox
from leasehold.stores.redis._address import Address
from leasehold.stores.redis._blocking import LEAST_TIME, PAUSE, PING, SILENCE, BlockingNode, Locate
from leasehold.stores.redis._errors import FAILURES, check_all, is_passing, unanswered
from leasehold.stores.redis._resp import is_wake_up, pack

CROWD = 64
"""So many requests go out before the turn of the loop is over: the server need not wait for the rest."""

OnMessage = Callable[[Any], None]


class _Request:
    """A request on its way. It stays in the queue, whatever becomes of its caller, to take its replies."""

    __slots__ = ("answer", "deadline", "missing", "replies")

    def __init__(self, answer: asyncio.Future[list[Any]], count: int, deadline: float) -> None:
        self.answer = answer
        self.deadline = deadline
        self.missing = count
        self.replies: list[Any] = []


class _Pipeline(asyncio.Protocol):
    """A connection on which requests do not wait for each other's replies.

    What is asked for in one turn of the loop goes out in one write.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_message: OnMessage, on_lost: Callable[[], None]) -> None:
        self.is_good = True
        self._is_lost = False
        self._is_retired = False
        self._reason = "the server closed the connection"
        self._loop = loop
        self._on_message = on_message
        self._on_lost = on_lost
        reader = hiredis.Reader()
        self._feed, self._gets = reader.feed, reader.gets
        self._requests: deque[_Request] = deque()
        self._outbox: list[bytes] = []
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = inf
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def exchange(self, payload: bytes, count: int, timeout: float) -> asyncio.Future[list[Any]]:
        if self._is_lost:
            raise ConnectionResetError(self._reason)
        deadline = self._loop.time() + timeout
        request = _Request(self._loop.create_future(), count, deadline)
        self._requests.append(request)
        if len(self._requests) == 1:
            self._transport.write(payload)
        else:
            if not self._outbox:
                self._loop.call_soon(self._flush)
            self._outbox.append(payload)
            if len(self._outbox) >= CROWD:
                self._flush()
        if deadline < self._alarm_at:
            self._set_alarm(deadline)
        return request.answer

    def _flush(self) -> None:
        if self._outbox:
            payload = b"".join(self._outbox)
            self._outbox.clear()
            self._transport.write(payload)

    def data_received(self, data: bytes) -> None:
        try:
            self._take_in(data)
        except hiredis.ProtocolError as error:
            self.close(error)
        if self._is_retired and not self._requests:
            self.close()

    def _take_in(self, data: bytes) -> None:
        self._feed(data)
        self.is_good = True
        requests = self._requests
        while (reply := self._gets()) is not False:
            if not requests:
                if isinstance(reply, Exception):  # said before it hangs up
                    self._reason = str(reply)
                else:
                    self._on_message(reply)
                continue
            request = requests[0]
            request.replies.append(reply)
            request.missing -= 1
            if not request.missing:
                requests.popleft()
                if not request.answer.done():
                    request.answer.set_result(request.replies)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_good = False
        self._is_lost = True
        self._fail_all(error or ConnectionResetError(self._reason))
        self._on_lost()

    def tell(self, payload: bytes) -> None:
        """Send what is answered with a message, if at all."""
        self._transport.write(payload)

    def _set_alarm(self, moment: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = moment
        self._alarm = self._loop.call_at(moment, self._ring)

    def _ring(self) -> None:
        """Tell those whose time is over, and set the alarm for the next."""
        now = self._loop.time()
        self._alarm, self._alarm_at = None, inf
        waiting = [request for request in self._requests if not request.answer.done()]
        for request in waiting:
            if request.deadline <= now:
                self.is_good = False
                request.answer.set_exception(TimeoutError())
        left = [request.deadline for request in waiting if request.deadline > now]
        if left:
            self._set_alarm(min(left))
        elif not self.is_good:
            self.close()

    def retire(self) -> None:
        """Close once nobody waits for an answer any more."""
        self._is_retired = True
        if all(request.answer.done() for request in self._requests):
            self.close()

    def close(self, error: Exception | None = None) -> None:
        self.is_good = False
        self._transport.abort()
        self._fail_all(error or ConnectionAbortedError("the connection was closed"))

    def _fail_all(self, error: Exception) -> None:
        while self._requests:
            request = self._requests.popleft()
            if not request.answer.done():
                request.answer.set_exception(error)
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm, self._alarm_at = None, inf


async def _connect(
    runtime: AsyncRuntime,
    address: Address,
    timeout: float,
    on_message: OnMessage = lambda _: None,
    on_lost: Callable[[], None] = lambda: None,
    *commands: bytes,
) -> _Pipeline:
    """Open a connection, log in, and send the first commands."""
    loop = runtime.bind()
    pipeline = _Pipeline(loop, on_message, on_lost)
    async with asyncio.timeout(timeout):
        if address.path:
            await loop.create_unix_connection(lambda: pipeline, address.path)
        else:
            await loop.create_connection(lambda: pipeline, address.host, address.port, ssl=address.tls)
        try:
            if first := [*address.greeting(), *commands]:
                check_all(address, await pipeline.exchange(b"".join(first), len(first), timeout))
        except BaseException:
            pipeline.close()
            raise
    return pipeline


class _Shared:
    """A connection that is opened when somebody wants it, once for all who do.

    Whoever of them is cancelled meanwhile leaves the others the connection.
    """

    def __init__(self, runtime: AsyncRuntime, connect: Callable[[float], Coroutine[Any, Any, _Pipeline]]) -> None:
        self.pipeline: _Pipeline | None = None
        self._runtime = runtime
        self._connect = connect
        self._connecting: asyncio.Task[_Pipeline] | None = None

    async def open(self, timeout: float) -> _Pipeline:
        connecting = self._connecting
        if connecting is None:
            connecting = self._runtime.bind().create_task(self._connect(timeout), name="leasehold-connect")
            connecting.add_done_callback(self._connected)
            self._connecting = connecting
        await asyncio.wait([connecting], timeout=timeout)
        if not connecting.done():
            raise TimeoutError
        if connecting.cancelled():
            msg = "the connection was closed"
            raise ConnectionAbortedError(msg)
        return connecting.result()

    def _connected(self, task: asyncio.Task[_Pipeline]) -> None:
        self._connecting = None
        if not task.cancelled() and task.exception() is None:
            if self.pipeline is not None:
                self.pipeline.retire()
            self.pipeline = task.result()

    def refresh(self) -> None:
        """Use a new connection from now on; who waits for an answer on the old one may still get it."""
        if self.pipeline is not None:
            self.pipeline.retire()
            self.pipeline = None

    def close(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
        if self.pipeline is not None:
            self.pipeline.close()
            self.pipeline = None


class PipelinedNode:
    """One server as the tasks of one loop see it."""

    def __init__(self, runtime: AsyncRuntime, address: Address) -> None:
        self.address = address
        self.is_checked = False
        self._is_closed = False
        self._runtime = runtime
        self._shared = _Shared(runtime, lambda timeout: _connect(runtime, address, timeout))

    async def ask(self, payload: bytes, count: int, timeout: float) -> list[Any]:
        try:
            self._runtime.bind()
        except RuntimeError:  # no loop runs: the interpreter exits
            return await BlockingNode(ThreadRuntime(), self.address).ask(payload, count, timeout)
        pipeline = self._shared.pipeline
        try:
            if self._is_closed:
                return await self._ask_alone(payload, count, timeout)
            if pipeline is None or not pipeline.is_good:
                pipeline = await self._shared.open(timeout)
            return await pipeline.exchange(payload, count, timeout)
        except FAILURES as error:
            raise unanswered(self.address, error) from error

    def refresh(self) -> None:
        self._shared.refresh()

    async def _ask_alone(self, payload: bytes, count: int, timeout: float) -> list[Any]:
        """Ask on a connection that is closed again: for whoever has yet to leave when everything is closed."""
        pipeline = await _connect(self._runtime, self.address, timeout)
        try:
            return await pipeline.exchange(payload, count, timeout)
        finally:
            pipeline.close()

    def close(self) -> None:
        self._is_closed = True
        self._shared.close()


class PipelinedEar:
    """One subscription for all tasks that wait."""

    def __init__(self, runtime: AsyncRuntime, channel: str, locate: Locate) -> None:
        self.channel = channel
        self._runtime = runtime
        self._locate = locate
        self._mailbox = Mailbox(runtime)
        self._shared = _Shared(runtime, self._subscribe)
        self._heard_at = self._asked_at = 0.0
        self._granted: set[str] = set()
        self.expect = self._mailbox.open

    def forget(self, owner: str) -> None:
        self._mailbox.close(owner)
        self._granted.discard(owner)

    async def wait(self, owner: str, timeout: float) -> Wake:
        self._runtime.bind()
        pipeline = self._shared.pipeline
        try:
            if pipeline is None or not pipeline.is_good:
                await self._shared.open(max(timeout, LEAST_TIME))
            else:
                self._check_silence(pipeline)
        except (OSError, StoreError) as error:
            if not is_passing(error):
                raise
            await self._runtime.sleep(min(timeout, PAUSE))
            return Wake.HINT
        is_rung = await self._mailbox.wait(owner, timeout)
        if owner in self._granted:
            self._granted.remove(owner)
            return Wake.GRANT
        return Wake(is_rung)

    async def _subscribe(self, timeout: float) -> _Pipeline:
        """Connect, and have everybody ask again: what was sent before is lost."""
        pipeline = await _connect(
            self._runtime,
            await self._locate(),
            timeout,
            self._take_in,
            self._mailbox.ring_all,
            pack(("SUBSCRIBE", self.channel)),
        )
        self._heard_at = self._asked_at = self._runtime.now()
        self._mailbox.ring_all()
        return pipeline

    def _take_in(self, message: Any) -> None:
        self._heard_at = self._runtime.now()
        if is_wake_up(message):
            owner = message[2].decode()
            if self._mailbox.ring(owner):
                self._granted.add(owner)

    def _check_silence(self, pipeline: _Pipeline) -> None:
        """Find out whether the other end is still there, if it has not said anything for long."""
        now = self._runtime.now()
        if now < self._heard_at + SILENCE:
            return
        if self._asked_at <= self._heard_at:
            pipeline.tell(PING)
            self._asked_at = now
        elif now > self._asked_at + SILENCE:
            pipeline.close()

    def close(self) -> None:
        self._shared.close()
