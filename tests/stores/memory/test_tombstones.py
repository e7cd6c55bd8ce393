"""Tombstones in memory: no more of them than still count, at a cost that grows with their number."""

from __future__ import annotations

import time

from lockstead.core.model import Ask, Refusal
from lockstead.core.timing import LATE_REQUEST_WINDOW
from lockstead.stores.memory import MemoryServer

STORM = 3000


def test_in_memory_expired_tombstones_are_removed_by_the_next_use_of_any_name() -> None:
    now = 0.0
    server = MemoryServer(clock=lambda: now)
    server.join(Ask("held", "me/1", 3600.0, 3.0))
    for number in range(STORM):
        server.join(Ask(f"job:{number}", f"gone/{number}", 30.0, 3.0))
        server.leave(f"job:{number}", f"gone/{number}", LATE_REQUEST_WINDOW)
    assert server.size() == STORM + 1
    now += LATE_REQUEST_WINDOW + 1
    server.join(Ask("y", "me/2", 30.0, 3.0))
    assert server.size() == 2


def test_in_memory_the_release_of_the_last_place_keeps_the_tombstones_of_its_name() -> None:
    server = MemoryServer(clock=lambda: 0.0)
    server.leave("x", "late/1", LATE_REQUEST_WINDOW)
    server.join(Ask("x", "me/1", 30.0, 3.0))
    assert server.leave("x", "me/1", 0.0) == (True, [])
    late, _ = server.join(Ask("x", "late/1", 30.0, 3.0))
    assert isinstance(late, Refusal)


def test_in_memory_the_cost_of_tombstones_grows_with_their_number() -> None:
    """The time it takes grows with the number of tombstones, not with its square."""
    now = 0.0
    server = MemoryServer(clock=lambda: now)
    took = []
    for size in (STORM, 4 * STORM):
        began = time.process_time()
        for number in range(size):
            server.leave("x", f"gone/{size}/{number}", LATE_REQUEST_WINDOW)
        took.append(time.process_time() - began)
    assert took[1] < 10 * took[0]
    late, _ = server.join(Ask("x", f"gone/{STORM}/0", 30.0, 3.0))
    assert isinstance(late, Refusal)
    server.leave("x", "long/1", 10 * LATE_REQUEST_WINDOW)
    now += LATE_REQUEST_WINDOW + 1
    for number in range(STORM):
        server.leave("x", f"late/{number}", LATE_REQUEST_WINDOW / 2)
    assert len(server._lines["x"]._tombstones) == STORM + 1
    now += LATE_REQUEST_WINDOW
    for number in range(3 * STORM):
        server.leave("x", f"later/{number}", LATE_REQUEST_WINDOW)
    assert len(server._lines["x"]._tombstones) == 3 * STORM + 1, "those behind one that lasts longer are removed too"
    now += 10 * LATE_REQUEST_WINDOW
    server.join(Ask("y", "me/1", 30.0, 3.0))
    assert server.size() == 1
