"""Redis for asyncio: one pipelined connection for the requests of all tasks, and one subscription."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, cast

import hiredis

from lockstead.runtimes.aio import AsyncRuntime
from lockstead.runtimes.clock import now
from lockstead.runtimes.threads import ThreadRuntime
from lockstead.stores.redis.address import Address
from lockstead.stores.redis.blocking import BlockingNode
from lockstead.stores.redis.errors import FAILURES, check_all, check_speaks_tls, unknown_outcome
from lockstead.stores.redis.resp import PING, pack, published
from lockstead.stores.transport.pipeline import Pipeline, Shared
from lockstead.stores.transport.recognition import HANDSHAKE_PATIENCE
from lockstead.stores.transport.subscriber import OnLost, OnMessage

MAX_UNSENT = 64
"""How many requests are collected for one write: beyond that they are sent before the loop's iteration ends, so that
the server need not wait for the rest."""

OnReply = Callable[[Any], None]
"""Called with every reply that no request waits for."""


class Connection(Pipeline, asyncio.Protocol):
    """A connection on which requests do not wait for each other's replies.

    The requests of one iteration of the loop are sent in one write.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_reply: OnReply, on_lost: Callable[[], None]) -> None:
        super().__init__(loop)
        self.loop = loop
        self._is_lost = False
        self._reason = "the server closed the connection"
        self._on_reply = on_reply
        self._on_lost = on_lost
        reader = hiredis.Reader()
        self._feed, self._gets = reader.feed, reader.gets
        self._outbox: list[bytes] = []
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def exchange(self, payload: bytes, count: int, timeout: float) -> asyncio.Future[list[Any]]:
        if self._is_lost:
            raise ConnectionResetError(self._reason)
        answer = self._enqueue(count, timeout)
        self._send(payload, is_idle=len(self._requests) == count)
        return answer

    def exchange_one(self, payload: bytes, timeout: float, now: float) -> asyncio.Future[Any]:
        """Send one command: all in one function, as every acquisition does it."""
        if self._is_lost:
            raise ConnectionResetError(self._reason)
        answer = self._loop.create_future()
        deadline = now + timeout
        requests, outbox = self._requests, self._outbox
        requests.append((answer, now, deadline))
        if deadline < self._timer_at:
            self._set_timer(deadline)
        if outbox and len(outbox) < MAX_UNSENT:
            outbox.append(payload)
        elif len(requests) == 1:
            self._transport.write(payload)
        else:
            self._send(payload, is_idle=False)
        return answer

    def _send(self, payload: bytes, *, is_idle: bool) -> None:
        """Send at once if no reply is expected; otherwise together with the other requests of this iteration."""
        if is_idle:
            self._transport.write(payload)
            return
        if not self._outbox:
            self._loop.call_soon(self._flush)
        self._outbox.append(payload)
        if len(self._outbox) > MAX_UNSENT:
            self._flush()

    def _flush(self) -> None:
        if self._outbox:
            payload = b"".join(self._outbox)
            self._outbox.clear()
            self._transport.write(payload)

    def data_received(self, data: bytes) -> None:
        requests, gets = self._requests, self._gets
        was_answered = False
        try:
            self._feed(data)
            self.is_good = True
            while (reply := gets()) is not False:
                if requests:
                    answer, _, _ = requests.popleft()
                    if not answer.done():
                        answer.set_result(reply)
                    was_answered = True
                elif isinstance(reply, Exception):  # sent before the server closes the connection
                    self._reason = str(reply)
                else:
                    self._on_reply(reply)
        except hiredis.ProtocolError as error:
            self.close(error)
        if was_answered:
            self._answered_at = now()
            self._has_answered = True
        if self._is_retired and not requests:
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_good = False
        self._is_lost = True
        self._fail_all(error or ConnectionResetError(self._reason))
        self._on_lost()

    def ping(self) -> None:
        self._transport.write(PING)

    def abort(self) -> None:
        self._transport.abort()


async def _connect(
    runtime: AsyncRuntime,
    address: Address,
    timeout: float,
    on_reply: OnReply = lambda _: None,
    on_lost: Callable[[], None] = lambda: None,
    *commands: bytes,
) -> Connection:
    """Open a connection, log in, and send the first commands."""
    loop = runtime.bind()
    async with asyncio.timeout(timeout):
        pipeline = await _open(runtime, address, timeout, lambda: Connection(loop, on_reply, on_lost))
        try:
            if first := [*address.greeting(), *commands]:
                check_all(address, await pipeline.exchange(b"".join(first), len(first), timeout))
        except BaseException:
            pipeline.close()
            raise
    pipeline.mark_opened()
    return pipeline


async def _open(runtime: AsyncRuntime, address: Address, timeout: float, new: Callable[[], Connection]) -> Connection:
    """Connect; if a TLS handshake is not answered, look what the server is, and try once more."""
    loop = runtime.bind()
    if address.path:
        return (await loop.create_unix_connection(new, address.path))[1]
    if address.tls is not None and timeout > HANDSHAKE_PATIENCE:
        with suppress(TimeoutError):
            async with asyncio.timeout(HANDSHAKE_PATIENCE):
                return (await loop.create_connection(new, address.host, address.port, ssl=address.tls))[1]
        await runtime.offload(lambda: check_speaks_tls(address))
    return (await loop.create_connection(new, address.host, address.port, ssl=address.tls))[1]


async def subscribe(
    runtime: AsyncRuntime,
    address: Address,
    channel: str,
    timeout: float,
    *,
    on_message: OnMessage,
    on_lost: OnLost,
) -> Connection:
    """Open a connection that is subscribed to a channel."""
    command = pack(("SUBSCRIBE", channel))
    return await _connect(runtime, address, timeout, lambda reply: on_message(published(reply)), on_lost, command)


class PipelinedNode:
    """One server, for the tasks of one loop."""

    def __init__(self, runtime: AsyncRuntime, address: Address) -> None:
        self.address = address
        self.is_checked = False
        self._is_closed = False
        self._runtime = runtime
        self._shared = Shared(runtime, lambda timeout: _connect(runtime, address, timeout))

    async def ask(self, payload: bytes, count: int, timeout: float) -> list[Any]:
        try:
            self._runtime.bind()
        except RuntimeError:  # no loop is running: the interpreter exits
            return await BlockingNode(ThreadRuntime(), self.address).ask(payload, count, timeout)
        pipeline = self._shared.connection
        deadline = self._runtime.now() + timeout
        try:
            if self._is_closed:
                return await self._ask_on_own_connection(payload, count, deadline)
            if pipeline is None or not pipeline.is_good:
                pipeline = await self._shared.open(timeout)
            return await pipeline.exchange(payload, count, deadline - self._runtime.now())
        except FAILURES as error:
            raise unknown_outcome(self.address, error) from error

    def ask_one(self, payload: bytes, timeout: float, now: float) -> Awaitable[Any]:
        pipeline = self._shared.connection  # None once this is closed
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # the interpreter exits
            return self._ask_one_anew(payload, timeout)
        if pipeline is None or not pipeline.is_good or pipeline.loop is not loop:
            return self._ask_one_anew(payload, timeout)
        return pipeline.exchange_one(payload, timeout, now)

    async def _ask_one_anew(self, payload: bytes, timeout: float) -> Any:
        """Send one command where there is no connection to use: none is open, this is closed, or no loop is running."""
        (reply,) = await self.ask(payload, 1, timeout)
        return reply

    def refresh(self) -> None:
        self._shared.refresh()

    async def _ask_on_own_connection(self, payload: bytes, count: int, deadline: float) -> list[Any]:
        """Send on a connection of its own, closed afterwards: for releases after the store was closed."""
        now = self._runtime.now
        pipeline = await self._runtime.bind().create_task(_connect(self._runtime, self.address, deadline - now()))
        try:
            return await pipeline.exchange(payload, count, deadline - now())
        finally:
            pipeline.close()

    def close(self) -> None:
        self._is_closed = True
        self._shared.close()
