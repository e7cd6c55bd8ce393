"""For threads: how many may ask a server at the same time."""

from __future__ import annotations

import threading
from collections import deque

from lockstead.core import lifecycle


class Turn:
    """One thread's turn. An interrupt never comes between a turn's being given and its being known to be ours.

    It may come before the end of a `with` block has begun; where that matters, the end is tried once more.
    """

    __slots__ = ("_patience", "_slots", "is_ours", "latch")

    def __init__(self, turns: Slots, patience: float) -> None:
        self.is_ours = False
        self.latch: threading.Lock | None = None
        self._slots = turns
        self._patience = patience

    def begin(self) -> None:
        self._slots.begin(self, self._patience)

    def end(self) -> None:
        """Let the next have it. Safe to repeat."""
        self._slots.end(self)

    def __enter__(self) -> None:
        self.begin()

    def __exit__(self, *error: object) -> None:
        self.end()


class Slots:
    """So many at a time, in the order in which they came.

    Whoever has waited long enough goes ahead all the same, and so does one more from then on: those before him may be
    stuck, and must not hold up everybody. When they are done, it is as many as before.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._reset()
        lifecycle.at_fork(self, in_child="_reset")

    def _reset(self) -> None:
        self._mutex = threading.RLock()  # a signal handler may ask, too
        self._free = self._most
        self._line: deque[Turn] = deque()

    def take(self, patience: float) -> Turn:
        """Make a turn, to be waited for at the beginning of a block."""
        return Turn(self, patience)

    def begin(self, turn: Turn, patience: float) -> None:
        with self._mutex:
            if self._free:
                self._free, turn.is_ours = self._free - 1, True
                return
            latch = turn.latch = threading.Lock()
            latch.acquire()
            self._line.append(turn)
        latch.acquire(timeout=patience)
        with self._mutex:
            if turn in self._line:
                self._line.remove(turn)
            turn.is_ours = True

    def end(self, turn: Turn) -> None:
        """End a turn, or the wait for one. Safe to repeat."""
        with self._mutex:
            if turn in self._line:
                self._line.remove(turn)
            if not turn.is_ours:
                return
            if self._line:
                successor = self._line[0]
                successor.is_ours, turn.is_ours = True, False
                self._line.popleft()
                assert successor.latch is not None
                successor.latch.release()
            else:
                self._free, turn.is_ours = min(self._free + 1, self._most), False
