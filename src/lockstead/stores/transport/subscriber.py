"""Subscribers: the one connection on which a store object receives its wake-ups, for threads and for asyncio."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Generic, Protocol, TypeVar
from weakref import WeakMethod

from lockstead.core import lifecycle
from lockstead.core.model import Wake
from lockstead.core.outage import reason
from lockstead.errors import StoreError
from lockstead.runtimes.aio import AsyncRuntime
from lockstead.runtimes.threads import ThreadRuntime
from lockstead.stores.transport.pipeline import Shared
from lockstead.stores.waiters import WaiterEvents

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


class _Waiter:
    """A thread that waits, or will. Its lock is released for a wake-up, or when it has to listen for the others."""

    __slots__ = ("lock", "message", "wakes")

    def __init__(self, message: bytes = b"") -> None:
        self.message = message
        self.lock = threading.Lock()
        self.lock.acquire()
        self.wakes: deque[Wake] = deque()

    def wake(self, wake: Wake) -> None:
        self.wakes.append(wake)
        self.notify()

    def take_wake(self) -> Wake:
        """Return the strongest wake-up so far; one that arrives meanwhile is kept."""
        wake = Wake.TIMEOUT
        while self.wakes:
            wake = max(wake, self.wakes.popleft())
        return wake

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
        self._reset()
        lifecycle.at_fork(self, in_child="_reset")

    def _reset(self) -> None:
        self._mutex = threading.RLock()  # a signal handler may wait, too
        self._waiters: dict[str, _Waiter] = {}
        self._by_message: dict[bytes, _Waiter] = {}
        self._followers: dict[str, _Waiter] = {}
        self._listener: _Waiter | None = None
        self._connection: Subscription | None = None
        self._liveness = _Liveness()

    def expect(self, owner: str) -> bytes:
        waiter = self._waiters.get(owner)
        if waiter is None:
            waiter = self._waiters[owner] = _Waiter(self._make_message(owner))
            self._by_message[waiter.message] = waiter
        return waiter.message

    def forget(self, owner: str) -> None:
        waiter = self._waiters.pop(owner, None)
        if waiter is not None:
            self._by_message.pop(waiter.message, None)

    async def wait(self, owner: str, timeout: float) -> Wake:
        waiter = self._waiters.get(owner) or _Waiter()
        deadline = self._runtime.now() + timeout
        try:
            while not waiter.wakes and (left := deadline - self._runtime.now()) > 0:
                with self._mutex:
                    if self._listener is None:
                        self._listener = waiter
                    elif self._listener is not waiter:
                        self._followers[owner] = waiter
                if self._listener is waiter:
                    await self._listen(waiter, deadline)
                else:
                    waiter.lock.acquire(timeout=left)
            self._hand_over(owner, waiter)
        except BaseException:
            self._hand_over(owner, waiter)  # possibly again: an interrupt may have ended the first call early
            if (listener := self._listener) is not None:
                listener.notify()
            raise
        return waiter.take_wake()

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

    async def _listen(self, waiter: _Waiter, deadline: float) -> None:
        """Receive for all waiters, until our own wake-up arrives."""
        connection: Subscription | None = None
        try:
            connection = self._connection or await self._connect(deadline)
            while not waiter.wakes and (left := deadline - self._runtime.now()) > 0:
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
            time.sleep(min(RETRY_PAUSE, max(deadline - self._runtime.now(), 0.0)))
            waiter.wake(Wake.HINT)

    async def _connect(self, deadline: float) -> Subscription:
        """Connect, and wake every waiter to ask again: messages sent before are lost."""
        connection = await self._subscribe(max(deadline - self._runtime.now(), MIN_SUBSCRIBE_TIMEOUT))
        self._connection = connection
        if self._is_closed:
            self._disconnect(connection)
            msg = "the connection was closed"
            raise ConnectionAbortedError(msg)
        self._liveness.start(self._runtime.now())
        self._loss_log.restored()
        for waiter in list(self._waiters.values()):
            waiter.wake(Wake.HINT)
        return connection

    def _deliver(self, messages: Iterable[bytes]) -> None:
        self._liveness.received(self._runtime.now())
        for message in messages:
            if waiter := self._by_message.get(message):
                waiter.wake(self._wake)
            else:
                self.ignored += 1
                log.debug(IGNORED, self._loss_log.address, self.ignored)

    def _check_liveness(self, connection: Subscription) -> None:
        if self._liveness.is_dead(self._runtime.now(), connection.ping):
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
        self._make_message = make_message
        self._wake = wake
        self._waiters = WaiterEvents(runtime)
        weak = WeakMethod(self._connect)  # the loop references the connection, which must not keep us alive

        async def connect(timeout: float) -> P:
            if (method := weak()) is None:
                raise ConnectionAbortedError
            return await method(timeout)

        self._shared = Shared(runtime, connect)
        self._liveness = _Liveness()
        self._messages: dict[str, bytes] = {}
        self._owners: dict[bytes, str] = {}
        self._woken: set[str] = set()

    def expect(self, owner: str) -> bytes:
        message = self._messages.get(owner)
        if message is None:
            self._waiters.open(owner)
            message = self._messages[owner] = self._make_message(owner)
            self._owners[message] = owner
        return message

    def forget(self, owner: str) -> None:
        message = self._messages.pop(owner, None)
        if message is not None:
            del self._owners[message]
            self._waiters.close(owner)
            self._woken.discard(owner)

    async def wait(self, owner: str, timeout: float) -> Wake:
        self._runtime.bind()
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
        is_set = await self._waiters.wait(owner, timeout)
        if owner in self._woken:
            self._woken.remove(owner)
            return self._wake
        return Wake(is_set)

    async def _connect(self, timeout: float) -> P:
        """Connect, and wake every waiter to ask again: messages sent before are lost."""
        deliver, handle_loss = WeakMethod(self._deliver), WeakMethod(self._handle_loss)
        connection = await self._subscribe(
            timeout,
            lambda message: call(message) if (call := deliver()) else None,
            lambda: call() if (call := handle_loss()) else None,
        )
        self._liveness.start(self._runtime.now())
        self._loss_log.restored()
        self._waiters.notify_all()
        return connection

    def _handle_loss(self) -> None:
        if self._messages and not self._is_closed:
            self._loss_log.lost(ConnectionResetError("the connection was closed"))
        self._waiters.notify_all()

    def _deliver(self, message: bytes | None) -> None:
        self._liveness.received(self._runtime.now())
        if message is None:
            return
        owner = self._owners.get(message)
        if owner is None:
            self.ignored += 1
            log.debug(IGNORED, self._loss_log.address, self.ignored)
        else:
            self._waiters.notify(owner)
            self._woken.add(owner)

    def close(self) -> None:
        self._is_closed = True
        self._shared.close()


def is_transient(error: BaseException) -> bool:
    """Return whether connecting again may help: a waiter can poll for a while without its subscription."""
    return isinstance(error, OSError) or (isinstance(error, StoreError) and error.transient)
