"""Leader election: one of two schedulers works; when it stops, the other takes over. Never do both work at once.

Run it: python examples/election.py
"""

from __future__ import annotations

import threading

from lockstead import DistributedLock, Leadership


class Scheduler:
    """Works while it leads."""

    at_work: list[str] = []  # noqa: RUF012 - shared by both, to count the schedulers at work

    def __init__(self, name: str) -> None:
        self.name = name
        self.working = threading.Event()
        self.locks = DistributedLock("memory://")
        self.election = self.locks.election(
            "scheduler", ttl=15, metadata={"name": name}, on_elected=self._work, on_lost=self._stop
        )

    def _work(self, leadership: Leadership) -> None:
        self.at_work.append(self.name)
        print(f"{self.name} works under fence {leadership.fence}")
        assert self.at_work == [self.name], "the other scheduler is still at work"
        self.working.set()

    def _stop(self, leadership: Leadership) -> None:
        print(f"{self.name} stops")
        self.at_work.remove(self.name)


first, second = Scheduler("first"), Scheduler("second")
first.election.start()
assert first.working.wait(10)
second.election.start()
leader = second.election.leader()
print("the leader, as the second scheduler sees it:", leader.metadata["name"] if leader else "none")
first.election.stop()
assert second.working.wait(10), "the second scheduler did not take over"
second.locks.close()
assert not Scheduler.at_work
print("both have stopped")
