"""Use everything that waits, from many greenlets of one thread at the same time.

Usage: contention URL. It ends with a lock held, for the exit to release.
"""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from functools import partial

import gevent

from lockstead import DistributedLock, LockAcquisitionError, UnsupportedError
from tests.behaviour.greenlets.programs.hub import run_all, ticking
from tests.harness.conditions import DEADLINE, eventually


class Scenario:
    def __init__(self, url: str) -> None:
        self.locks = DistributedLock(url)
        self.other = DistributedLock(url)
        self.has_a_line = self.locks._engine.store.capabilities.fifo
        self.has_leases = self.locks._engine.store.capabilities.expiry

    def waiting(self, name: str) -> int:
        info = self.other.info(name)
        return 0 if info is None else info.waiting

    def await_waiters(self, name: str, count: int) -> None:
        if self.has_a_line:
            eventually(lambda: self.waiting(name) == count, f"{count} wait for {name}")
        else:
            gevent.sleep(0.1)

    def is_free(self, name: str) -> bool:
        handle = self.other.try_acquire(name)
        if handle is not None:
            handle.release()
        return handle is not None

    def waiters_are_woken_in_order_and_exclude_each_other(self) -> None:
        order: list[int] = []
        inside: list[int] = []

        def contend(number: int) -> None:
            with self.locks.lock("contended", timeout=DEADLINE):
                assert not inside
                inside.append(number)
                gevent.sleep(0.02)
                inside.remove(number)
                order.append(number)

        first = self.locks.acquire("contended")
        contenders = []
        for number in range(5):
            contenders.append(gevent.spawn(contend, number))
            self.await_waiters("contended", number + 1)
        first.release()
        gevent.joinall(contenders, raise_error=True)
        assert sorted(order) == list(range(5))
        if self.has_a_line:
            assert order == sorted(order), order

    def a_timeout_is_kept(self) -> None:
        with self.locks.lock("taken"):
            for locks in (self.locks, self.other):
                began = time.monotonic()
                try:
                    locks.acquire("taken", timeout=0.5)
                except LockAcquisitionError:
                    waited = time.monotonic() - began
                    assert 0.45 < waited < 2.0, waited
                else:
                    raise AssertionError("it was acquired twice")

    def a_held_lock_is_renewed(self) -> None:
        with self.locks.lock("renewed", ttl=1.5) as handle:
            gevent.sleep(2.2)
            handle.check()
            assert self.other.try_acquire("renewed") is None

    def re_entrance_is_per_greenlet(self) -> None:
        with self.locks.lock("mine", reentrant=True):
            with self.locks.lock("mine", reentrant=True, timeout=0):
                pass
            other_greenlet = gevent.spawn(self.locks.try_acquire, "mine", reentrant=True)
            assert other_greenlet.get(timeout=DEADLINE) is None

    def a_killed_waiter_leaves_the_line(self) -> None:
        def wait_briefly() -> None:
            with suppress(gevent.Timeout), gevent.Timeout(0.2):
                self.locks.acquire("killed")

        with self.locks.lock("killed"):
            waiter = gevent.spawn(self.locks.acquire, "killed")
            self.await_waiters("killed", 1)
            waiter.kill(timeout=DEADLINE)
            assert waiter.dead
            self.await_waiters("killed", 0)
            began = time.monotonic()
            gevent.spawn(wait_briefly).get(timeout=DEADLINE)
            assert time.monotonic() - began < 3.0
            self.await_waiters("killed", 0)
        eventually(partial(self.is_free, "killed"), "what was waited for is free")

    def a_killed_holder_releases(self) -> None:
        def hold() -> None:
            with self.locks.lock("held", ttl=30):
                gevent.sleep(DEADLINE)

        holder = gevent.spawn(hold)
        eventually(lambda: self.other.is_locked("held"), "it is held")
        holder.kill(timeout=DEADLINE)
        eventually(partial(self.is_free, "held"), "a killed holder has released")

    def greenlets_killed_in_the_middle_of_requests_leave_nothing_behind(self) -> None:
        def use(number: int) -> None:
            while True:
                with self.locks.lock(f"use-{number}", ttl=30):
                    gevent.sleep(0)

        for turn in range(3):
            users = [gevent.spawn(use, number) for number in range(8)]
            for user in users:
                gevent.sleep(0.001 * (turn + 1))
                user.kill(timeout=DEADLINE)
                assert user.dead
        for number in range(8):
            eventually(partial(self.is_free, f"use-{number}"), f"use-{number} is free")
        for number in range(8):  # a reply meant for a killed greenlet would be read by these
            with self.locks.lock(f"after-{number}") as handle:
                info = handle.info()
                assert info is not None
                assert info.name == f"after-{number}"

    def a_loss_is_signalled(self) -> None:
        client = DistributedLock(sys.argv[1])  # of an advisory lock's client, all that its session holds is lost
        handle = client.acquire("lost", ttl=1.5 if self.has_leases else 30)
        began = time.monotonic()
        assert self.other.force_release("lost") is not None
        assert handle.lost.wait(DEADLINE)
        assert time.monotonic() - began < 3.0
        client.close()

    def one_leader_is_elected(self) -> None:
        with self.locks.election("leader").lead(timeout=DEADLINE) as leadership:
            assert leadership.is_held

    def a_rate_is_limited(self) -> None:
        try:
            limiter = self.locks.rate_limiter("rate", 5, 1)
        except UnsupportedError:
            return
        began = time.monotonic()
        for _ in range(7):
            limiter.acquire()
        assert 0.3 < time.monotonic() - began < 3.0

    def everything_is_released_at_once(self) -> None:
        client = DistributedLock(sys.argv[1])
        client.acquire("one")
        client.acquire("two")
        assert client.release_all() == 2
        client.close()

    def run(self) -> None:
        self.is_free("warm-up")
        self.locks.info("warm-up")
        with ticking():
            run_all(
                [
                    self.waiters_are_woken_in_order_and_exclude_each_other,
                    self.a_timeout_is_kept,
                    self.a_held_lock_is_renewed,
                    self.re_entrance_is_per_greenlet,
                    self.a_killed_waiter_leaves_the_line,
                    self.a_killed_holder_releases,
                    self.greenlets_killed_in_the_middle_of_requests_leave_nothing_behind,
                    self.a_loss_is_signalled,
                    self.one_leader_is_elected,
                    self.a_rate_is_limited,
                    self.everything_is_released_at_once,
                ]
            )


if __name__ == "__main__":
    scenario = Scenario(sys.argv[1])
    scenario.run()
    scenario.locks.acquire("left-at-exit", ttl=60)
    print("done")
