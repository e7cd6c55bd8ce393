"""Clients of either runtime on a server that is about to fail, and conditions waited for with a deadline."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Coroutine
from math import inf
from typing import Any, TypeVar

import pytest

from lockstead import AsyncDistributedLock, DistributedLock
from lockstead.core.runtime import Runtime, drive
from lockstead.core.store import Store
from lockstead.runtimes.aio import AsyncRuntime
from lockstead.runtimes.threads import ThreadRuntime
from lockstead.stores import Source, open_store
from lockstead.testing.contract.rigs import ask
from tests.harness.conditions import DEADLINE, eventually_async

__all__ = ["RUNTIME_NAMES", "Harness", "Work", "ask"]

T = TypeVar("T")
RUNTIME_NAMES = ("threads", "asyncio", "uvloop")


class Work:
    """Work that runs concurrently, in a thread or task of its own, and its result."""

    def __init__(self, harness: Harness, work: Coroutine[Any, Any, Any]) -> None:
        self._harness = harness
        self.is_done = False
        self.ended_at = inf
        self._value: Any = None
        self._error: BaseException | None = None
        harness.runtime.spawn(lambda: self._do(work), "test-work")

    async def _do(self, work: Coroutine[Any, Any, Any]) -> None:
        try:
            self._value = await work
        except BaseException as error:
            self._error = error
        self.ended_at = time.monotonic()
        self.is_done = True

    async def result(self, within: float = DEADLINE) -> Any:
        """Wait for the end, and return or raise what it did."""
        await self._harness.until(lambda: self.is_done, "the concurrent work ends", within)
        if self._error is not None:
            raise self._error
        return self._value


class Harness:
    """Clients of one runtime. A test is a coroutine over `ask`, which serves both façades.

    `options` are those of every client's store: where it keeps what is this test's own.
    """

    def __init__(self, runtime_name: str, **options: str) -> None:
        self.runtime_name = runtime_name
        self.options = options
        self.runtime: Runtime = ThreadRuntime()
        self._opened: list[Any] = []

    def run(self, test: Coroutine[Any, Any, None]) -> None:
        if self.runtime_name == "threads":
            drive(self._tidily(test))
            return
        self.runtime = AsyncRuntime()
        if self.runtime_name == "uvloop":
            import uvloop  # noqa: PLC0415

            uvloop.run(self._tidily(test))
        else:
            asyncio.run(self._tidily(test))

    def client(self, source: Source, *, ttl: float = 2.0, **options: Any) -> Any:
        """Make one more client, as another process would be, with a store and connections of its own."""
        kind = DistributedLock if self.runtime_name == "threads" else AsyncDistributedLock
        client = kind(source, ttl=ttl, **(self.options | options))
        self._opened.append(client)
        return client

    def store(self, source: Source, **options: Any) -> Store:
        store = open_store(source, self.runtime, **(self.options | options))
        self._opened.append(store)
        return store

    def start(self, work: Any) -> Work:
        """Start concurrent work: a coroutine, or a function to call."""
        return Work(self, work if asyncio.iscoroutine(work) else _call(work))

    async def aside(self, function: Callable[[], T]) -> T:
        """Call what blocks for long where it holds no event loop up."""
        return function() if self.runtime_name == "threads" else await asyncio.to_thread(function)

    async def until(self, condition: Callable[[], Any], what: str, within: float = DEADLINE) -> Any:
        """Return the condition's first true value, looking again until the deadline."""
        return await eventually_async(condition, what, within, self.runtime.sleep)

    async def waits(self, client: Any, name: str, number: int = 1) -> None:
        """Wait until `number` clients wait in line behind the holder."""

        async def is_so() -> bool:
            info = await ask(client.info(name))
            return info is not None and info.waiting == number

        await self.until(is_so, f"{number} wait for {name!r}")

    async def sleep(self, seconds: float) -> None:
        """Sleep for a time that the test is about: a ttl, a pause."""
        await self.runtime.sleep(seconds)

    async def _tidily(self, test: Coroutine[Any, Any, None]) -> None:
        try:
            await test
        finally:
            for opened in reversed(self._opened):
                await ask(opened.close())


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine test that has the fixture `harness` under its runtime; a conftest imports this hook."""
    if "harness" not in pyfuncitem.funcargs or not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = inspect.signature(pyfuncitem.obj).parameters
    harness: Any = pyfuncitem.funcargs["harness"]
    harness.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in wanted}))
    return True


async def _call(work: Callable[[], Any]) -> Any:
    return await ask(work())
