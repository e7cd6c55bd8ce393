"""End in all the ways the tests ask for: ending.py SCENARIO DATABASE. None of them releases."""

import asyncio
import json
import os
import random
import signal
import sys
import threading

from lockstead import AsyncDistributedLock, AsyncLockHandle, DistributedLock, LockHandle

scenario, database = sys.argv[1:]
url = f"sqlite:///{database}"
kept: dict[str, object] = {}


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


def kept_by_a_global() -> None:
    locks = kept["locks"] = DistributedLock(url, ttl=60)
    kept["handles"] = [locks.acquire(f"job-{number}") for number in range(3)]


def kept_by_a_global_in_asyncio() -> None:
    async def main() -> None:
        locks = kept["locks"] = AsyncDistributedLock(url, ttl=60)
        kept["handles"] = [await locks.acquire(f"job-{number}") for number in range(3)]

    asyncio.run(main())


def only_the_handle_is_kept() -> None:
    kept["handle"] = DistributedLock(url, ttl=60).acquire("job")


def only_the_handle_is_kept_in_asyncio() -> None:
    async def main() -> AsyncLockHandle:
        return await AsyncDistributedLock(url, ttl=60).acquire("job")

    kept["handle"] = asyncio.run(main())


def kept_by_a_loop_that_was_only_closed() -> None:
    """Nothing has cancelled the task that keeps the lease."""
    locks = kept["locks"] = AsyncDistributedLock(url, ttl=60)
    loop = kept["loop"] = asyncio.new_event_loop()

    async def main() -> AsyncLockHandle:
        handle = await locks.acquire("job")
        await asyncio.sleep(0.05)  # the loop of the keeper waits
        return handle

    kept["handle"] = loop.run_until_complete(main())
    loop.close()


def kept_by_a_function_that_returned() -> None:
    locks = DistributedLock(url, ttl=60)
    handle = locks.acquire("job")
    assert handle.is_held


def kept_by_a_coroutine_that_returned() -> None:
    async def main() -> None:
        locks = AsyncDistributedLock(url, ttl=60)
        handle = await locks.acquire("job")
        assert handle.is_held

    asyncio.run(main())


def an_exception() -> None:
    handle: LockHandle = DistributedLock(url, ttl=60).acquire("job")
    msg = f"the program's own, with {handle}"
    raise RuntimeError(msg)


def an_exception_in_asyncio() -> None:
    async def main() -> None:
        handle = await AsyncDistributedLock(url, ttl=60).acquire("job")
        msg = f"the program's own, with {handle}"
        raise RuntimeError(msg)

    asyncio.run(main())


def sys_exit_inside_with() -> None:
    with DistributedLock(url, ttl=60).lock("job"):
        sys.exit(3)


def sys_exit_in_a_thread() -> None:
    """It ends the thread alone: the block is left, a handle acquired by hand is released when the process exits."""
    locks = kept["locks"] = DistributedLock(url, ttl=60)

    def end() -> None:
        kept["handle"] = locks.acquire("by hand")
        with locks.lock("block"):
            sys.exit(3)

    thread = threading.Thread(target=end)
    thread.start()
    thread.join()
    assert [info.name for info in locks.inspect()] == ["by hand"]


def sys_exit_inside_async_with() -> None:
    async def main() -> None:
        async with AsyncDistributedLock(url, ttl=60).lock("job"):
            sys.exit(3)

    asyncio.run(main())


def sys_exit_while_a_task_holds() -> None:
    async def main() -> None:
        locks = AsyncDistributedLock(url, ttl=60)

        async def hold() -> None:
            async with locks.lock("job"):
                await asyncio.sleep(60)

        task = asyncio.create_task(hold())
        while not await locks.is_locked("job"):  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.001)
        assert not task.done()
        sys.exit(3)

    asyncio.run(main())


def a_daemon_thread_waits() -> None:
    locks = kept["locks"] = DistributedLock(url, ttl=60)
    kept["handle"] = locks.acquire("job")
    threading.Thread(target=lambda: locks.acquire("job"), daemon=True).start()
    while (info := locks.info("job")) is None or info.waiting != 1:
        pass


def waiting() -> None:
    """Be interrupted in acquire()."""
    locks = DistributedLock(url, ttl=60)
    say(waiting=True)
    locks.acquire("job")


def waiting_in_asyncio() -> None:
    async def main() -> None:
        locks = AsyncDistributedLock(url, ttl=60)
        say(waiting=True)
        await locks.acquire("job")

    asyncio.run(main())


def busy() -> None:
    """Be interrupted anywhere."""
    locks = DistributedLock(url, ttl=60)
    say(busy=True)
    while True:
        with locks.lock("job"):
            pass


def interrupted_again_and_again() -> None:
    """Be interrupted hundreds of times, anywhere, and go on."""
    chance = random.Random(int(os.environ["LOCKSTEAD_SEED"]))
    locks = DistributedLock(url, ttl=1)
    for _ in range(1000):
        try:
            signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.0001, 0.002))
            while True:
                with locks.lock("job", timeout=5):
                    pass
        except KeyboardInterrupt:
            signal.setitimer(signal.ITIMER_REAL, 0)
    locks.acquire("job", timeout=5).release()


signal.signal(signal.SIGALRM, signal.default_int_handler)
globals()[scenario]()
