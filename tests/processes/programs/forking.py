"""Fork in all the ways the tests ask for: forking.py SCENARIO DATABASE. What goes wrong shows as a traceback."""

import faulthandler
import multiprocessing
import os
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable

from lockstead import DistributedLock, InvalidLockError, LockHandle, LockLostError
from lockstead.stores.redis import store
from tests.harness.forks import in_child, succeeds

warnings.filterwarnings("ignore", category=DeprecationWarning, message=".*fork.*")
faulthandler.enable()  # a process that hangs is aborted, and shows where it hung

scenario, database = sys.argv[1:]
locks = DistributedLock(f"sqlite:///{database}", ttl=1.5)


def now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def until(moment: float) -> None:
    time.sleep(max(moment - now(), 0.0))


def outlives_its_ttl(handle: LockHandle) -> None:
    until(now() + 2.0)
    handle.check()
    info = locks.info(handle.name)
    assert info is not None
    assert info.fence == handle.fence


def inert() -> None:
    """The child's copy of a handle is worth nothing, and does nothing."""
    handle = locks.acquire("job")

    def child() -> None:
        assert not handle.is_held
        assert handle.remaining == 0
        for use in (handle.check, lambda: handle.extend(5)):
            try:
                use()
            except LockLostError:
                raise
            except InvalidLockError as error:
                assert "parent" in str(error)  # noqa: PT017 - not under pytest here
            else:
                msg = "an inherited handle let itself be used"
                raise AssertionError(msg)
        handle.release()
        handle.release()
        assert not handle.lost.is_set()
        assert locks.release_all() == 0

    succeeds(in_child(child))
    assert handle.is_held
    outlives_its_ttl(handle)
    handle.release()
    assert not locks.is_locked("job")


def inherited_with() -> None:
    """A `with` block that a fork leaves through the child releases nothing."""
    with locks.lock("job") as handle:
        pid = os.fork()
        if pid:
            succeeds(pid)
            outlives_its_ttl(handle)
    if not pid:
        os._exit(0)


def identity() -> None:
    """The child works on as a client of its own."""
    handle = locks.acquire("job")
    parents_id = locks.holder_id

    def child() -> None:
        assert locks.holder_id != parents_id
        assert f":{os.getpid()}:" in locks.holder_id
        assert locks.try_acquire("job") is None
        with locks.lock("other") as own:
            assert own.fence > handle.fence
            assert own.holder_id == locks.holder_id
            outlives_its_ttl(own)
            seen = {info.name: info.holder_id for info in locks.inspect()}
            assert seen == {"job": parents_id, "other": locks.holder_id}

    succeeds(in_child(child))
    assert locks.holder_id == parents_id
    handle.check()
    with locks.lock("other") as later:
        assert later.fence > handle.fence


def secrets() -> None:
    """What wakes a waiter of the parent must not be what wakes one of the child."""
    drawn = [store._secret("")]  # and others with it, for later
    readable, writable = os.pipe()
    succeeds(in_child(lambda: os.write(writable, b"".join(store._secret("") for _ in range(store.SECRETS_PER_DRAW)))))
    childs = os.read(readable, 1 << 16)
    drawn += [store._secret("") for _ in range(store.SECRETS_PER_DRAW)]
    assert len(set(drawn)) == len(drawn)
    assert not [secret for secret in drawn if secret in childs]


def waits_for_its_parent() -> None:
    """Parent and child stand in one line and wake one another."""
    handle = locks.acquire("job", ttl=5)
    delayed = os.pipe()

    def child() -> None:
        with locks.lock("job", ttl=5):
            os.write(delayed[1], repr(now()).encode())

    pid = in_child(child)
    while (info := locks.info("job")) is None or info.waiting != 1:
        time.sleep(0.005)
    left = now()
    handle.release()
    succeeds(pid)
    assert float(os.read(delayed[0], 100)) - left < 0.75, "it was not woken"


def _keeps_after(leave: Callable[[], None]) -> None:
    handle = locks.acquire("job")
    pid = os.fork()
    if not pid:
        leave()
    succeeds(pid)
    outlives_its_ttl(handle)


def child_exits_hard() -> None:
    _keeps_after(lambda: os._exit(0))


def child_exits() -> None:
    _keeps_after(sys.exit)


def child_leaves_its_own_behind() -> None:
    """What the child took itself goes with it; what its parent holds does not."""

    def leave() -> None:
        globals()["kept"] = locks.acquire("own", ttl=60)
        sys.exit()

    _keeps_after(leave)
    assert [info.name for info in locks.inspect()] == ["job"]


def grandchildren() -> None:
    handle = locks.acquire("job")

    def child() -> None:
        own = locks.acquire("child")

        def grandchild() -> None:
            assert not handle.is_held
            assert not own.is_held
            own.release()
            with locks.lock("grandchild"):
                assert len(locks.inspect()) == 3

        succeeds(in_child(grandchild))
        outlives_its_ttl(own)
        own.release()

    succeeds(in_child(child))
    handle.release()


def _square_under_lock(number: int) -> int:
    with locks.lock("pool", ttl=5):
        return number * number


def multiprocessing_fork() -> None:
    """A pool of forked processes uses the client it inherited. One that waits for a processor delays the others."""
    handle = locks.acquire("job", ttl=5)
    with multiprocessing.get_context("fork").Pool(4) as pool:
        assert pool.map(_square_under_lock, range(40), chunksize=1) == [n * n for n in range(40)]
    handle.check()
    handle.release()
    assert locks.inspect() == []


def _hammer(work: Callable[[int], None], forks: int, child: Callable[[], None]) -> None:
    """Fork again and again while other threads are at the store."""
    stop = threading.Event()
    errors: list[BaseException] = []

    def loop(thread: int) -> None:
        try:
            while not stop.is_set():
                work(thread)
        except BaseException as error:
            traceback.print_exc()
            errors.append(error)

    held = locks.acquire("held", ttl=5)
    threads = [threading.Thread(target=loop, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(forks):
            succeeds(in_child(child))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not errors
    held.check()
    held.release()
    assert locks.inspect() == []


def hammered() -> None:
    def work(thread: int) -> None:
        with locks.lock(f"name-{thread % 2}", ttl=5):
            pass

    def child() -> None:
        with locks.lock("name-0", ttl=5):
            assert locks.is_locked("held")

    _hammer(work, 60, child)


def hammered_with_new_clients() -> None:
    """Clients come and go in other threads while the process forks."""

    def work(thread: int) -> None:
        with DistributedLock(f"sqlite:///{database}", ttl=5) as mine:
            for _ in range(5):
                with mine.lock(f"name-{thread}"):
                    pass

    _hammer(work, 150, lambda: None)


globals()[scenario]()
