"""Guards for what a lock protects: they refuse a holder that has been overtaken and does not know it.

For SQL there is ``check_fence`` beside the lease table. Here are the guard for what this process owns, the header by
which a fence travels over HTTP, and the check to put before a Lua script of your own.
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

__all__ = ["CHECK_FENCE_LUA", "FENCE_HEADER", "FenceGate", "Passage", "parse_fence"]

CHECK_FENCE_LUA = files("lockstead.stores").joinpath("redis", "scripts", "check_fence.lua").read_text("utf-8")
"""Lua that defines ``check_fence(key, fence)``. Put it before a script of your own, which writes only if it is true."""

FENCE_HEADER = "Lockstead-Fence"
"""The HTTP header that carries a fence, in decimal digits."""

MAX_FENCE = 2**63 - 1


def parse_fence(text: str | None) -> int:
    """Read a fence from a header or an environment variable. Raises InvalidInputError, also for None."""
    digits = (text or "").strip(" \t")
    if re.fullmatch("[0-9]{1,19}", digits):
        return _check_fence(int(digits))
    problem = f"{text[:40]!r} is no fence" if text else "there is no fence"
    msg = f"{problem}: send the decimal digits of handle.fence"
    raise InvalidInputError(msg)


class FenceGate:
    """Remember the newest fence of every resource, and refuse older ones. Thread-safe, for asyncio too.

    For a resource that only this process writes: a file, a device, what is behind an HTTP service. A gate remembers
    nothing over a restart: what must, keeps the fence with the data. Use one gate for the locks of one store, and one
    lock for one resource: the fences of two do not compare.

    A gate keeps some 200 bytes for every resource it has ever seen. With `most` it keeps so many, and forgets those not
    heard of for the longest; a resource it does not remember is then refused every fence below the greatest that was
    forgotten. So nothing stale gets in, but a holder may be refused that was not overtaken: one whose resource was not
    heard of while `most` others were, since it lined up for its lock. It has to acquire the lock again.
    """

    def __init__(self, *, most: int | None = None) -> None:
        self._most = sys.maxsize if most is None else check_count(most, "most", most=sys.maxsize)
        self._mutex = threading.Lock()
        self._newest: OrderedDict[str, int] = OrderedDict()
        self._forgotten = 0
        self._lines: dict[str, deque[_Entry]] = {}

    def check(self, resource: str, fence: int | Single) -> None:
        """Raise StaleFenceError if the resource has seen a newer fence, else remember this one. Never waits.

        What is written after it may still come too late: between the two another thread, or at an ``await`` another
        task, may check and write. `guard` does not let it.
        """
        number = _read_fence(fence)
        with self._mutex:
            self._see(_check_resource(resource), number)

    def guard(self, resource: str, fence: int | Single) -> Passage:
        """Check a fence and keep all other guards of the resource out for a block: ``with``, or ``async with``.

        They wait their turn; one that is overtaken meanwhile gets StaleFenceError instead. A fence counts as seen even
        if the block fails, since something may have been written.
        """
        return Passage(self, _check_resource(resource), _read_fence(fence))

    def _see(self, resource: str, fence: int) -> None:
        newest = self._newest.get(resource)
        if fence < (self._forgotten if newest is None else newest):
            raise _refusal(resource, fence, newest, self._forgotten)
        self._newest[resource] = fence
        self._newest.move_to_end(resource)
        if len(self._newest) > self._most:
            self._forgotten = max(self._forgotten, self._newest.popitem(last=False)[1])

    async def _enter(self, resource: str, fence: int, turn: _Entry) -> None:
        try:
            if not self._enqueue(resource, fence, turn):
                await turn.event.wait(inf)
                self.check(resource, fence)
        except BaseException:
            self._leave(resource, turn)
            raise

    def _enqueue(self, resource: str, fence: int, turn: _Entry) -> bool:
        """Tell whether it is this one's turn already."""
        with self._mutex:
            self._see(resource, fence)
            line = self._lines.setdefault(resource, deque())
            if turn.blocks and any(other.thread == turn.thread for other in line):
                msg = f"this thread would wait for its own guard of {resource!r}: in asyncio, use async with"
                raise LockError(msg, name=resource)
            if turn.task and any(other.task is turn.task for other in line):
                msg = f"this task would wait for its own guard of {resource!r}: one block is enough for all it writes"
                raise LockError(msg, name=resource)
            line.append(turn)
            return len(line) == 1

    def _leave(self, resource: str, turn: _Entry | None = None) -> None:
        """Give up a turn that may not have come yet, or the present one."""
        with self._mutex:
            line = self._lines.get(resource)
            if not line:
                return
            if turn is None or turn is line[0]:
                line.popleft()
                if line:
                    line[0].event.ring()
                else:
                    del self._lines[resource]
            elif turn in line:
                line.remove(turn)


class Passage:
    """What `FenceGate.guard` makes."""

    def __init__(self, gate: FenceGate, resource: str, fence: int) -> None:
        self._gate = gate
        self._resource = resource
        self._fence = fence

    def __enter__(self) -> None:
        turn = _Entry(ThreadRuntime().event(), threading.get_ident(), _current_task(), blocks=True)
        drive(self._gate._enter(self._resource, self._fence, turn))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._gate._leave(self._resource)

    async def __aenter__(self) -> None:
        turn = _Entry(AsyncRuntime().event(), threading.get_ident(), _current_task(), blocks=False)
        await self._gate._enter(self._resource, self._fence, turn)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._gate._leave(self._resource)


@dataclass(frozen=True, slots=True, eq=False)
class _Entry:
    """A place in the line for a resource, whose first is writing."""

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


def _refusal(resource: str, fence: int, newest: int | None, forgotten: int) -> StaleFenceError:
    if newest is None:
        newest = forgotten
        problem = f"may be stale: what {resource!r} has seen is forgotten, as is all below fence {forgotten}"
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
        msg = f"{fence.name!r} is shared, and the fences of those who share it say nothing: use an exclusive lock"
        raise InvalidInputError(msg, name=fence.name)
    return fence.fence


def _check_fence(fence: int) -> int:
    if isinstance(fence, int) and not isinstance(fence, bool) and 0 < fence <= MAX_FENCE:
        return fence
    msg = f"{fence!r:.40} is no fence: pass the handle of one name, or its fence"
    raise InvalidInputError(msg)


def _check_resource(resource: str) -> str:
    if isinstance(resource, str) and resource:
        return resource
    msg = f"a resource needs a name, a string that is not empty; got {resource!r:.40}"
    raise InvalidInputError(msg)
