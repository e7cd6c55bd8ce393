"""Another process with a client of its own: advisory.py URL DRIVER; a request per line: [verb, arguments, {}]."""

import asyncio
import inspect
import json
import os
import sys
import time
from contextlib import suppress
from typing import Any

from lockstead import AsyncDistributedLock, DistributedLock, LockError


async def ask(answer: Any) -> Any:
    return await answer if inspect.isawaitable(answer) else answer


def reply(**answer: object) -> None:
    print(json.dumps(answer), flush=True)


async def hand_over(locks: Any, name: str, times: int, journal: str) -> None:
    """Write down the fence of every hold, while holding."""
    with open(journal, "a") as log:  # noqa: ASYNC230
        for _ in range(times):
            handle = await ask(locks.acquire(name, timeout=30))
            log.write(f"{handle.fence}\n")
            log.flush()
            await ask(handle.release())


def fork(how: str) -> int:
    """Fork a child that ends at once, by an exit of this kind, or runs on until it is killed."""
    if pid := os.fork():
        if how != "live":
            assert os.waitpid(pid, 0)[1] == 0
        return pid
    if how == "exit":
        sys.exit()
    while how == "live":
        time.sleep(60)
    os._exit(0)


async def serve(locks: Any) -> None:
    handle: Any = None
    for line in sys.stdin:
        verb, args, options = json.loads(line)
        try:
            if verb == "acquire":
                handle = await ask(locks.acquire(*args, **options))
                reply(fence=handle.fence, holder_id=handle.holder_id)
            elif verb == "state":
                reply(held=handle.is_held, lost=handle.lost.is_set())
            elif verb == "hand_over":
                await hand_over(locks, *args)
                reply(error=None)
            elif verb == "fork":
                reply(pid=fork(*args))
            elif verb == "extend":
                await ask(handle.extend(*args))
                reply(error=None)
            elif verb == "return":
                return
        except LockError as error:
            reply(error=str(error))


async def main() -> None:
    locks = AsyncDistributedLock(url)
    reply(ready=True)
    await serve(locks)


url, runtime_name = sys.argv[1:]
if runtime_name == "asyncio":
    asyncio.run(main())
else:
    client = DistributedLock(url)
    reply(ready=True)
    coroutine = serve(client)
    with suppress(StopIteration):
        coroutine.send(None)
