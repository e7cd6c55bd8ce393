"""How the places of one store object hear, on one connection, that they hold: for threads and for asyncio."""

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
from lockstead.errors import StoreError
from lockstead.runtimes.aio import AsyncRuntime
from lockstead.runtimes.threads import ThreadRuntime
from lockstead.stores.transport.pipeline import Shared
from lockstead.stores.waiters import WaiterEvents

log = logging.getLogger("lockstead")

SILENCE = 3.0
"""How long the ear hears nothing before it asks whether anybody is there, and then before it connects anew."""
PAUSE = 0.1
"""How long a waiter who cannot listen waits before he asks again."""
LEAST_TIME = 0.25
"""What a connection is given to come about even if its user has less time."""

IGNORED = "ignored a message on our channel that wakes no place of ours (%d so far)"

MakeMessage = Callable[[str], bytes]
"""Makes the message that will wake a place of this owner."""


class Subscriber(Protocol):
    ignored: int
    """How many messages arrived that wake no place of ours: late ones, and whatever else was published there."""

    def expect(self, owner: str) -> bytes:
        """Keep what arrives for a place from before it is asked for, and return the message that will wake it.

        The same for as long as the place is not forgotten: a join that is repeated may have made its place before.
        """
        ...

    def forget(self, owner: str) -> None: ...

    async def wait(self, owner: str, timeout: float) -> Wake:
        """Wait for the place's message. Returns a hint whenever one may have been missed."""
        ...

    def close(self) -> None: ...


class Subscription(Protocol):
    """A connection on which a blocking ear hears. Not to be used again after an exception but TimeoutError."""

    def hear(self, timeout: float) -> Iterable[bytes]:
        """Wait for anything to arrive, and return the messages in it, whatever they are. Raises TimeoutError."""
        ...

    def probe(self) -> None:
        """Ask for a sign of life, which `hear` will return from."""
        ...

    def shut_down(self) -> None:
        """End it for whoever is just listening."""
        ...

    def close(self) -> None: ...

    def abandon(self) -> None:
        """Let go of it in a forked child, without a word to the server, which serves the parent."""
        ...


class _Liveness:
    """Finds out whether the other end is still there, if it has not said anything for long."""

    def __init__(self) -> None:
        self._received_at = 0.0
        self._pinged_at = 0.0

    def begin(self, now: float) -> None:
        self._received_at = self._pinged_at = now

    def end(self, now: float) -> None:
        self._received_at = now

    def is_final(self, now: float, probe: Callable[[], None]) -> bool:
        """Tell whether nobody is there: asked for a sign of life, they gave none."""
        if now < self._received_at + SILENCE:
            return False
        if self._pinged_at <= self._received_at:
            probe()
            self._pinged_at = now
            return False
        return now > self._pinged_at + SILENCE


class _Waiter:
    """A thread that waits, or will. Its latch is opened for a wake-up, or for its turn to listen."""

    __slots__ = ("latch", "message", "wakes")

    def __init__(self, message: bytes = b"") -> None:
        self.message = message
        self.latch = threading.Lock()
        self.latch.acquire()
        self.wakes: deque[Wake] = deque()

    def ring(self, wake: Wake) -> None:
        self.wakes.append(wake)
        self.open()

    def take(self) -> Wake:
        """Give the strongest wake-up there was; one that comes meanwhile is kept."""
        wake = Wake.SILENCE
        while self.wakes:
            wake = max(wake, self.wakes.popleft())
        return wake

    def open(self) -> None:
        try:  # noqa: SIM105 (slow when somebody is to be woken)
            self.latch.release()
        except RuntimeError:  # it is open already
            pass


class BlockingSubscriber:
    """One of the waiting threads listens for all of them, and hands that on when it goes.

    So a thread that waits alone reads the wake-up from the socket itself: no other thread stands between.
    `wake` is what a message of ours is worth: a grant only if no other client can send it.
    """

    def __init__(
        self,
        runtime: ThreadRuntime,
        subscribe: Callable[[float], Awaitable[Subscription]],
        make_message: MakeMessage,
        wake: Wake,
    ) -> None:
        self.ignored = 0
        self._is_closed = False
        self._runtime = runtime
        self._subscribe = subscribe
        self._make_message = make_message
        self._wake = wake
        self._reset()
        lifecycle.at_fork(self, in_child="_forked")

    def _reset(self) -> None:
        self._mutex = threading.RLock()  # a signal handler may wait, too
        self._waiters: dict[str, _Waiter] = {}
        self._by_message: dict[bytes, _Waiter] = {}
        self._followers: dict[str, _Waiter] = {}
        self._listener: _Waiter | None = None
        self._connection: Subscription | None = None
        self._liveness = _Liveness()

    def _forked(self) -> None:
        connection = self._connection
        self._reset()
        if connection is not None:  # a thread that is gone was using it, and will not let go of it
            connection.abandon()

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
                    waiter.latch.acquire(timeout=left)
            self._hand_over(owner, waiter)
        except BaseException:
            self._hand_over(owner, waiter)  # again, perhaps: an interrupt may have come before it was done
            if (listener := self._listener) is not None:
                listener.open()
            raise
        return waiter.take()

    def _hand_over(self, owner: str, waiter: _Waiter) -> None:
        """Let whoever waits for longest listen next, if anybody does: he is likely to be the next to be woken."""
        successor = None
        with self._mutex:
            self._followers.pop(owner, None)
            if self._listener is waiter:
                next_owner, successor = next(iter(self._followers.items()), (owner, None))
                self._listener = successor
                self._followers.pop(next_owner, None)
        if successor is not None:
            successor.open()

    async def _listen(self, waiter: _Waiter, deadline: float) -> None:
        """Hear for everybody, until our own wake-up comes."""
        try:
            connection = self._connection or await self._connect(deadline)
            while not waiter.wakes and (left := deadline - self._runtime.now()) > 0:
                self._check_liveness(connection)
                try:
                    messages = connection.hear(min(left, SILENCE))
                except TimeoutError:
                    continue
                self._take_in(messages)
        except BaseException as error:
            self._disconnect()
            if not is_transient(error):
                raise
            time.sleep(min(PAUSE, max(deadline - self._runtime.now(), 0.0)))
            waiter.ring(Wake.HINT)

    async def _connect(self, deadline: float) -> Subscription:
        """Connect, and have everybody ask again: what was sent before is lost."""
        connection = await self._subscribe(max(deadline - self._runtime.now(), LEAST_TIME))
        self._connection = connection
        if self._is_closed:
            msg = "the connection was closed"
            raise ConnectionAbortedError(msg)
        self._liveness.begin(self._runtime.now())
        for waiter in list(self._waiters.values()):
            waiter.ring(Wake.HINT)
        return connection

    def _take_in(self, messages: Iterable[bytes]) -> None:
        self._liveness.end(self._runtime.now())
        for message in messages:
            if waiter := self._by_message.get(message):
                waiter.ring(self._wake)
            else:
                self.ignored += 1
                log.debug(IGNORED, self.ignored)

    def _check_liveness(self, connection: Subscription) -> None:
        if self._liveness.is_final(self._runtime.now(), connection.probe):
            msg = "the server has fallen silent"
            raise ConnectionResetError(msg)

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def close(self) -> None:
        """Let the connection go; whoever listens finds it closed and, by then, nobody to wait for."""
        self._is_closed = True
        connection = self._connection
        if connection is not None:
            connection.shut_down()
            if self._listener is None:
                self._disconnect()


class SubscriberConnection(Protocol):
    """What a loop's ear needs of its connection, beside what a pipeline does."""

    is_good: bool

    def probe(self) -> None: ...

    def retire(self) -> None: ...

    def close(self) -> None: ...

    def abandon(self) -> None: ...


P = TypeVar("P", bound=SubscriberConnection)
OnMessage = Callable[[bytes | None], None]
"""Called with every message, whatever it is, and with None at any other sign of life."""
OnLost = Callable[[], None]
Subscribe = Callable[[float, OnMessage, OnLost], Awaitable[P]]
"""Connects within a time."""


class LoopSubscriber(Generic[P]):
    """One subscription for all tasks that wait. `wake` as of a BlockingEar."""

    def __init__(self, runtime: AsyncRuntime, subscribe: Subscribe[P], make_message: MakeMessage, wake: Wake) -> None:
        self.ignored = 0
        self._runtime = runtime
        self._subscribe = subscribe
        self._make_message = make_message
        self._wake = wake
        self._mailbox = WaiterEvents(runtime)
        weak = WeakMethod(self._connect)  # the loop keeps the connection, which must not keep us

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
            self._mailbox.open(owner)
            message = self._messages[owner] = self._make_message(owner)
            self._owners[message] = owner
        return message

    def forget(self, owner: str) -> None:
        message = self._messages.pop(owner, None)
        if message is not None:
            del self._owners[message]
            self._mailbox.close(owner)
            self._woken.discard(owner)

    async def wait(self, owner: str, timeout: float) -> Wake:
        self._runtime.bind()
        connection = self._shared.connection
        try:
            if connection is None or not connection.is_good:
                await self._shared.open(max(timeout, LEAST_TIME))
            elif self._liveness.is_final(self._runtime.now(), connection.probe):
                connection.close()
        except (OSError, StoreError) as error:
            if not is_transient(error):
                raise
            await self._runtime.sleep(min(timeout, PAUSE))
            return Wake.HINT
        is_set = await self._mailbox.wait(owner, timeout)
        if owner in self._woken:
            self._woken.remove(owner)
            return self._wake
        return Wake(is_set)

    async def _connect(self, timeout: float) -> P:
        """Connect, and have everybody ask again: what was sent before is lost."""
        weak = WeakMethod(self._take_in)
        connection = await self._subscribe(
            timeout, lambda message: call(message) if (call := weak()) else None, self._mailbox.notify_all
        )
        self._liveness.begin(self._runtime.now())
        self._mailbox.notify_all()
        return connection

    def _take_in(self, message: bytes | None) -> None:
        self._liveness.end(self._runtime.now())
        if message is None:
            return
        owner = self._owners.get(message)
        if owner is None:
            self.ignored += 1
            log.debug(IGNORED, self.ignored)
        else:
            self._mailbox.ring(owner)
            self._woken.add(owner)

    def close(self) -> None:
        self._shared.close()


def is_transient(error: BaseException) -> bool:
    """Tell whether it may help to connect again: somebody who only listens can do without, for a while."""
    return isinstance(error, OSError) or (isinstance(error, StoreError) and error.transient)
