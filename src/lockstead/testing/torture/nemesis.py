"""The nemesis: injects random faults into the store and its clients, with pauses in which both may recover."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from random import Random
from typing import Protocol

from lockstead.runtimes import clock
from lockstead.testing.torture.arena import LONG, PAUSE, Arena, Fault
from lockstead.testing.torture.history import KILL, Recorder

STORM = (1, 4)
"""How many faults follow each other closely."""
LULL = (0.0, 0.7)
"""Seconds between the beginnings of two of them."""
CALM = (0.5, 4.0)
"""Seconds without faults: long enough to recover from some, and too short to recover from others."""


class Clients(Protocol):
    """The client processes that faults are injected into. A name belongs to one process: its replacement has another.

    A call for a process that is gone does nothing.
    """

    def names(self) -> list[str]:
        """List the running ones."""

    def kill(self, name: str) -> None:
        """Kill it, and return when it is dead."""

    def pause(self, name: str) -> None:
        """Stop it, and return when all its threads are stopped."""

    def resume(self, name: str) -> None: ...

    def inject(self, name: str, what: str) -> None:
        """Have the client carry out a fault, and return when it has ended."""


class Nemesis:
    """Draws faults from a shuffled deck, so that every kind is drawn once before any is drawn twice.

    The seed decides which faults are injected; their times depend on the machine. All have ended when `run` returns.
    """

    def __init__(self, arena: Arena, clients: Clients, recorder: Recorder, chance: Random) -> None:
        self.done: Counter[str] = Counter()
        """How many faults there were of each kind."""
        self._arena = arena
        self._clients = clients
        self._recorder = recorder
        self._chance = chance
        self._store_kinds = _Deck(sorted(arena.faults), chance)
        self._client_kinds = _Deck(sorted(arena.client_faults), chance)
        # The more kinds of store faults there are, the more often one is drawn.
        self._share = len(arena.faults) / max(len(arena.faults) + 2 * len(arena.client_faults), 1)
        self._room = threading.BoundedSemaphore(arena.at_once)
        self._targets: set[str] = set()
        self._over = threading.Event()

    def run(self, until: float) -> None:
        """Inject faults until then, on the history's clock, or until it is stopped.

        Raises the error of a fault that could not be begun or ended.
        """
        with ThreadPoolExecutor(thread_name_prefix="fault") as pool:
            while not self._over.is_set() and clock.now() < until:
                storm = [future for _ in range(self._chance.randint(*STORM)) for future in self._begin(pool, until)]
                wait(storm)
                for future in storm:
                    future.result()
                self._pass(self._chance.uniform(*CALM), until)

    def stop(self) -> None:
        """Begin no more faults, and end those that last."""
        self._over.set()

    def _begin(self, pool: ThreadPoolExecutor, until: float) -> Iterator[Future[None]]:
        """Begin one fault in its own thread, unless no client is left for it."""
        if self._chance.random() < self._share:
            fault = self._arena.faults[self._store_kinds.draw()]
            self._room.acquire()
            yield pool.submit(self._harm, fault, self._chance.randrange(2**32), until, self._room.release)
        elif self._arena.client_faults and (unaffected := sorted({*self._clients.names()} - self._targets)):
            kind, name = self._client_kinds.draw(), self._chance.choice(unaffected)
            self._targets.add(name)
            fault = self._on_client(kind, name)
            yield pool.submit(
                self._harm, fault, self._chance.randrange(2**32), until, lambda: self._targets.discard(name)
            )
        self._pass(self._chance.uniform(*LULL), until)

    def _harm(self, fault: Fault, seed: int, until: float, done: Callable[[], None]) -> None:
        chance = Random(seed)
        try:
            number = self._recorder.fault(fault.kind, fault.target)
            with fault.harm(chance):
                self.done[fault.kind] += 1
                self._pass(chance.uniform(*fault.seconds), until)
            self._recorder.healed(number)
        finally:
            done()

    def _on_client(self, kind: str, name: str) -> Fault:
        @contextmanager
        def killed(chance: Random) -> Iterator[None]:
            self._clients.kill(name)
            yield

        @contextmanager
        def paused(chance: Random) -> Iterator[None]:
            self._clients.pause(name)
            try:
                yield
            finally:
                self._clients.resume(name)

        @contextmanager
        def injected(chance: Random) -> Iterator[None]:
            self._clients.inject(name, kind)
            yield

        if kind == KILL:
            return Fault(kind=kind, target=name, harm=killed, seconds=(0.0, 0.0))
        if kind == PAUSE:
            return Fault(kind=kind, target=name, harm=paused, seconds=(0.05, LONG))
        return Fault(kind=kind, target=name, harm=injected, seconds=(0.0, 0.0))

    def _pass(self, seconds: float, until: float) -> None:
        self._over.wait(max(0.0, min(seconds, until - clock.now())))


class _Deck:
    """Draws every card once in random order, then again in another order."""

    def __init__(self, cards: Sequence[str], chance: Random) -> None:
        self._cards = cards
        self._chance = chance
        self._left: deque[str] = deque()

    def draw(self) -> str:
        if not self._left:
            self._left.extend(self._chance.sample(self._cards, len(self._cards)))
        return self._left.popleft()
