"""The runtime port: time, chance and concurrency, so that the core is written once.

Under threads these block and the core's coroutines never suspend; under asyncio they are awaited; under
simulation they park on a virtual clock.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Hashable, Sequence
from contextlib import AbstractContextManager
from socket import socket
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

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
    msg = "a coroutine of the core suspended under a driver whose ports should block"
    raise RuntimeError(msg)


class Event(Protocol):
    """Wakes its one listener. A ring nobody listens to is kept for the next to listen."""

    def ring(self) -> None:
        """Wake the listener; from any thread."""
        ...

    async def wait(self, timeout: float) -> bool:
        """Take the ring (True), or give up after `timeout` seconds, which may be infinite (False)."""
        ...


class Runtime(Protocol):
    def now(self) -> float:
        """Read a clock that runs on through suspend and is never set."""
        ...

    def random(self) -> float:
        """Draw from [0, 1)."""
        ...

    def event(self) -> Event: ...

    def mutex(self) -> AbstractContextManager[Any]:
        """Make a lock for a few lines that do not await.

        A signal handler or a finalizer may run between any two of them, and enter the same mutex: so after each line
        everything must be as another call may find it.
        """
        ...

    def is_nested(self, mutex: AbstractContextManager[Any]) -> bool:
        """Tell whether this call has interrupted another of this thread that is inside that mutex or a store's step."""
        ...

    def bind(self) -> object:
        """Raise LockError where it does not belong: in another event loop, or in threads that were patched since."""
        ...

    def context(self) -> Hashable:
        """Name the thread or task that is running."""
        ...

    def spawn(
        self, work: Callable[[], Coroutine[Any, Any, None]], name: str, if_cancelled: Callable[[], None] | None = None
    ) -> None:
        """Run in the background, referenced until it ends, never cancelled with its parent.

        The coroutine is made where it runs, so that whoever is interrupted here leaves none that nobody awaits.
        Where somebody may cancel it all the same, even before it began, `if_cancelled` is called then.
        """
        ...

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        """Call `action` after a while, unless everything has ended by then."""
        ...

    def call_in_owner(self, action: Callable[[], None]) -> None:
        """Call `action` where background work may be started: now, or soon if this is another thread."""
        ...

    async def sleep(self, seconds: float) -> None: ...

    async def shield(self, work: Coroutine[Any, Any, T]) -> T:
        """Await work that goes on to its end even if the caller is cancelled meanwhile."""
        ...

    async def gather(
        self, works: Sequence[Coroutine[Any, Any, T]], decided: Callable[[Sequence[T | None]], bool], grace: float
    ) -> list[T | None]:
        """Run works that never raise side by side; return what they returned, None for what has not ended.

        That is when all have ended, or `grace` seconds after `decided` first was true of the results so far. The
        rest go on to their end in the background, even if the caller is cancelled.
        """
        ...

    async def offload(self, function: Callable[[], T]) -> T:
        """Call what may block on the disk where it holds nobody up."""
        ...

    def listen(self, datagrams: socket, on_message: Callable[[bytes], object]) -> Callable[[], None]:
        """Hand every datagram to `on_message` until the returned function is called, which closes the socket."""
        ...
