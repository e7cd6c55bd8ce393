"""A process whose client is interrupted at random: SCENARIO URL. It ends with a traceback if anything is wrong."""

import faulthandler
import logging
import os
import random
import signal
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress

from lockstead import DistributedLock, LockLostError, NestedCallError

scenario, url = sys.argv[1:]
chance = random.Random(int(os.environ["LOCKSTEAD_SEED"]))
TIMES = int(os.environ.get("LOCKSTEAD_INTERRUPTS") or 40)
"""How often to interrupt."""
HANGS = 10.0
LONGEST = 0.004
"""Within how many seconds the signal comes: as long as a few uses last."""
warnings.simplefilter("ignore")  # of coroutines that an interrupt kept from being awaited
logging.disable()


class Interrupted(BaseException):
    pass


def alarm(handler: Callable[..., object]) -> None:
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.0001, LONGEST))


def interrupted() -> None:
    """Survive an exception from anywhere, again and again: the lock would be in the way for two minutes."""

    came: list[int] = []

    def interrupt(number: int, frame: object) -> None:
        came.append(number)
        raise Interrupted

    locks = DistributedLock(url, ttl=120)
    others = DistributedLock(url, ttl=120)
    others.acquire("job", timeout=5).release()  # Redlock members whose admission is interrupted settle for 2.5 s
    for _ in range(TIMES):
        faulthandler.dump_traceback_later(HANGS, exit=True)
        came.clear()
        with suppress(Interrupted):
            alarm(interrupt)
            while not came:  # Python swallows what is raised in a finalizer
                with locks.lock("job"):
                    pass
        for client in (others, locks):
            client.acquire("job", timeout=5).release()
        faulthandler.cancel_dump_traceback_later()
    locks.close()
    others.close()


def handling() -> None:
    """Do anything from a handler that interrupts the use of the same client."""
    locks = DistributedLock(url, ttl=120)
    others = DistributedLock(url, ttl=120)
    for _ in range(TIMES):
        handled: list[str] = []
        action = chance.choice(["release", "release_all", "is_locked", "try_acquire"])
        kept = locks.acquire("kept", timeout=5)

        def handle(*_: object, action: str = action, handled: list[str] = handled, kept=kept) -> None:
            if action == "release":
                kept.release()
            elif action == "release_all":
                locks.release_all()
            elif action == "is_locked":
                with suppress(NestedCallError):
                    assert locks.is_locked("kept")
            else:
                with suppress(NestedCallError):
                    if handle := locks.try_acquire("one more"):
                        handle.release()
            handled.append(action)

        faulthandler.dump_traceback_later(HANGS, exit=True)
        alarm(handle)
        while not handled:
            with suppress(LockLostError), locks.lock("job", timeout=5):
                pass
        kept.release()
        for name in ("kept", "job", "one more"):
            others.acquire(name, timeout=5).release()
        faulthandler.cancel_dump_traceback_later()
    locks.close()
    others.close()


def terminated() -> None:
    """Fork children that close their client on SIGTERM, and look at what they leave."""
    for _ in range(max(TIMES // 10, 5)):
        delay = chance.uniform(0.0, 2 * LONGEST)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            child_of_ours(writer)
        os.close(writer)
        assert os.read(reader, 1) == b"!"
        time.sleep(delay)  # not for luck: the moment of the signal is what chance chooses
        os.kill(child, signal.SIGTERM)
        until = time.monotonic() + HANGS
        while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
            if time.monotonic() > until:
                os.kill(child, signal.SIGABRT)  # for its traceback
                os.waitpid(child, 0)
                sys.exit(f"hung after {delay} s")
            time.sleep(0.001)
        os.close(reader)
        assert ended[1] == 0, f"it ended with {ended[1]} after {delay} s"
        with DistributedLock(url, ttl=120) as locks:
            for name in ("kept", "job"):
                handle = locks.try_acquire(name)
                assert handle is not None, f"{name} is not free after {delay} s"
                handle.release()


def child_of_ours(ready: int) -> None:
    faulthandler.enable()
    locks = DistributedLock(url, ttl=120)

    def end(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        locks.close()
        sys.exit()

    signal.signal(signal.SIGTERM, end)
    kept = locks.acquire("kept", timeout=5)
    os.write(ready, b"!")
    while kept:
        with locks.lock("job"):
            pass


globals()[scenario]()
