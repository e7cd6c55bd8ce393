"""What the tests of the contract run on: a store under each runtime."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import cached_property, wraps
from typing import Any

import pytest

from lockstead import AsyncDistributedLock, DistributedLock, UnsupportedError
from lockstead.core import inspection
from lockstead.core.model import Capabilities
from lockstead.core.runtime import Runtime, drive
from lockstead.core.store import Reserving, Store
from lockstead.runtimes.aio import AsyncRuntime
from lockstead.runtimes.threads import ThreadRuntime

Opener = Callable[[Runtime], Store]
"""Opens one more store object, of the same server each time."""
RUNTIME_NAMES = ("threads", "asyncio")


class Rig:
    """One server, and clients of one runtime.

    Tests are coroutines over `ask`, which awaits what the asyncio façade returns and passes on what the
    blocking one has done already: so one test serves both.
    """

    def __init__(self, runtime_name: str, open_store: Opener) -> None:
        self.runtime_name = runtime_name
        self._open_store = open_store
        self._opened: list[Any] = []
        self._failures: list[Exception] = []
        self._runtime: Runtime = ThreadRuntime() if runtime_name == "threads" else AsyncRuntime()

    def run(self, test: Coroutine[Any, Any, None]) -> None:
        if self.runtime_name == "threads":
            drive(self._tidily(test))
        else:
            asyncio.run(self._tidily(test))

    def store(self) -> Store:
        """Open one more connection to the server."""
        store = self._open_store(self._runtime)
        self._opened.append(store)
        return store

    @cached_property
    def can(self) -> Capabilities:
        return self.store().capabilities

    @property
    def has_line(self) -> bool:
        """Whether waiters stand in line, seen by all, rather than ask again and again."""
        return self.can.fifo

    def client(self, **options: Any) -> Any:
        """Make one more client, as another process would be."""
        kind = DistributedLock if self.runtime_name == "threads" else AsyncDistributedLock
        client = kind(self.store(), **options)
        self._opened.append(client)
        return client

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def watched() -> None:
            try:
                await work()
            except Exception as error:
                self._failures.append(error)
                raise

        self._runtime.spawn(watched, "test")

    async def until(self, condition: Callable[[], Any], seconds: float = 10.0) -> float:
        """Wait for a condition, and return how long it took."""
        began = time.monotonic()
        while not await ask(condition()):
            if self._failures:
                raise self._failures[0]
            assert time.monotonic() - began < seconds, f"not met within {seconds:g} s: {_source(condition)}"
            await self._runtime.sleep(0.002)
        return time.monotonic() - began

    async def _tidily(self, test: Coroutine[Any, Any, None]) -> None:
        try:
            await test
        finally:
            for opened in reversed(self._opened):
                await ask(opened.close())


def _source(condition: Callable[[], Any]) -> str:
    try:
        return " ".join(inspect.getsource(condition).split())
    except (OSError, TypeError):
        return repr(condition)


async def ask(answer: Any) -> Any:
    return await answer if inspect.isawaitable(answer) else answer


async def cannot(guard: Any, client: Any) -> bool:
    """Return whether the store does not support what a guard would hold. If so, its refusal is checked."""
    (request, *_) = guard._plan.asks
    if client._engine.store.capabilities.supports(request.capacity, request.weight):
        return False
    for attempt in (guard.acquire, guard.try_acquire):
        with pytest.raises(UnsupportedError):
            await ask(attempt())
    assert await ask(client.inspect()) == []
    return True


@asynccontextmanager
async def block(guard: Any) -> AsyncIterator[Any]:
    """Hold something for a block of either runtime."""
    if hasattr(guard, "__aenter__"):
        async with guard as handle:
            yield handle
    else:
        with guard as handle:
            yield handle


async def line(client: Any, name: str = "x") -> tuple[int, int]:
    """Count the holders of a name, and its waiters."""
    found = await inspection.find(client._engine, name)
    places = found.places if found else ()
    held = sum(place.acquired_at is not None for place in places)
    return held, len(places) - held


async def line_is(client: Any, held: int, waiting: int, name: str = "x") -> bool:
    return await line(client, name) == (held, waiting)


async def names(client: Any) -> list[str]:
    return [info.name for info in await ask(client.inspect())]


def cannot_reserve(client: Any) -> bool:
    return not isinstance(client._engine.store, Reserving)


def as_function(rig: Rig, body: Any) -> Any:
    """Make what the runtime's decorators take of a plain function."""
    if rig.runtime_name == "threads":
        return body

    @wraps(body)
    async def function(*args: Any, **kwargs: Any) -> Any:
        return body(*args, **kwargs)

    return function


@pytest.fixture(params=RUNTIME_NAMES)
def runtime_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def rig(runtime_name: str, open_store: Opener) -> Rig:
    return Rig(runtime_name, open_store)
