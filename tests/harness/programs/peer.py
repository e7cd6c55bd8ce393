"""Another process with a client of its own, which takes a request per line: [verb, arguments, options]."""

import json
import sys
import time

from lockstead import DistributedLock, LockError, LockHandle
from lockstead.runtimes.threads import ThreadRuntime
from lockstead.stores.sqlite.store import SqliteStore


def now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def reply(**answer: object) -> None:
    print(json.dumps(answer | {"at": now()}), flush=True)


def state_of(handle: LockHandle) -> dict[str, object]:
    held, lost = handle.is_held, handle.lost.is_set()
    try:
        handle.check()
    except LockError as error:
        return {"held": held, "lost": lost, "check": type(error).__name__}
    return {"held": held, "lost": lost, "check": None, "remaining": handle.remaining}


def serve(locks: DistributedLock, handle: LockHandle | None = None) -> None:
    """Do what is asked until "end"."""
    for line in sys.stdin:
        verb, args, options = json.loads(line)
        if verb == "end":
            return
        try:
            if verb == "acquire":
                handle = locks.acquire(*args, **options)
                handle.lost  # noqa: B018 - from now on its loss is watched for
                reply(fence=handle.fence, holder_id=handle.holder_id)
            elif verb == "with":
                with locks.lock(*args, **options) as entered:
                    reply(fence=entered.fence)
                    serve(locks, entered)
                reply(error=None)
            elif verb == "state":
                assert handle is not None
                reply(**state_of(handle))
            elif verb == "release":
                assert handle is not None
                handle.release()
                reply(error=None)
        except LockError as error:
            reply(error=type(error).__name__)


path, *flags = sys.argv[1:]
store = SqliteStore(ThreadRuntime(), path, push="--poll" not in flags)
with DistributedLock(store) as locks:
    reply(ready=True)
    serve(locks)
