"""Every store under every driver. To put a new store under contract, add it to `STORES`."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from leasehold import AsyncDistributedLock, DistributedLock
from leasehold._runtime import Runtime, drive
from leasehold._store import Store
from leasehold.runtimes.aio import AsyncRuntime
from leasehold.runtimes.threads import ThreadRuntime
from leasehold.stores.memory import MemberServer, MemberStore, MemoryServer, MemoryStore
from leasehold.stores.quorum import Quorum
from leasehold.stores.sqlite import SqliteStore

Opener = Callable[[Runtime], Store]


def memory(folder: Path) -> Opener:
    server = MemoryServer()
    return lambda runtime: MemoryStore(runtime, server)


def sqlite(folder: Path) -> Opener:
    return lambda runtime: SqliteStore(runtime, folder / "locks.db")


def sqlite_polling(folder: Path) -> Opener:
    return lambda runtime: SqliteStore(runtime, folder / "locks.db", push=False)


def quorum(folder: Path) -> Opener:
    servers = [MemberServer() for _ in range(5)]
    names = [f"member-{number}" for number in range(5)]
    return lambda runtime: Quorum(runtime, [MemberStore(runtime, server) for server in servers], names)


STORES: dict[str, Callable[[Path], Opener]] = {
    "memory": memory,
    "sqlite": sqlite,
    "sqlite-polling": sqlite_polling,
    "quorum": quorum,
}
DRIVERS = ("threads", "asyncio")


class Rig:
    """One server, and clients of one driver.

    Tests are coroutines over `ask`, which awaits what the asyncio façade returns and passes on what the
    blocking one has done already: so one test serves both.
    """

    def __init__(self, driver: str, open_store: Opener) -> None:
        self.driver = driver
        self._open_store = open_store
        self._opened: list[Any] = []
        self._runtime: Runtime = ThreadRuntime()

    def run(self, test: Coroutine[Any, Any, None]) -> None:
        if self.driver == "threads":
            drive(self._tidily(test))
        else:
            self._runtime = AsyncRuntime()
            asyncio.run(self._tidily(test))

    def store(self) -> Store:
        """Open one more connection to the server."""
        store = self._open_store(self._runtime)
        self._opened.append(store)
        return store

    @property
    def has_line(self) -> bool:
        """Whether waiters stand in line, seen by all, rather than ask again and again."""
        return self._open_store(ThreadRuntime()).capabilities.fifo

    def client(self, **options: Any) -> Any:
        """Make one more client, as another process would be."""
        kind = DistributedLock if self.driver == "threads" else AsyncDistributedLock
        client = kind(self.store(), **options)
        self._opened.append(client)
        return client

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._runtime.spawn(work(), "test")

    async def until(self, condition: Callable[[], Any], seconds: float = 10.0) -> float:
        """Wait for a condition, and tell how long it took."""
        began = time.monotonic()
        while not await ask(condition()):
            assert time.monotonic() - began < seconds, "waited in vain"
            await self._runtime.sleep(0.002)
        return time.monotonic() - began

    async def _tidily(self, test: Coroutine[Any, Any, None]) -> None:
        try:
            await test
        finally:
            for opened in reversed(self._opened):
                await ask(opened.close())


async def ask(answer: Any) -> Any:
    return await answer if inspect.isawaitable(answer) else answer
