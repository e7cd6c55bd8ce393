"""How many Python calls an acquisition takes, and how deep they are nested: what a reader walks, and a processor."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

from lockstead import DistributedLock
from tests.servers.redis import RedisServer

MOST_CALLS = 36
MOST_FRAMES = 8


def walked(work: Callable[[], object]) -> tuple[list[str], int]:
    """Run work, and return the names of the functions it calls and the depth of the deepest frame below it."""
    names: list[str] = []
    depth = deepest = -1

    def profile(frame: FrameType, event: str, arg: object) -> None:
        nonlocal depth, deepest
        if event == "call":
            depth += 1
            deepest = max(deepest, depth)
            names.append(f"{'  ' * depth}{frame.f_code.co_qualname}")
        elif event == "return":
            depth -= 1

    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
    return names[1:], deepest


def test_a_block_on_redis_takes_few_calls_in_few_frames(redis_server: RedisServer) -> None:
    with DistributedLock(redis_server.url) as locks:

        def pair() -> None:
            with locks.lock("a"):
                pass

        for _ in range(3):
            pair()
        names, deepest = walked(pair)
    print(f"{len(names)} calls in {deepest} frames:", *names, sep="\n")
    assert len(names) <= MOST_CALLS
    assert deepest <= MOST_FRAMES
