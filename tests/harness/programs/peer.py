"""Another process with a client of its own, which takes a request per line: [verb, arguments, options]."""

import ctypes
import json
import os
import socket
import sys
import time

from lockstead import DistributedLock, LockError, LockHandle
from lockstead.core import timing
from lockstead.runtimes.threads import ThreadRuntime
from lockstead.stores.sqlite import liveness
from lockstead.stores.sqlite.store import SqliteStore
from tests.harness.forks import in_child, succeeds


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
            elif verb == "fork":
                fork_and_wait()
                reply(error=None)
            elif verb == "fork without hooks":
                fork_without_hooks()
                reply(error=None)
            elif verb == "fork a child that ends":
                succeeds(in_child(locks.close))
                reply(error=None)
            elif verb == "refuse datagrams":
                assert store._notify_socket._socket is not None
                store._notify_socket._socket.shutdown(socket.SHUT_RDWR)
                store._notify_socket._socket.close()
                reply(error=None)
            elif verb == "exec":
                os.execvp("sleep", ["sleep", "60"])
            elif verb == "release":
                assert handle is not None
                handle.release()
                reply(error=None)
        except LockError as error:
            reply(error=type(error).__name__)


def fork_and_wait() -> None:
    """Leave a child that does nothing, and outlives this process for a while."""
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)


def fork_without_hooks() -> None:
    """The same as code in C would do it: Python does not notice, and the child keeps every descriptor."""
    if ctypes.CDLL(None).fork() == 0:
        time.sleep(60)
        os._exit(0)


path, *flags = sys.argv[1:]
if "--unproven" in flags:  # as on a network file system
    liveness.LOCAL_FILE_SYSTEMS.clear()
if "--patient" in flags:  # its own renewals do not show it for long that the line has moved
    timing.HEARTBEAT = 60.0
store = SqliteStore(ThreadRuntime(), path, push="--poll" not in flags)
with DistributedLock(store) as locks:
    reply(ready=True)
    serve(locks)
