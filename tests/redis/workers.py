"""Be another process: workers.py SCENARIO URL KEY_PREFIX. What goes wrong shows as a traceback."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress

from leasehold import AsyncDistributedLock, ClosedError, DistributedLock, InvalidLockError, LockHandle

warnings.filterwarnings("ignore", category=DeprecationWarning, message=".*fork.*")
scenario, url, key_prefix = sys.argv[1:]
kept: dict[str, object] = {}


def client(**options: object) -> DistributedLock:
    return DistributedLock(url, key_prefix=key_prefix, **options)  # type: ignore[arg-type]


def async_client() -> AsyncDistributedLock:
    return AsyncDistributedLock(url, key_prefix=key_prefix, ttl=60)


def in_child(work: Callable[[], object]) -> int:
    if pid := os.fork():
        return pid
    try:
        work()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def succeeds(pid: int) -> None:
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def holds() -> None:
    """Hold until killed."""
    kept["handle"] = client(ttl=1.5).acquire("x")
    print("holds", flush=True)
    time.sleep(60)


def waits() -> None:
    """Wait until killed."""
    client(ttl=1.5).acquire("x")


def ends_holding() -> None:
    kept["handles"] = [client(ttl=60).acquire(f"x-{number}") for number in range(3)]


def ends_holding_in_asyncio() -> None:
    async def main() -> None:
        locks = kept["locks"] = async_client()
        kept["handles"] = [await locks.acquire(f"x-{number}") for number in range(3)]

    asyncio.run(main())


def ends_waiting_in_a_daemon_thread() -> None:
    locks = kept["locks"] = client(ttl=60)
    handle = locks.acquire("x")

    def wait() -> None:
        with suppress(ClosedError):
            locks.acquire("x")

    threading.Thread(target=wait, daemon=True).start()
    while (info := handle.info()) is None or info.waiting != 1:
        time.sleep(0.002)
    kept["handle"] = handle


def ends_with_sys_exit_in_asyncio() -> None:
    async def main() -> None:
        async with async_client().lock("x"):
            sys.exit(3)

    asyncio.run(main())


def is_renewed(handle: LockHandle) -> None:
    time.sleep(1.3)
    handle.check()
    info = handle.info()
    assert info is not None
    assert info.fence == handle.fence


def forks_while_holding() -> None:
    locks = client(ttl=1)
    handle = locks.acquire("x")

    def child() -> None:
        assert not handle.is_held
        try:
            handle.check()
        except InvalidLockError as error:
            assert "parent" in str(error)  # noqa: PT017 - not under pytest here
        handle.release()
        assert locks.try_acquire("x") is None
        with locks.lock("y") as own:
            is_renewed(own)

    succeeds(in_child(child))
    is_renewed(handle)
    handle.release()


def forks_while_waiting() -> None:
    """A thread waits, and hears, while its process forks; parent and child then both wait and are both woken."""
    locks, other = client(ttl=5), client(ttl=5)
    first = other.acquire("x")
    served: list[float] = []

    def wait() -> None:
        with locks.lock("x"):
            served.append(time.monotonic())

    thread = threading.Thread(target=wait)
    thread.start()
    until_waiting(first, 1)
    began_reader, began_writer = os.pipe()

    def child() -> None:
        os.write(began_writer, b".")
        with locks.lock("x", timeout=10):
            pass

    pid = in_child(child)
    os.read(began_reader, 1)
    until_waiting(first, 2)
    released = time.monotonic()
    first.release()
    thread.join()
    succeeds(pid)
    assert served[0] - released < 0.5, "it was not woken"
    assert time.monotonic() - released < 1.5, "the child was not woken"


def until_waiting(handle: LockHandle, number: int) -> None:
    while (info := handle.info()) is None or info.waiting != number:
        time.sleep(0.002)


def forks_again_and_again_under_load() -> None:
    locks = client(ttl=5)
    stop = threading.Event()
    failures: list[BaseException] = []

    def use(number: int) -> None:
        try:
            while not stop.is_set():
                with locks.lock(f"x-{number % 2}"):
                    pass
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    held = locks.acquire("held")

    def child() -> None:
        with locks.lock("x-0"):
            assert locks.is_locked("held")

    for _ in range(25):
        succeeds(in_child(child))
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures, failures
    held.release()
    assert locks.inspect() == []


globals()[scenario]()
