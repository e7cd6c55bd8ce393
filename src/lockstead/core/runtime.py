"""The runtime port: time, randomness and concurrency, so that the core is written once.

Under threads these block and the core's coroutines never suspend; under asyncio they are awaited; under
simulation they park on a virtual clock.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Hashable, Sequence
from contextlib import AbstractContextManager
from socket import socket
from typing import Any, Final, Generic, Protocol, TypeVar

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

NESTED = (
    "called by a signal handler or a finalizer in the middle of another call of this thread, which has to end first: "
    "only release(), release_all() and close() can be called there; set a flag, and do the rest when that call is over"
)


def drive(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine of the core whose ports all block, so that it never suspends."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    work.close()
    msg = "a coroutine of the core suspended under a runtime whose ports should block"
    raise RuntimeError(msg)


class Event(Protocol):
    """An auto-reset event with one waiter at a time. A `set` that finds no waiter is kept for the next `wait`."""

    def set(self) -> None:
        """Wake the waiter. May be called from any thread."""
        ...

    async def wait(self, timeout: float) -> bool:
        """Return True once the event is set, and reset it; False after `timeout` seconds, which may be infinite."""
        ...


PENDING: Final[Any] = object()
"""What `InFlight.receive` returns while the reply is not complete."""


class InFlight(Protocol[T_co]):
    """A request that a thread has sent, and whose reply it has not received."""

    deadline: float

    def fileno(self) -> int:
        """Return the descriptor that is readable once there is a part of the reply."""
        ...

    def receive(self) -> T_co | Coroutine[Any, Any, T_co]:
        """Receive a part of the reply. Returns PENDING, the result, or a coroutine that goes on to get it.

        Raises once the deadline is over.
        """
        ...


class Gathered(Protocol[T]):
    """Requests that are sent together, each under a number, and what takes their outcomes."""

    def send(self, number: int) -> Coroutine[Any, Any, T] | InFlight[T]:
        """Send the request, or return a coroutine that does. Only in a thread it may be in flight."""
        ...

    def take(self, number: int, outcome: T | Exception) -> None:
        """Take the result of a request, or the exception that ended it. Does not raise."""
        ...

    def is_decided(self) -> bool:
        """Return whether to wait for no further outcome."""
        ...


class Outcomes(Generic[T]):
    """Requests of which all outcomes are waited for."""

    def __init__(self, coroutines: Sequence[Coroutine[Any, Any, T]]) -> None:
        self._coroutines = coroutines
        self._outcomes: list[T | Exception] = [LookupError("it has not ended")] * len(coroutines)

    async def gather(self, runtime: Runtime) -> list[T | Exception]:
        """Run them concurrently and return their results, or the exceptions they ended with."""
        await runtime.gather(self, range(len(self._coroutines)), 0.0)
        return self._outcomes

    def send(self, number: int) -> Coroutine[Any, Any, T]:
        return self._coroutines[number]

    def take(self, number: int, outcome: T | Exception) -> None:
        self._outcomes[number] = outcome

    def is_decided(self) -> bool:
        return False


class Runtime(Protocol):
    def now(self) -> float:
        """Read a clock that keeps running during suspend and is never set."""
        ...

    def random(self) -> float:
        """Draw from [0, 1)."""
        ...

    def event(self) -> Event: ...

    def mutex(self) -> AbstractContextManager[Any]:
        """Make a lock for a few lines that do not await.

        A signal handler or a finalizer may run between any two of them and enter the same mutex: so the state must be
        consistent after each line.
        """
        ...

    def is_nested(self, mutex: AbstractContextManager[Any]) -> bool:
        """Return whether this call interrupted another of its thread that is inside that mutex or a store's step."""
        ...

    def check(self, mutex: AbstractContextManager[Any]) -> None:
        """Raise LockError where `bind` does, and NestedCallError where `is_nested` is true."""
        ...

    def bind(self) -> object:
        """Raise LockError where this runtime cannot be used: another event loop, or threads that were patched since."""
        ...

    def context(self) -> Hashable:
        """Identify the running thread or task."""
        ...

    def in_event_loop(self) -> bool:
        """Return whether this is a blocking call inside an event loop, which cannot tell the loop's tasks apart."""
        ...

    def must_release(self, opened_by: Hashable) -> bool:
        """Return whether a lease of this client cannot be released while the running thread or task waits.

        That is so if it opened the lease's block, or if there is no other thread.
        """
        ...

    def spawn(
        self, work: Callable[[], Coroutine[Any, Any, None]], name: str, if_cancelled: Callable[[], None] | None = None
    ) -> None:
        """Run in the background, referenced until it ends, never cancelled with its parent.

        The coroutine is created where it runs, so that an interrupt in this call leaves none that is never awaited.
        Where it can be cancelled all the same, even before it began, `if_cancelled` is called then.
        """
        ...

    def call_later(self, seconds: float, action: Callable[[], None]) -> None:
        """Call `action` after that many seconds, unless the process or the event loop has ended by then."""
        ...

    def call_in_owner(self, action: Callable[[], None]) -> None:
        """Call `action` where background work may be started: now, or soon if called from another thread."""
        ...

    async def sleep(self, seconds: float) -> None: ...

    async def shield(self, work: Coroutine[Any, Any, T]) -> T:
        """Await work that runs to its end even if the caller is cancelled meanwhile."""
        ...

    async def gather(self, requests: Gathered[T], numbers: Sequence[int], grace: float) -> None:
        """Send the requests with these numbers, then wait for their outcomes as they come.

        Returns when all have ended, or `grace` seconds after it was first decided. The rest end in the background,
        even if the caller is cancelled, and their outcomes are taken then. An interrupt while they are being sent
        leaves the others unsent.
        """
        ...

    async def offload(self, function: Callable[[], T]) -> T:
        """Call a function that may block on the disk, without blocking the event loop."""
        ...

    def listen(self, datagrams: socket, on_message: Callable[[bytes], object]) -> Callable[[], None]:
        """Pass every datagram to `on_message` until the returned function is called, which closes the socket."""
        ...
