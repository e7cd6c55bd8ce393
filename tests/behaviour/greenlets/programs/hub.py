"""What programs do with gevent's hub: watch that it is never blocked, and wait for conditions with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import gevent

from tests.harness.conditions import DEADLINE

AWAY = 0.3
"""How long the hub may be away: less than any wait that would block it, more than a busy machine keeps it."""


@contextmanager
def ticking() -> Iterator[None]:
    """Fail if the hub was blocked meanwhile: a greenlet that wants to run every 5 ms notes its longest gap."""
    longest = 0.0

    def tick() -> None:
        nonlocal longest
        last = time.monotonic()
        while True:
            gevent.sleep(0.005)
            now = time.monotonic()
            longest = max(longest, now - last)
            last = now

    ticker = gevent.spawn(tick)
    gevent.sleep(0.02)
    yield
    gevent.sleep(0.02)
    ticker.kill()
    print(f"the hub was away for at most {longest:.3f} s")
    assert longest < AWAY, f"the hub was blocked for {longest:.3f} s"


def run_all(parts: list[Callable[[], None]]) -> None:
    """Run parts of a scenario concurrently, to the end of all."""
    began = time.monotonic()
    greenlets = {gevent.spawn(part): part.__name__ for part in parts}
    gevent.joinall(list(greenlets), timeout=2 * DEADLINE, raise_error=True)
    late = [name for greenlet, name in greenlets.items() if not greenlet.dead]
    assert not late, f"still at it: {late}"
    print(f"all in {time.monotonic() - began:.1f} s")
