"""What do joining, leaving, renewing and handing over cost as the line of one name grows?

The requests go to the store itself, one at a time: a new place joins at the end and leaves again; the last waiter
renews; the holder leaves, which hands over to the next. A line should cost the same however long it is.

PostgreSQL runs without fsync, which would hide growth. Advisory locks are left out: their line is the server's own,
and takes a connection for each waiter.
"""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count, product
from time import perf_counter

from bench import _redis
from bench._measure import interleave, report, spread
from bench._postgres import served
from lockstead.core.model import Ask, Renewal
from lockstead.core.runtime import drive
from lockstead.core.store import Store
from lockstead.runtimes.threads import ThreadRuntime
from lockstead.stores import open_store
from tests.servers.binaries import POSTGRES18
from tests.servers.redis import RedisServer

TTL = 600.0
TIMEOUT = 5.0
STEPS = 20
"""How often each step is measured per round."""


class Queue:
    """A line with one holder and so many waiters, all of this program."""

    def __init__(self, store: Store, waiting: int) -> None:
        self._store = store
        self._name = f"line:{waiting}"
        self._numbers = count()
        self._owners = deque(self._join() for _ in range(waiting + 1))

    def join_and_leave(self) -> list[float]:
        """Time a place that joins at the end, and leaves again."""
        return [self._time(lambda: self._leave(self._join())) for _ in range(STEPS)]

    def renew(self) -> list[float]:
        """Time a renewal of the last waiter."""
        renewals = [Renewal(self._name, self._owners[-1], TTL, TTL)]
        return [self._time(lambda: drive(self._store.renew(renewals, TIMEOUT))) for _ in range(STEPS)]

    def hand_over(self) -> list[float]:
        """Time the holder's leave; another place joins at the end, and is not timed."""
        times = []
        for _ in range(STEPS):
            times.append(self._time(lambda: self._leave(self._owners.popleft())))
            self._owners.append(self._join())
        return times

    def _join(self) -> str:
        owner = f"{self._name}/{next(self._numbers)}"
        drive(self._store.join(Ask(self._name, owner, TTL, TTL), TIMEOUT))
        return owner

    def _leave(self, owner: str) -> None:
        assert drive(self._store.leave(self._name, owner, TIMEOUT))

    def _time(self, step: Callable[[], object]) -> float:
        started = perf_counter()
        step()
        return perf_counter() - started


STEPS_OF_A_LINE: Mapping[str, Callable[[Queue], list[float]]] = {
    "join + leave at the end": Queue.join_and_leave,
    "renew the last": Queue.renew,
    "hand over": Queue.hand_over,
}


def main() -> None:
    parser = _redis.options(__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    sizes = (1, 10, 1000) if arguments.quick else (1, 10, 100, 1000, 5000)
    with ExitStack() as stack:
        stores = {
            "memory": stack.enter_context(opened("memory://line")),
            "SQLite": stack.enter_context(opened(f"sqlite:///{stack.enter_context(tempfile.TemporaryDirectory())}/db")),
            "Redis": stack.enter_context(opened(stack.enter_context(RedisServer(arguments.flavour)).url)),
            "PostgreSQL": stack.enter_context(opened(stack.enter_context(served(POSTGRES18, fsync="off")))),
        }
        cases = {}
        for (name, store), size in product(stores.items(), sizes):
            queue = Queue(store, size)
            for what, measure in STEPS_OF_A_LINE.items():
                cases[name, what, size] = partial(measure, queue)
        times = interleave(cases, 3 if arguments.quick else arguments.rounds)
    spreads = {case: spread(taken) for case, taken in times.items()}
    rows = [
        {
            "store": name,
            "step": what,
            "waiting": size,
            "µs": spreads[name, what, size].scaled(1e6),
            "x shortest": spreads[name, what, size].median / spreads[name, what, sizes[0]].median,
        }
        for name, what, size in product(stores, STEPS_OF_A_LINE, sizes)
    ]
    report("Steps of a line as it grows", rows, as_json=arguments.json)


@contextmanager
def opened(url: str) -> Iterator[Store]:
    store = open_store(url, ThreadRuntime())
    yield store
    drive(store.close())


if __name__ == "__main__":
    main()
