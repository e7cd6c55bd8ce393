"""Fork from a greenlet while others use the client. Usage: fork URL."""

from __future__ import annotations

import os
import sys
import traceback

import gevent

from lockstead import DistributedLock
from lockstead.core.runtime import drive
from tests.behaviour.greenlets.programs.hub import ticking
from tests.harness.conditions import DEADLINE, eventually

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
child = os.fork()
if not child:
    try:
        use_in_child()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)
with ticking():
    assert os.waitpid(child, 0)[1] == 0
    after = line()
    assert after[:2] == before, (
        f"the copy of the waiter in the child gave up the place of the parent: {before}, {after}"
    )
    held.check()
    held.release()
    waiter.get(timeout=DEADLINE).release()
print("done")
