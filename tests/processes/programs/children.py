"""Start children by a library, which hold locks and lead at their end: children.py LIBRARY DATABASE WORK [late].

With `late`, only the children import lockstead.
"""

import asyncio
import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

library, database, work, *flags = sys.argv[1:]
if "late" not in flags:
    import lockstead

    lockstead.DistributedLock(f"sqlite:///{database}").acquire("parent").release()

warnings.filterwarnings("ignore", category=DeprecationWarning, message=".*fork.*")
kept: list[object] = []


def hold(database: str) -> None:
    from lockstead import DistributedLock  # noqa: PLC0415 - perhaps for the first time

    locks = DistributedLock(f"sqlite:///{database}", ttl=60)
    kept.append(locks.acquire("job"))


def hold_in_asyncio(database: str) -> None:
    from lockstead import AsyncDistributedLock  # noqa: PLC0415 - perhaps for the first time

    async def main() -> None:
        locks = AsyncDistributedLock(f"sqlite:///{database}", ttl=60)
        kept.append(await locks.acquire("job"))

    asyncio.run(main())


def lead(database: str) -> None:
    from lockstead import DistributedLock  # noqa: PLC0415 - perhaps for the first time

    locks, elected = DistributedLock(f"sqlite:///{database}", ttl=60), threading.Event()
    election = locks.election(
        "chief",
        on_elected=lambda _: elected.set(),
        on_lost=lambda leadership: print("lost", leadership.is_leader, locks.is_locked("chief"), flush=True),
    )
    election.start()
    kept.append(election)
    elected.wait()


def hold_in_a_thread(database: str) -> None:
    """Return while a thread goes on, which the process waits for."""
    from lockstead import DistributedLock  # noqa: PLC0415 - perhaps for the first time

    handle = DistributedLock(f"sqlite:///{database}", ttl=60).acquire("job")
    is_ending = threading.Event()
    multiprocessing.util.Finalize(None, is_ending.set, exitpriority=-1_000)

    def work() -> None:
        is_ending.wait()
        deadline = time.monotonic() + 0.3
        while time.monotonic() < deadline:
            handle.check()
        print("held to the end", flush=True)

    kept.append(handle)
    threading.Thread(target=work).start()


def by_multiprocessing(method: str) -> Callable[[Any], None]:
    def run(work: Any) -> None:
        child = multiprocessing.get_context(method).Process(target=work, args=(database,))  # type: ignore[attr-defined]
        child.start()
        child.join()
        assert child.exitcode == 0

    return run


def by_a_pool(work: Any) -> None:
    with multiprocessing.get_context("fork").Pool(1) as pool:
        pool.apply(work, (database,))
        pool.close()
        pool.join()


def by_billiard(work: Any) -> None:
    import billiard  # noqa: PLC0415 - only here

    child = billiard.Process(target=work, args=(database,))
    child.start()
    child.join()
    assert child.exitcode == 0


def by_celery(work: Any) -> None:
    """Run one task in a pool process of a worker, and shut the worker down."""
    from celery import Celery  # noqa: PLC0415 - only here
    from celery.signals import task_success  # noqa: PLC0415

    app = Celery(broker="memory://", backend="cache+memory://")
    app.conf.update(broker_connection_retry_on_startup=True, worker_redirect_stdouts=False)
    task = app.task(name="work", ignore_result=True)(work)
    task.delay(database)
    worker = app.Worker(pool="prefork", concurrency=1, loglevel="ERROR", quiet=True)

    def stop(**_: object) -> None:
        os.kill(os.getppid(), signal.SIGTERM)

    task_success.connect(stop, weak=False)
    worker.start()


if __name__ == "__main__":
    libraries = {method: by_multiprocessing(method) for method in ("fork", "forkserver", "spawn")}
    libraries |= {"pool": by_a_pool, "billiard": by_billiard, "celery": by_celery}
    libraries[library](globals()[work])
