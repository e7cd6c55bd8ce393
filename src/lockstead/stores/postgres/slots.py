"""For threads: a limit on the concurrent requests to a server."""

from __future__ import annotations

import threading
from collections import deque

from lockstead.core import lifecycle


class Slot:
    """One thread's slot. Whatever is interrupted, `release` can tell whether the slot was acquired.

    An interrupt may come before `__exit__` has begun; where that matters, the caller releases once more.
    """

    __slots__ = ("_slots", "_timeout", "is_acquired", "wakeup")

    def __init__(self, slots: Slots, timeout: float) -> None:
        self.is_acquired = False
        self.wakeup: threading.Lock | None = None
        self._slots = slots
        self._timeout = timeout

    def acquire(self) -> None:
        self._slots.acquire(self, self._timeout)

    def release(self) -> None:
        """Hand the slot to the next thread in the queue. Safe to repeat."""
        self._slots.release(self)

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()


class Slots:
    """A limited number of slots, handed out first come, first served.

    Not promised: that the limit is never exceeded. A thread whose timeout is over proceeds without a free slot, and
    from then on one more may run: those before it may be stuck, and must not block every thread. When they release, the
    limit is as before.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._reset()
        lifecycle.at_fork(self, in_child="_reset")

    def _reset(self) -> None:
        self._mutex = threading.RLock()  # a signal handler may interrupt its owner, and need a slot
        self._free = self._limit
        self._queue: deque[Slot] = deque()

    def slot(self, timeout: float) -> Slot:
        """Make a slot, to be acquired by `with` or `acquire`."""
        return Slot(self, timeout)

    def acquire(self, slot: Slot, timeout: float) -> None:
        with self._mutex:
            if self._free:
                self._free, slot.is_acquired = self._free - 1, True
                return
            wakeup = slot.wakeup = threading.Lock()
            wakeup.acquire()
            self._queue.append(slot)
        wakeup.acquire(timeout=timeout)
        with self._mutex:
            if slot in self._queue:
                self._queue.remove(slot)
            slot.is_acquired = True

    def release(self, slot: Slot) -> None:
        """Release a slot, or stop waiting for it. Safe to repeat."""
        with self._mutex:
            if slot in self._queue:
                self._queue.remove(slot)
            if not slot.is_acquired:
                return
            if self._queue:
                successor = self._queue[0]
                successor.is_acquired, slot.is_acquired = True, False
                self._queue.popleft()
                assert successor.wakeup is not None
                successor.wakeup.release()
            else:
                self._free, slot.is_acquired = min(self._free + 1, self._limit), False
