"""Be another process: scenarios.py SCENARIO URL NAME=VALUE, which is an option of the store.

What goes wrong shows as a traceback.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
import warnings
from contextlib import suppress
from typing import Any

from lockstead import (
    AsyncDistributedLock,
    ClosedError,
    DistributedLock,
    InvalidLockError,
    LockError,
    LockHandle,
    LockLostError,
)
from tests.harness.forks import in_child, succeeds

warnings.filterwarnings("ignore", category=DeprecationWarning, message=".*fork.*")
scenario, url, option = sys.argv[1:]
options: Any = dict([option.split("=", 1)])
kept: dict[str, object] = {}


def client(**more: Any) -> DistributedLock:
    return DistributedLock(url, **options, **more)


def async_client(ttl: float = 60) -> AsyncDistributedLock:
    return AsyncDistributedLock(url, ttl=ttl, **options)


def holds() -> None:
    """Hold until killed."""
    kept["handle"] = client(ttl=1.5).acquire("x")
    print("holds", flush=True)
    time.sleep(60)


def holds_a_block() -> None:
    """Hold in a block until a request ends it, and print how it ended."""
    try:
        with client(ttl=1.5).lock("x") as handle:
            print("holds", flush=True)
            sys.stdin.readline()
            print(handle.is_held, flush=True)
    except LockLostError:
        print("lost", flush=True)


def holds_a_block_in_asyncio() -> None:
    async def main() -> None:
        try:
            async with async_client(1.5).lock("x") as handle:
                print("holds", flush=True)
                reader = asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
                await asyncio.sleep(0.5)
                await reader
                print(handle.is_held, flush=True)
        except LockLostError:
            print("lost", flush=True)

    asyncio.run(main())


def blocks_its_loop() -> None:
    """Keep the loop from renewing for longer than the ttl."""

    async def main() -> None:
        try:
            async with async_client(0.8).lock("x"):
                time.sleep(1.5)  # noqa: ASYNC251
                await asyncio.sleep(5)
        except LockLostError:
            print("lost", flush=True)

    asyncio.run(main())


def waits_ten_times() -> None:
    """Wait in ten threads, and say which fences each was served with, and in which order."""
    locks = client(ttl=30)

    def use() -> None:
        with locks.lock("x", timeout=60) as handle:
            print(handle.fence, flush=True)

    threads = [threading.Thread(target=use) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


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
    """A thread waits, subscribed, while its process forks; parent and child then both wait and are both woken."""
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


def sockets() -> set[str]:
    """List what this process can talk through."""
    targets = set()
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            targets.add(os.readlink(f"/proc/self/fd/{number}"))
    return {target for target in targets if target.startswith("socket:")}


def forks_without_sharing_a_socket() -> None:
    before = sockets()
    locks, other = client(ttl=5), client(ttl=5)
    handle = other.acquire("x")
    thread = threading.Thread(target=lambda: locks.acquire("x").release(), daemon=True)
    thread.start()
    until_waiting(handle, 1)
    while len(sockets() - before) < 3:  # two that ask, one that listens
        time.sleep(0.002)

    is_over = threading.Event()

    def request() -> None:
        while not is_over.is_set():
            locks.is_locked("y")

    requesting = threading.Thread(target=request, daemon=True)  # on a connection that is in use when it is inherited
    requesting.start()
    for _ in range(50):
        succeeds(in_child(lambda: os._exit(7 if sockets() - before else 0)))
    is_over.set()
    requesting.join()
    handle.release()
    thread.join()
    locks.close()
    other.close()


def forks_in_asyncio() -> None:
    """A child of a loop has nothing of its parent's, whatever it does, and can have its own."""

    async def main() -> None:
        locks, other = async_client(1.5), async_client(1.5)
        handle = await locks.acquire("x")
        waiting = asyncio.create_task(other.acquire("x"))
        while (info := await locks.info("x")) is None or info.waiting != 1:  # noqa: ASYNC110 - on the server
            await asyncio.sleep(0.002)

        async def in_its_own_loop() -> None:
            assert not handle.is_held
            with suppress(LockError):
                await handle.release()
            with suppress(LockError):
                await locks.close()
            async with async_client() as own, own.lock("y"):
                assert await own.is_locked("x")

        succeeds(in_child(lambda: asyncio.run(in_its_own_loop())))
        await asyncio.sleep(1.7)
        handle.check()
        released = time.monotonic()
        await handle.release()
        await (await waiting).release()
        assert time.monotonic() - released < 0.5, "it was not woken"
        await locks.close()
        await other.close()

    asyncio.run(main())


def forks_after_its_sessions_have_ended() -> None:
    """What the loop has lost before needs no letting go, and keeps nothing else from being let go."""
    import psycopg  # noqa: PLC0415 - of the stores, only PostgreSQL has it

    logging.getLogger("lockstead").addHandler(logging.NullHandler())

    async def main() -> None:
        locks = async_client()
        handle = await locks.acquire("x")
        with psycopg.connect(url) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid, 15000) FROM pg_stat_activity"
                " WHERE application_name = current_setting('application_name') AND pid <> pg_backend_pid()"
            )
        await asyncio.sleep(0.05)  # the loop takes it in

        def is_free_of_it() -> None:
            assert not handle.is_held

        succeeds(in_child(is_free_of_it))
        handle.check()
        with suppress(LockError):
            await handle.release()
        await locks.close()

    asyncio.run(main())


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
