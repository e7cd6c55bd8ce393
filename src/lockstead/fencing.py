"""Fence checks on the receiving side: refuse a holder that has lost its lock and has not noticed.

For SQL there is ``check_fence`` beside the lease table. This module has the check for resources of this process, the
HTTP header that carries a fence, and the check to put before a Lua script of your own.
"""

from __future__ import annotations

import asyncio
import re
import sys
import threading
from collections import OrderedDict, deque
from dataclasses import dataclass
from importlib.resources import files
from math import inf
from types import TracebackType

from lockstead.core.checks import check_count
from lockstead.core.runtime import Event, drive
from lockstead.errors import InvalidInputError, LockError, StaleFenceError
from lockstead.primitives.handle import Single
from lockstead.runtimes.aio import AsyncRuntime
from lockstead.runtimes.threads import ThreadRuntime

__all__ = ["CHECK_FENCE_LUA", "FENCE_HEADER", "FenceCheck", "FenceGate", "parse_fence"]

CHECK_FENCE_LUA = files("lockstead.stores").joinpath("redis", "scripts", "check_fence.lua").read_text("utf-8")
"""Lua that defines ``check_fence(key, fence)``. Put it before a script of your own that writes only if it is true."""

FENCE_HEADER = "Lockstead-Fence"
"""The HTTP header that carries a fence, in decimal digits."""

MAX_FENCE = 2**63 - 1


def parse_fence(text: str | None) -> int:
    """Read a fence from a header or an environment variable. Raises InvalidInputError, also for None."""
    digits = (text or "").strip(" \t")
    if re.fullmatch("[0-9]{1,19}", digits):
        return _check_fence(int(digits))
    problem = f"{text[:40]!r} is not a fence" if text else "there is no fence"
    msg = f"{problem}: send the decimal digits of handle.fence"
    raise InvalidInputError(msg)


class FenceGate:
    """Remember the newest fence of every resource, and refuse older ones. Thread-safe, for asyncio too.

    For a resource that only this process writes: a file, a device, the data behind an HTTP service. A gate is empty
    after a restart; if that is not acceptable, store the fence with the data. Use one gate for the locks of one store,
    and one lock for one resource: fences of two locks cannot be compared.

    A gate keeps some 200 bytes for every resource it has ever seen. With `max_resources` it keeps that many, and drops
    the least recently used; for a resource that is not in it, it then refuses every fence below the largest dropped
    one. So no stale fence is accepted, but a current holder may be refused: one whose resource was not used while
    `max_resources` others were, since it joined the queue for its lock. It has to acquire the lock again.
    """

    def __init__(self, *, max_resources: int | None = None) -> None:
        self._max_resources = (
            sys.maxsize if max_resources is None else check_count(max_resources, "max_resources", most=sys.maxsize)
        )
        self._mutex = threading.Lock()
        self._newest: OrderedDict[str, int] = OrderedDict()
        self._largest_dropped = 0
        self._queues: dict[str, deque[_Entry]] = {}

    def check(self, resource: str, fence: int | Single) -> None:
        """Raise StaleFenceError if the resource has seen a newer fence, else record this one. Never waits.

        A write after this check may still be too late: in between, another thread, or at an ``await`` another task, may
        check and write. `checked` prevents that.
        """
        number = _read_fence(fence)
        with self._mutex:
            self._record(_check_resource(resource), number)

    def checked(self, resource: str, fence: int | Single) -> FenceCheck:
        """Check a fence and exclude all other checked blocks of the resource: ``with``, or ``async with``.

        The others wait in order; one whose fence is stale by then raises StaleFenceError. A fence counts as seen even
        if the block fails, since something may have been written.
        """
        return FenceCheck(self, _check_resource(resource), _read_fence(fence))

    def _record(self, resource: str, fence: int) -> None:
        newest = self._newest.get(resource)
        if fence < (self._largest_dropped if newest is None else newest):
            raise _refusal(resource, fence, newest, self._largest_dropped)
        self._newest[resource] = fence
        self._newest.move_to_end(resource)
        if len(self._newest) > self._max_resources:
            self._largest_dropped = max(self._largest_dropped, self._newest.popitem(last=False)[1])

    async def _enter(self, resource: str, fence: int, entry: _Entry) -> None:
        try:
            if not self._enqueue(resource, fence, entry):
                await entry.event.wait(inf)
                self.check(resource, fence)
        except BaseException:
            self._leave(resource, entry)
            raise

    def _enqueue(self, resource: str, fence: int, entry: _Entry) -> bool:
        """Record the fence and join the resource's queue; return whether it is empty but for this entry."""
        with self._mutex:
            self._record(resource, fence)
            queue = self._queues.setdefault(resource, deque())
            if entry.blocks and any(other.thread == entry.thread for other in queue):
                msg = f"this thread would wait for its own checked block of {resource!r}: in asyncio, use async with"
                raise LockError(msg, name=resource)
            if entry.task and any(other.task is entry.task for other in queue):
                msg = f"this task would wait for its own checked block of {resource!r}: one is enough for all it writes"
                raise LockError(msg, name=resource)
            queue.append(entry)
            return len(queue) == 1

    def _leave(self, resource: str, entry: _Entry | None = None) -> None:
        """Remove an entry, which may still wait, or by default the first; wake the next."""
        with self._mutex:
            queue = self._queues.get(resource)
            if not queue:
                return
            if entry is None or entry is queue[0]:
                queue.popleft()
                if queue:
                    queue[0].event.set()
                else:
                    del self._queues[resource]
            elif entry in queue:
                queue.remove(entry)


class FenceCheck:
    """The context manager that `FenceGate.checked` returns."""

    def __init__(self, gate: FenceGate, resource: str, fence: int) -> None:
        self._gate = gate
        self._resource = resource
        self._fence = fence

    def __enter__(self) -> None:
        entry = _Entry(ThreadRuntime().event(), threading.get_ident(), _current_task(), blocks=True)
        drive(self._gate._enter(self._resource, self._fence, entry))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._gate._leave(self._resource)

    async def __aenter__(self) -> None:
        entry = _Entry(AsyncRuntime().event(), threading.get_ident(), _current_task(), blocks=False)
        await self._gate._enter(self._resource, self._fence, entry)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._gate._leave(self._resource)


@dataclass(frozen=True, slots=True, eq=False)
class _Entry:
    """An entry in the queue for a resource; the first one may write."""

    event: Event
    thread: int
    task: object
    """None outside of asyncio."""
    blocks: bool


def _current_task() -> object:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def _refusal(resource: str, fence: int, newest: int | None, largest_dropped: int) -> StaleFenceError:
    if newest is None:
        newest = largest_dropped
        problem = f"may be stale: {resource!r} is not in this gate, which has dropped fences up to {largest_dropped}"
    else:
        problem = f"is stale: {resource!r} has seen fence {newest} already"
    return StaleFenceError(
        f"fence {fence} {problem}; write nothing, and acquire the lock again",
        name=resource,
        fence=fence,
        newest=newest,
    )


def _read_fence(fence: int | Single) -> int:
    if not isinstance(fence, Single):
        return _check_fence(fence)
    if not fence.is_exclusive:
        msg = f"{fence.name!r} is shared, and fences of shared holders are not ordered: use an exclusive lock"
        raise InvalidInputError(msg, name=fence.name)
    return fence.fence


def _check_fence(fence: int) -> int:
    if isinstance(fence, int) and not isinstance(fence, bool) and 0 < fence <= MAX_FENCE:
        return fence
    msg = f"{fence!r:.40} is not a fence: pass the handle of one name, or its fence"
    raise InvalidInputError(msg)


def _check_resource(resource: str) -> str:
    if isinstance(resource, str) and resource:
        return resource
    msg = f"a resource needs a name, a non-empty string; got {resource!r:.40}"
    raise InvalidInputError(msg)
