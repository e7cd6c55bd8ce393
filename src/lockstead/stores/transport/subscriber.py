"""Subscribers: the one connection on which a store object receives its wake-ups, for threads and for asyncio."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from math import inf
from typing import Generic, Protocol, TypeVar
from weakref import WeakMethod, ref

from lockstead.core import lifecycle
from lockstead.core.model import Wake
from lockstead.core.outage import reason
from lockstead.errors import StoreError
from lockstead.runtimes.aio import AsyncRuntime
from lockstead.runtimes.threads import ThreadRuntime
from lockstead.stores.transport.pipeline import Shared

log = logging.getLogger("lockstead")

LIVENESS_TIMEOUT = 3.0
"""Seconds without a message after which the subscriber pings the server, and then without an answer after which it
reconnects: a connection that broke silently would never deliver a wake-up."""
RETRY_PAUSE = 0.1
"""Seconds that a waiter without a subscription sleeps before it asks the store: else it would poll without a pause."""
MIN_SUBSCRIBE_TIMEOUT = 0.25
"""Seconds a subscription may take even if its waiter has less time left: later waiters use the connection, too."""

IGNORED = "%s: ignored a message on this client's channel that wakes none of its places (%d so far)"

NO_PONG = "the server did not answer a ping"

MakeMessage = Callable[[str], bytes]
"""Makes the message that will wake a place of this owner."""


class Subscriber(Protocol):
    ignored: int
    """How many messages arrived that wake none of our places: late ones, and anything else published there."""

    def expect(self, owner: str) -> bytes:
        """Register a place before its join is sent, and return the message that will wake it.

        The same message until the place is forgotten: the first attempt of a repeated join may have made the place.
        """
        ...

    def forget(self, owner: str) -> None: ...

    def join_failed(self, owner: str, error: StoreError) -> None:
        """Forget a place unless it may exist: a join of it was sent, and its outcome is unknown."""
        ...

    async def wait(self, owner: str, timeout: float) -> Wake:
        """Wait for the place's message. Returns a hint whenever one may have been missed."""
        ...

    def close(self) -> None: ...


class Subscription(Protocol):
    """The connection of a blocking subscriber. Not to be used again after any exception but TimeoutError."""

    def receive(self, timeout: float) -> Iterable[bytes]:
        """Wait for data, and return the messages in it, whatever they are. Raises TimeoutError."""
        ...

    def ping(self) -> None:
        """Request an answer, which makes `receive` return."""
        ...

    def shut_down(self) -> None:
        """Make a `receive` in another thread fail at once."""
        ...

    def close(self) -> None: ...


class _Liveness:
    """Detects a broken connection by a ping, if nothing was received for long."""

    def __init__(self) -> None:
        self._received_at = 0.0
        self._pinged_at = 0.0

    def start(self, now: float) -> None:
        self._received_at = self._pinged_at = now

    def received(self, now: float) -> None:
        self._received_at = now

    def is_dead(self, now: float, ping: Callable[[], None]) -> bool:
        """Return whether a ping was not answered in time; send one if it is due."""
        if now < self._received_at + LIVENESS_TIMEOUT:
            return False
        if self._pinged_at <= self._received_at:
            ping()
            self._pinged_at = now
            return False
        return now > self._pinged_at + LIVENESS_TIMEOUT


class _LossLog:
    """Logs once that a subscription is lost, when a waiter notices it, and once that it is restored.

    At level INFO: waiters get their locks without it, only later. An outage of the store is a warning of the keeper.
    """

    def __init__(self, runtime: ThreadRuntime | AsyncRuntime, address: str) -> None:
        self.address = address
        self._now = runtime.now
        self._lost_at: float | None = None

    def lost(self, error: BaseException) -> None:
        if self._lost_at is None:
            self._lost_at = self._now()
            why = reason(error, self.address)
            log.info("%s: subscription lost (%s): waiters poll until it is restored", self.address, why)

    def restored(self) -> None:
        if self._lost_at is not None:
            seconds, self._lost_at = self._now() - self._lost_at, None
            log.info("%s: subscription restored after %.1f s: waiters are woken again", self.address, seconds)


class _Places:
    """The places that may have to wait, and the wake-ups that have arrived for them.

    Without an object per place: most are never waited for, and a client may have thousands. Each change is one
    operation of a dictionary, which needs no lock.
    """

    def __init__(self, make_message: MakeMessage) -> None:
        self._make_message = make_message
        self.messages: dict[str, bytes] = {}
        self.owners: dict[bytes, str] = {}
        self.woken: dict[str, Wake] = {}
        self._in_doubt: set[str] = set()
        """Those of which a join was sent, and its outcome is unknown."""

    def expect(self, owner: str) -> bytes:
        """Implement `Subscriber.expect`."""
        message = self.messages.get(owner)
        if message is None:
            message = self.messages[owner] = self._make_message(owner)
            self.owners[message] = owner
        return message

    def forget(self, owner: str) -> None:
        message = self.messages.pop(owner, None)
        if message is not None:
            self.owners.pop(message, None)
            self.woken.pop(owner, None)
            if self._in_doubt:
                self._in_doubt.discard(owner)

    def join_failed(self, owner: str, error: StoreError) -> None:
        """Implement `Subscriber.join_failed`."""
        if error.transient and error.was_sent:
            self._in_doubt.add(owner)
        elif not error.transient or owner not in self._in_doubt:
            self.forget(owner)

    def wake(self, owner: str, wake: Wake) -> None:
        """Keep a wake-up until the place is waited for. A hint does not replace a grant."""
        if wake is Wake.HINT:
            self.woken.setdefault(owner, wake)
        else:
            self.woken[owner] = wake
        if owner not in self.messages:  # forgotten meanwhile by another thread
            self.woken.pop(owner, None)

    def hint_all(self) -> None:
        """Keep a hint for every place: a message may have been missed."""
        for owner in list(self.messages):
            self.wake(owner, Wake.HINT)


class _Waiter:
    """A thread that waits. Its lock is released for a wake-up, or when it has to listen for the others."""

    __slots__ = ("lock",)

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lock.acquire()

    def notify(self) -> None:
        try:  # noqa: SIM105 (slow when a thread is to be woken)
            self.lock.release()
        except RuntimeError:  # it was notified already
            pass


class BlockingSubscriber:
    """One of the waiting threads listens for all of them, and hands over to another one when its wait ends.

    So a thread that waits alone reads its wake-up from the socket itself, without a switch between threads.
    `wake` is what a message of ours means: a grant only if no other client can send it.
    """

    def __init__(
        self,
        runtime: ThreadRuntime,
        address: str,
        subscribe: Callable[[float], Awaitable[Subscription]],
        make_message: MakeMessage,
        wake: Wake,
    ) -> None:
        self.ignored = 0
        self._is_closed = False
        self._runtime = runtime
        self._loss_log = _LossLog(runtime, address)
        self._subscribe = subscribe
        self._make_message = make_message
        self._wake = wake
        self._now = runtime.now
        self._reset()
        lifecycle.at_fork(self, in_child="_reset")

    def _reset(self) -> None:
        self._mutex = threading.RLock()  # a signal handler may wait, too
        self._places = _Places(self._make_message)
        self.expect, self.forget = self._places.expect, self._places.forget
        self.join_failed = self._places.join_failed
        self._followers: dict[str, _Waiter] = {}
        self._listener: _Waiter | None = None
        self._connection: Subscription | None = None
        self._liveness = _Liveness()

    async def wait(self, owner: str, timeout: float) -> Wake:
        woken = self._places.woken
        deadline = self._now() + timeout
        waiter = _Waiter()
        try:
            while owner not in woken and (left := deadline - self._now()) > 0:
                with self._mutex:
                    if self._listener is None:
                        self._listener = waiter
                    elif self._listener is not waiter:
                        self._followers[owner] = waiter
                if self._listener is waiter:
                    await self._listen(owner, deadline)
                elif owner not in woken:  # otherwise it was woken before the listener could notify it
                    waiter.lock.acquire(timeout=left)
            self._hand_over(owner, waiter)
        except BaseException:
            self._hand_over(owner, waiter)  # possibly again: an interrupt may have ended the first call early
            if (listener := self._listener) is not None:
                listener.notify()
            raise
        return woken.pop(owner, Wake.TIMEOUT)

    def _hand_over(self, owner: str, waiter: _Waiter) -> None:
        """Let the longest waiting thread listen next, if there is one: it is likely to be woken next."""
        successor = None
        with self._mutex:
            self._followers.pop(owner, None)
            if self._listener is waiter:
                next_owner, successor = next(iter(self._followers.items()), (owner, None))
                self._listener = successor
                self._followers.pop(next_owner, None)
        if successor is not None:
            successor.notify()

    async def _listen(self, owner: str, deadline: float) -> None:
        """Receive for all waiters, until our own wake-up arrives."""
        woken = self._places.woken
        connection: Subscription | None = None
        try:
            connection = self._connection or await self._connect(deadline)
            while owner not in woken and (left := deadline - self._now()) > 0:
                self._check_liveness(connection)
                try:
                    messages = connection.receive(min(left, LIVENESS_TIMEOUT))
                except TimeoutError:
                    continue
                self._deliver(messages)
        except BaseException as error:
            self._disconnect(connection)
            if not is_transient(error):
                raise
            if not self._is_closed:
                self._loss_log.lost(error)
            time.sleep(min(RETRY_PAUSE, max(deadline - self._now(), 0.0)))
            woken.setdefault(owner, Wake.HINT)

    async def _connect(self, deadline: float) -> Subscription:
        """Connect, and wake every waiter to ask again: messages sent before are lost."""
        connection = await self._subscribe(max(deadline - self._now(), MIN_SUBSCRIBE_TIMEOUT))
        self._connection = connection
        if self._is_closed:
            self._disconnect(connection)
            msg = "the connection was closed"
            raise ConnectionAbortedError(msg)
        self._liveness.start(self._now())
        self._loss_log.restored()
        self._places.hint_all()
        for waiter in list(self._followers.values()):
            waiter.notify()
        return connection

    def _deliver(self, messages: Iterable[bytes]) -> None:
        places = self._places
        for message in messages:
            owner = places.owners.get(message)
            if owner is not None:
                places.wake(owner, self._wake)
                if (follower := self._followers.get(owner)) is not None:
                    follower.notify()
            else:
                self.ignored += 1
                log.debug(IGNORED, self._loss_log.address, self.ignored)
        self._liveness.received(self._now())

    def _check_liveness(self, connection: Subscription) -> None:
        if self._liveness.is_dead(self._now(), connection.ping):
            raise ConnectionResetError(NO_PONG)

    def _disconnect(self, connection: Subscription | None) -> None:
        """Close a connection. In a forked child, another one may be in use by now."""
        if self._connection is connection:
            self._connection = None
        if connection is not None:
            connection.close()

    def close(self) -> None:
        """Close the connection: a thread that listens gets an error, and no place is left to wait for."""
        self._is_closed = True
        connection = self._connection
        if connection is not None:
            connection.shut_down()
            if self._listener is None:
                self._disconnect(connection)


class SubscriberConnection(Protocol):
    """The connection of an asyncio subscriber."""

    is_good: bool

    def ping(self) -> None: ...

    def retire(self) -> None: ...

    def close(self) -> None: ...

    def abandon(self) -> None: ...


P = TypeVar("P", bound=SubscriberConnection)
OnMessage = Callable[[bytes | None], None]
"""Called with every message, whatever it is, and with None for anything else that arrives."""
OnLost = Callable[[], None]
Subscribe = Callable[[float, OnMessage, OnLost], Awaitable[P]]
"""Connects within a timeout, and calls back with every message and when the connection is lost."""


class LoopSubscriber(Generic[P]):
    """One subscription for all waiting tasks. `wake` as in `BlockingSubscriber`."""

    def __init__(
        self, runtime: AsyncRuntime, address: str, subscribe: Subscribe[P], make_message: MakeMessage, wake: Wake
    ) -> None:
        self.ignored = 0
        self._is_closed = False
        self._runtime = runtime
        self._loss_log = _LossLog(runtime, address)
        self._subscribe = subscribe
        self._wake = wake
        weak = WeakMethod(self._connect)  # the loop references the connection, which must not keep us alive

        async def connect(timeout: float) -> P:
            if (method := weak()) is None:
                raise ConnectionAbortedError
            return await method(timeout)

        self._shared = Shared(runtime, connect)
        self._liveness = _Liveness()
        self._places = _Places(make_message)
        self.expect, self.forget = self._places.expect, self._places.forget
        self.join_failed = self._places.join_failed
        self._waiting: dict[str, asyncio.Future[None]] = {}

    async def wait(self, owner: str, timeout: float) -> Wake:
        loop = self._runtime.bind()
        connection = self._shared.connection
        try:
            if connection is None or not connection.is_good:
                await self._shared.open(max(timeout, MIN_SUBSCRIBE_TIMEOUT))
            elif self._liveness.is_dead(self._runtime.now(), connection.ping):
                self._loss_log.lost(ConnectionResetError(NO_PONG))
                connection.close()
        except (OSError, StoreError) as error:
            if not is_transient(error):
                raise
            if not self._is_closed:
                self._loss_log.lost(error)
            await self._runtime.sleep(min(timeout, RETRY_PAUSE))
            return Wake.HINT
        woken = self._places.woken
        if owner not in woken and timeout > 0:
            waiting = self._waiting[owner] = loop.create_future()
            timer = None if timeout == inf else loop.call_later(timeout, _end_wait, waiting)
            try:
                await waiting
            finally:
                self._waiting.pop(owner, None)
                if timer is not None:
                    timer.cancel()
        return woken.pop(owner, Wake.TIMEOUT)

    async def _connect(self, timeout: float) -> P:
        """Connect, and wake every waiter to ask again: messages sent before are lost."""
        weak = ref(self)
        connection = await self._subscribe(
            timeout,
            lambda message: me._deliver(message) if (me := weak()) else None,  # noqa: SLF001 (it is ours)
            lambda: me._handle_loss() if (me := weak()) else None,  # noqa: SLF001
        )
        self._liveness.start(self._runtime.now())
        self._loss_log.restored()
        self._hint_all()
        return connection

    def _handle_loss(self) -> None:
        if self._places.messages and not self._is_closed:
            self._loss_log.lost(ConnectionResetError("the connection was closed"))
        self._hint_all()

    def _hint_all(self) -> None:
        self._places.hint_all()
        for waiting in list(self._waiting.values()):
            _end_wait(waiting)

    def _deliver(self, message: bytes | None) -> None:
        self._liveness.received(self._runtime.now())
        if message is None:
            return
        owner = self._places.owners.get(message)
        if owner is None:
            self.ignored += 1
            log.debug(IGNORED, self._loss_log.address, self.ignored)
            return
        self._places.wake(owner, self._wake)
        if (waiting := self._waiting.get(owner)) is not None:
            _end_wait(waiting)

    def close(self) -> None:
        self._is_closed = True
        self._shared.close()


def _end_wait(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


def is_transient(error: BaseException) -> bool:
    """Return whether connecting again may help: a waiter can poll for a while without its subscription."""
    return isinstance(error, OSError) or (isinstance(error, StoreError) and error.transient)
