"""Steps of the clock, and fences that grow whatever is forgotten."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lockstead.core.model import Ask
from lockstead.core.runtime import drive
from lockstead.core.store import Store
from lockstead.runtimes.threads import ThreadRuntime
from lockstead.stores.memory import MemoryServer, MemoryStore
from lockstead.stores.sqlite.store import SqliteStore


class Clock:
    now = 1000.0
    microseconds = 0

    def read(self) -> float:
        return self.now

    def floor(self) -> int:
        return self.microseconds


def memory(clock: Clock, folder: Path) -> Callable[[], Store]:
    server = MemoryServer(clock.read, clock.floor)
    return lambda: MemoryStore(ThreadRuntime(), server)


def sqlite(clock: Clock, folder: Path) -> Callable[[], Store]:
    return lambda: SqliteStore(ThreadRuntime(), folder / "locks.db", clock=clock.read, floor=clock.floor)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=[memory, sqlite], ids=["memory", "sqlite"])
def open_store(request: pytest.FixtureRequest, clock: Clock, tmp_path: Path) -> Callable[[], Store]:
    opened: Callable[[], Store] = request.param(clock, tmp_path)
    return opened


def join(store: Store, owner: str, ttl: float = 10.0) -> Any:
    return drive(store.join(Ask("x", owner, ttl, 3.0, queue=False), 5.0))


def test_a_clock_set_back_does_not_let_dead_holders_hold_for_longer(open_store, clock: Clock) -> None:
    store = open_store()
    join(store, "dead/1")
    clock.now -= 600.0
    assert join(store, "alice/1").recheck == pytest.approx(10.0, abs=1.1)
    clock.now += 11.5
    assert join(store, "alice/1").held
    drive(store.close())


def test_a_clock_set_back_does_not_keep_tombstones_for_longer(open_store, clock: Clock) -> None:
    store = open_store()
    drive(store.leave("x", "late/1", 5.0, 10.0))
    clock.now -= 600.0
    join(store, "other/1", ttl=1.0)
    clock.now += 11.5
    assert join(store, "late/1").held
    drive(store.close())


def test_tickets_grow_even_if_the_floor_goes_back(open_store, clock: Clock) -> None:
    store = open_store()
    clock.microseconds = 5_000
    first = join(store, "a/1").ticket
    drive(store.leave("x", "a/1", 5.0))
    clock.microseconds = 17
    assert join(store, "b/1").ticket == first + 1
    drive(store.close())


def test_tickets_grow_past_the_floor_if_the_counter_is_lost(clock: Clock, tmp_path: Path) -> None:
    """A new file, or a new process's memory, starts where the wall clock is."""
    clock.microseconds = 5_000
    for opener in (memory, sqlite):
        store = opener(clock, tmp_path)()
        assert join(store, "a/1").ticket == 5_000
        drive(store.close())


def test_the_memory_store_drops_names_that_are_not_in_use(clock: Clock) -> None:
    server = MemoryServer(clock.read, clock.floor)
    for number in range(10_000):
        server.join(Ask(f"name-{number}", f"owner/{number}", 5.0, 3.0))
        clock.now += 0.1
    assert server.size() < 250
