"""For threads: how many may ask a server at the same time."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from leasehold import _lifecycle


class Turns:
    """So many at a time, in the order in which they came.

    Whoever has waited long enough goes ahead all the same, and so does one more from then on: those before him may be
    stuck, and must not hold up everybody. When they are done, it is as many as before.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._start_afresh()
        _lifecycle.at_fork(self, in_child="_start_afresh")

    def _start_afresh(self) -> None:
        self._mutex = threading.Lock()
        self._free = self._most
        self._line: deque[threading.Lock] = deque()

    @contextmanager
    def take(self, patience: float) -> Iterator[None]:
        self._enter(patience)
        try:
            yield
        finally:
            self._leave()

    def _enter(self, patience: float) -> None:
        with self._mutex:
            if self._free:
                self._free -= 1
                return
            latch = threading.Lock()
            latch.acquire()
            self._line.append(latch)
        try:
            latch.acquire(timeout=patience)
        except BaseException:
            if not self._step_out(latch):
                self._leave()
            raise
        self._step_out(latch)

    def _step_out(self, latch: threading.Lock) -> bool:
        """Stand in line no longer; False for who has been given his turn."""
        with self._mutex:
            if latch not in self._line:
                return False
            self._line.remove(latch)
            return True

    def _leave(self) -> None:
        with self._mutex:
            if self._line:
                self._line.popleft().release()
            elif self._free < self._most:
                self._free += 1
