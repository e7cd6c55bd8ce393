"""End by a signal that releases first: terminated.py SCENARIO URL. Says when it may be sent, and then only waits."""

import asyncio
import os
import signal
import sys
import threading
import time
from typing import Any

from lockstead import AsyncDistributedLock, AsyncLeadership, DistributedLock, Leadership

scenario, url = sys.argv[1:]


def ready() -> None:
    print("ready", flush=True)


def sleep() -> None:
    while True:
        time.sleep(60)


def holds() -> None:
    locks = DistributedLock(url, ttl=60)
    locks.release_on(signal.SIGTERM)
    with locks.lock("job"):
        ready()
        sleep()


def does_not_ask_for_it() -> None:
    with DistributedLock(url, ttl=60).lock("job"):
        ready()
        sleep()


def waits() -> None:
    locks = DistributedLock(url, ttl=60)
    locks.release_on(signal.SIGTERM)
    ready()
    locks.acquire("taken")


def has_several_clients() -> None:
    clients = [DistributedLock(url, ttl=60) for _ in range(3)]
    for number, locks in enumerate(clients):
        locks.release_on(signal.SIGTERM, signal.SIGHUP)
        locks.acquire(f"job-{number}")

    async def main() -> None:
        ours = AsyncDistributedLock(url, ttl=60)
        ours.release_on(signal.SIGTERM)
        async with ours.lock("task"):
            ready()
            await asyncio.sleep(60)

    asyncio.run(main())


def threads_work() -> None:
    locks = DistributedLock(url, ttl=60)
    locks.release_on(signal.SIGTERM)

    def work(number: int) -> None:
        while True:
            with locks.lock(f"job-{number % 2}"):
                pass

    for number in range(4):
        threading.Thread(target=work, args=(number,)).start()
    ready()
    sleep()


def is_busy() -> None:
    """Be interrupted anywhere, mostly in the middle of a call."""
    locks = DistributedLock(url, ttl=60)
    locks.release_on(signal.SIGTERM)
    ready()
    while True:
        with locks.lock("outer"), locks.lock("inner"):
            pass


def leads() -> None:
    locks, elected = DistributedLock(url, ttl=60), threading.Event()
    locks.release_on(signal.SIGTERM)

    def on_lost(leadership: Leadership) -> None:
        print("lost", leadership.is_leader, locks.is_locked("chief"), flush=True)

    locks.election("chief", on_elected=lambda _: elected.set(), on_lost=on_lost).start()
    elected.wait()
    ready()
    sleep()


def leads_in_asyncio() -> None:
    async def main() -> None:
        locks, elected = AsyncDistributedLock(url, ttl=60), asyncio.Event()
        locks.release_on(signal.SIGTERM)

        async def on_lost(leadership: AsyncLeadership) -> None:
            await asyncio.sleep(0)
            print("lost", leadership.is_leader, await locks.is_locked("chief"), flush=True)

        locks.election("chief", on_elected=lambda _: elected.set(), on_lost=on_lost).start()
        await elected.wait()
        ready()
        await asyncio.sleep(60)

    asyncio.run(main())


async def hold_in_a_task() -> None:
    locks = AsyncDistributedLock(url, ttl=60)
    locks.release_on(signal.SIGTERM)
    async with locks.lock("job"):
        ready()
        await asyncio.sleep(60)


def holds_in_asyncio() -> None:
    asyncio.run(hold_in_a_task())


def holds_in_uvloop() -> None:
    import uvloop  # noqa: PLC0415 - only here

    uvloop.run(hold_in_a_task())


def holds_after_its_loop() -> None:
    """The loop is closed, but the handle is kept."""
    locks = AsyncDistributedLock(url, ttl=60)
    locks.release_on(signal.SIGTERM)

    async def main() -> Any:
        return await locks.acquire("job")

    handle = asyncio.run(main())
    assert handle.is_held
    ready()
    sleep()


def decides_itself() -> None:
    """A handler that was there before ends the work in order, under its lock."""
    locks = DistributedLock(url, ttl=60)
    stopped, stop = os.pipe()  # an Event would wait for itself if the signal arrived at the beginning of its wait
    signal.signal(signal.SIGTERM, lambda *_: os.write(stop, b"."))
    locks.release_on(signal.SIGTERM)
    with locks.lock("job") as handle:
        ready()
        os.read(stopped, 1)
        handle.check()
        print("held to the end", flush=True)


def raises_in_its_handler() -> None:
    locks = DistributedLock(url, ttl=60)
    locks.release_on(signal.SIGINT)
    try:
        with locks.lock("job") as handle:
            ready()
            sleep()
    except KeyboardInterrupt:
        print("interrupted, held:", handle.is_held, flush=True)
        raise


def ignores() -> None:
    locks = DistributedLock(url, ttl=60)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    locks.release_on(signal.SIGTERM)
    with locks.lock("job") as handle:
        ready()
        assert sys.stdin.readline()
        handle.check()
        print("held to the end", flush=True)


def is_terminated_by_multiprocessing() -> None:
    import multiprocessing  # noqa: PLC0415 - only here

    context = multiprocessing.get_context("fork")
    locks, holding = DistributedLock(url, ttl=60), context.Event()
    locks.release_on(signal.SIGTERM)

    def work() -> None:
        with locks.lock("job"):
            holding.set()
            sleep()

    child = context.Process(target=work)
    child.start()
    holding.wait()
    child.terminate()
    child.join()
    assert child.exitcode == -signal.SIGTERM
    ready()
    os.kill(os.getpid(), signal.SIGTERM)
    sleep()


globals()[scenario]()
