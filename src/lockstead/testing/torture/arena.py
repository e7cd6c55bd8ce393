"""The arena: a store to torture, the faults that can be injected into it, and what it promises."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

from lockstead import DistributedLock, LockError
from lockstead.core.store import RateLimiting, Reserving, Store
from lockstead.testing.proxy import Direction, FaultProxy
from lockstead.testing.torture.checkers import Promises
from lockstead.testing.torture.history import KILL

PAUSE = "pause"
BLOCK_LOOP = "block loop"
FORK = "fork"
FORCE_RELEASE = "force release"
JUMP_CLOCK = "jump clock"
CLIENT_FAULTS = frozenset({KILL, PAUSE, BLOCK_LOOP, FORK, FORCE_RELEASE})
"""The faults of a client, or that a client carries out, on any store that outlives it. Stepping its clock needs
`Surroundings` that can."""

TTL = 2.0
LONG = 1.5 * TTL
"""Seconds: longer than any lease lasts without a renewal."""
AT_ONCE = (0.0, 0.1)
RECOVERY = 60.0
"""Seconds in which a store must answer after the last fault has ended; otherwise the run fails."""
WORKLOADS = frozenset(
    {
        "lock",
        "reentrant",
        "readwrite",
        "semaphore",
        "multi",
        "election",
        "background",
        "limiter",
        "register",
        "at_least",
        "singleton",
        "once",
    }
)

Harm = Callable[[Random], AbstractContextManager[None]]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One kind of fault. When its context ends, the fault has ended, and what it affected answers again."""

    kind: str
    """Its name in the history. Never the name of a client's fault."""
    harm: Harm
    seconds: tuple[float, float] = (0.3, LONG)
    """Between these, how many seconds it lasts; its beginning and end take extra time."""
    target: str = ""


PROMISES = Promises(
    # "The first check of a handle after a process resumes reports the loss": not before.
    may_stop_clients=(KILL, PAUSE, BLOCK_LOOP),
    slack=0.5,
    # "A waiter whose message is lost finds out within a heartbeat: 3 s, or its ttl if that is shorter".
    wakes_within=TTL,
    # A request without an answer times out after 5 s, and a dead client's place expires after a ttl.
    recovers_within=5.0 + 2 * TTL,
    # "A dead holder blocks for its ttl": from its last renewal, which may have been delayed on the network.
    longest_ttl=TTL + 1.0,
    # "By default a fifth of the ttl" (`docs/leader-election.md`).
    grace=TTL / 5,
)
"""What all stores promise."""


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """The environment of a client's process."""

    environment: Mapping[str, str] = field(default_factory=dict)
    step_clock: Callable[[float], None] = lambda seconds: None
    """Sets its wall clock off the machine's by a number of seconds."""


@dataclass(frozen=True, kw_only=True)
class Arena:
    name: str
    url: str
    """What clients open; it goes through the fault proxy, if there is one."""
    module: str = ""
    """What clients import first: it registers the URL's scheme, unless `lockstead` or an entry point does."""
    options: Mapping[str, Any] = field(default_factory=lambda: {"ttl": TTL})
    """The options of clients. No lease may be requested with a longer ttl than this `ttl`."""
    promises: Promises = PROMISES
    workloads: frozenset[str] = WORKLOADS
    """What clients do, as far as the store supports it."""
    faults: Mapping[str, Fault] = field(default_factory=dict)
    client_faults: frozenset[str] = CLIENT_FAULTS
    at_once: int = 1
    """How many of the store's faults may last at the same time."""
    surround: Callable[[Path], Surroundings] = lambda directory: Surroundings()
    """Prepares the surroundings of one client, which has this directory to itself."""
    one_process: bool = False
    """Whether the store exists only in its clients' process: there is one worker then, which inspects what is left."""
    heal: Callable[[], None] = lambda: None
    direct: str = ""
    """The URL that bypasses the fault proxy, if there is one."""

    def client(self) -> DistributedLock:
        """Open a client with the same URL and options as the workers'."""
        return DistributedLock(self.url, **self.options)

    def carried(self) -> frozenset[str]:
        """Return the workloads that the store supports."""
        store = self._store()
        able = {
            "readwrite": store.capabilities.shared,
            "semaphore": store.capabilities.semaphore,
            "limiter": isinstance(store, RateLimiting),
            "at_least": isinstance(store, Reserving),
            "once": isinstance(store, Reserving),
        }
        return frozenset(workload for workload in self.workloads if able.get(workload, True))

    def kept(self) -> Promises:
        """Return the promises without those that the store's capabilities exclude."""
        return replace(self.promises, fifo=self.promises.fifo and self._store().capabilities.fifo)

    def settle(self) -> None:
        """End every fault, and wait until the store grants locks to a new client."""
        self.heal()
        deadline = time.monotonic() + RECOVERY
        while not self._answers():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.name} does not answer {RECOVERY:g} s after the last fault has ended")
            time.sleep(0.002)

    def inspect(self) -> list[str]:
        """List the places that are still in the store, bypassing the fault proxy."""
        with DistributedLock(self.direct or self.url, **self.options) as locks:
            return [line for info in locks.inspect() for line in _lines(info)]

    def _store(self) -> Store:
        with self.client() as locks:
            return locks._engine.store

    def _answers(self) -> bool:
        with suppress(LockError), self.client() as locks:
            locks.acquire("settled", timeout=TTL).release()
            return True
        return False


def by_kind(faults: Iterable[Fault]) -> dict[str, Fault]:
    return {fault.kind: fault for fault in faults}


def network(proxy: FaultProxy) -> list[Fault]:
    """List the faults of the connections to one server."""

    def healing(begin: Callable[[Random], None]) -> Harm:
        @contextmanager
        def harm(chance: Random) -> Iterator[None]:
            begin(chance)
            try:
                yield
            finally:
                proxy.heal()

        return harm

    def cut(chance: Random) -> None:
        proxy.refuse()
        proxy.reset_all()

    return [
        Fault(kind="lose requests", harm=healing(lambda chance: proxy.lose_request(chance.randint(1, 20)))),
        Fault(kind="lose replies", harm=healing(lambda chance: proxy.lose_reply(chance.randint(1, 20)))),
        Fault(
            kind="delay network",
            harm=healing(lambda chance: proxy.delay(chance.uniform(0.01, 0.3), _direction(chance))),
        ),
        Fault(
            kind="unsteady network",
            harm=healing(lambda chance: proxy.delay(chance.uniform(0.1, 0.6), _direction(chance), steady=False)),
        ),
        Fault(kind="hold network", harm=healing(lambda chance: proxy.hold(_direction(chance)))),
        Fault(kind="black hole", harm=healing(lambda chance: proxy.black_hole(_direction(chance)))),
        Fault(kind="cut network", harm=healing(cut)),
        Fault(kind="cut connections", harm=healing(lambda chance: proxy.reset_all()), seconds=AT_ONCE),
        Fault(kind="duplicate connections", harm=healing(lambda chance: proxy.freeze())),
    ]


def _direction(chance: Random) -> Direction:
    directions: tuple[Direction, ...] = ("both", "requests", "replies")
    return chance.choice(directions)


def _lines(info: Any) -> Iterator[str]:
    for holder in info.holders:
        yield f"{info.name}: {holder.holder_id} with fence {holder.fence}"
    if info.waiting:
        yield f"{info.name}: {info.waiting} in line"
