"""How many Python calls an uncontended join and leave take from a thread: what every acquisition costs its client."""

from __future__ import annotations

import sys
from collections.abc import Coroutine
from types import FrameType
from typing import Any, NamedTuple, TypeVar

from lockstead.core.model import Ask, Standing
from lockstead.core.runtime import drive
from lockstead.runtimes.threads import ThreadRuntime
from lockstead.stores import open_store
from tests.servers.redis import RedisServer

T = TypeVar("T")
MOST_CALLS = 9
"""Of each of the two: of a coroutine, a function or a method written in Python, our own or the standard library's."""
MOST_FRAMES = 3
"""On the stack at once: the store, the node, its connection."""


class Called(NamedTuple):
    depth: int
    name: str


def calls_of(step: Coroutine[Any, Any, T]) -> tuple[T, list[Called]]:
    """Run a step of the store, and return its result and all calls of Python functions in it."""
    calls: list[Called] = []
    outside = depth_of(sys._getframe()) + 1  # `drive` comes between

    def record(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            calls.append(Called(depth_of(frame) - outside, frame.f_code.co_qualname))

    sys.setprofile(record)
    try:
        result = drive(step)
    finally:
        sys.setprofile(None)
    return result, calls[1:]


def depth_of(frame: FrameType | None) -> int:
    depth = 0
    while frame is not None:
        depth, frame = depth + 1, frame.f_back
    return depth


def test_a_join_and_a_leave_take_few_python_calls_and_a_shallow_stack(
    fresh_server: RedisServer, key_prefix: str
) -> None:
    store = open_store(fresh_server.url, ThreadRuntime(), key_prefix=key_prefix)
    for number in (1, 2, 3):  # the first finds, checks and loads what the later ones need
        ask = Ask("x", f"me/{number}", 30.0, 3.0)
        standing, joining = calls_of(store.join(ask, 5.0))
        was_there, leaving = calls_of(store.leave("x", ask.owner, 5.0))
        assert isinstance(standing, Standing)
        assert standing.held
        assert was_there
    for step, calls in (("join", joining), ("leave", leaving)):
        print(f"{step}: {len(calls)} Python calls")
        for depth, name in calls:
            print(f"{'  ' * depth}{name}")
        assert calls[0].name == f"RedisStore.{step}"
        assert len(calls) <= MOST_CALLS
        assert max(call.depth for call in calls) <= MOST_FRAMES
    drive(store.close())
