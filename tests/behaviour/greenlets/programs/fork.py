"""Fork from a greenlet while others use the client. Usage: fork URL."""

from __future__ import annotations

import sys

import gevent

from lockstead import DistributedLock
from lockstead.core.runtime import drive
from tests.behaviour.greenlets.programs.hub import ticking
from tests.harness.conditions import DEADLINE, eventually
from tests.harness.forks import in_child, succeeds

locks = DistributedLock(sys.argv[1])


def use_in_child() -> None:
    with gevent.Timeout(DEADLINE):
        assert not held.is_held
        assert locks.try_acquire("held") is None
        first = locks.acquire("child", ttl=1.5)
        waiter = gevent.spawn(locks.acquire, "child", timeout=DEADLINE)
        gevent.sleep(2.0)
        first.check()
        first.release()
        waiter.get().release()


def line() -> list[str]:
    (line,) = drive(locks._engine.store.inspect("held", exact=True))
    return [place.owner for place in line.places]


held = locks.acquire("held", ttl=1.5)
waiter = gevent.spawn(locks.acquire, "held", timeout=DEADLINE)
eventually(lambda: len(line()) == 2, "a greenlet waits")
before = line()
child = in_child(use_in_child)
with ticking():
    succeeds(child)
    after = line()
    assert after[:2] == before, (
        f"the copy of the waiter in the child gave up the place of the parent: {before}, {after}"
    )
    held.check()
    held.release()
    waiter.get(timeout=DEADLINE).release()
print("done")
