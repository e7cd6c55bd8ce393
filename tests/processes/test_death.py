"""What becomes of a lock whose holder, or whose waiter, is killed or paused."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from lockstead import AsyncDistributedLock, AsyncLockHandle, DistributedLock
from lockstead.core.timing import HEARTBEAT, margin
from lockstead.stores.sqlite.death_watch import LOOK_EVERY
from tests.harness.conditions import eventually, eventually_async
from tests.harness.processes import Worker, boottime
from tests.harness.sqlite import rows, stop_outside_a_transaction, url_of

Peer = Callable[..., Worker]

SLACK = 1.0
"""What a loaded machine may add to a delay."""


def waits_behind(locks: DistributedLock, name: str, places: int) -> None:
    eventually(lambda: (info := locks.info(name)) and info.waiting == places, f"{places} wait for {name!r}")


def rest_of(path: Path, name: str) -> float:
    """Read when the head of the line expires."""
    ((expires_at,),) = rows(path, f"SELECT expires_at FROM place WHERE name = '{name}' ORDER BY ticket LIMIT 1")
    return float(expires_at)


def test_a_killed_holder_is_followed_at_once(peer: Peer, locks: DistributedLock) -> None:
    holder, waiter = peer(), peer("--patient")
    first = holder.ask("acquire", "job", ttl=60)
    waiter.send("acquire", "job", ttl=60)
    waits_behind(locks, "job", 1)
    killed = holder.kill()
    second = waiter.answer()
    assert second["fence"] > first["fence"]
    assert second["at"] <= killed + 0.1 + SLACK


def test_a_killed_holder_does_not_keep_a_newcomer_out(peer: Peer, locks: DistributedLock) -> None:
    holder = peer()
    first = holder.ask("acquire", "job", ttl=60)
    assert locks.try_acquire("job") is None
    holder.kill()
    holder.wait()
    assert locks.info("job") is None
    second = locks.try_acquire("job")
    assert second is not None
    assert second.fence > first["fence"]


def test_holder_and_next_waiter_killed_together_are_followed_at_once(peer: Peer, locks: DistributedLock) -> None:
    holder, next_one, survivor = peer(), peer("--patient"), peer("--patient")
    holder.ask("acquire", "job", ttl=60)
    for place, waiter in enumerate((next_one, survivor), start=1):
        waiter.send("acquire", "job", ttl=60)
        waits_behind(locks, "job", place)
    holder.kill()
    killed = next_one.kill()
    assert survivor.answer()["at"] <= killed + 0.1 + SLACK


@pytest.mark.parametrize("unproven", ["holder", "waiter"])
def test_where_no_death_is_proven_a_killed_holder_is_followed_when_its_ttl_ends_and_not_before(
    unproven: str, peer: Peer, locks: DistributedLock, path: Path
) -> None:
    ttl = 1.5
    holder = peer(*(["--unproven"] if unproven == "holder" else []))
    waiter = peer(*(["--unproven"] if unproven == "waiter" else []))
    first = holder.ask("acquire", "job", ttl=ttl)
    waiter.send("acquire", "job", ttl=ttl)
    eventually(lambda: rows(path, "SELECT count(*) FROM place") == [(2,)], "it waits")
    killed = holder.kill()
    holder.wait()
    expires = rest_of(path, "job")
    second = waiter.answer()
    assert second["fence"] > first["fence"]
    assert second["at"] >= expires
    assert second["at"] <= min(expires, killed + ttl) + SLACK


def test_a_waiter_is_served_at_once_though_a_child_of_the_killed_holder_lives(
    peer: Peer, locks: DistributedLock
) -> None:
    holder, waiter = peer(), peer("--patient")
    holder.ask("acquire", "job", ttl=60)
    waiter.send("acquire", "job", ttl=60)
    waits_behind(locks, "job", 1)
    holder.ask("fork")
    killed = holder.kill()
    assert waiter.answer()["at"] <= killed + 0.1 + SLACK


def test_a_child_that_was_forked_behind_pythons_back_is_no_proof_of_its_parents_death(
    peer: Peer, locks: DistributedLock, path: Path
) -> None:
    """It has the parent's descriptors, so the lock does not end with the parent: the ttl decides."""
    holder, waiter = peer(), peer()
    holder.ask("acquire", "job", ttl=1.5)
    waiter.send("acquire", "job", ttl=1.5)
    waits_behind(locks, "job", 1)
    holder.ask("fork without hooks")
    holder.kill()
    holder.process.wait()
    expires = rest_of(path, "job")
    assert waiter.answer()["at"] >= expires


def test_a_child_that_ends_is_no_proof_of_its_parents_death(peer: Peer, locks: DistributedLock) -> None:
    holder, waiter = peer(), peer()
    granted = holder.ask("acquire", "job", ttl=60)
    waiter.send("acquire", "job", ttl=60)
    waits_behind(locks, "job", 1)
    holder.ask("fork a child that ends")
    stays_held(locks, granted["fence"], waiter)
    assert holder.ask("state")["held"]


def test_a_holder_that_refuses_datagrams_is_not_dead(peer: Peer, locks: DistributedLock) -> None:
    """As one in another network namespace does."""
    holder, waiter = peer(), peer()
    granted = holder.ask("acquire", "job", ttl=60)
    waiter.send("acquire", "job", ttl=60)
    waits_behind(locks, "job", 1)
    holder.ask("refuse datagrams")
    stays_held(locks, granted["fence"], waiter)
    assert holder.ask("state")["held"]


def test_a_stopped_holder_is_not_dead(peer: Peer, locks: DistributedLock, path: Path) -> None:
    holder, waiter = peer(), peer()
    granted = holder.ask("acquire", "job", ttl=60)
    waiter.send("acquire", "job", ttl=60)
    waits_behind(locks, "job", 1)
    stop_outside_a_transaction(holder, path)
    stays_held(locks, granted["fence"], waiter)
    holder.signal(signal.SIGCONT)
    assert holder.ask("state")["held"]


def test_a_holder_that_executes_another_program_holds_no_longer(peer: Peer, locks: DistributedLock) -> None:
    holder, waiter = peer(), peer("--patient")
    holder.ask("acquire", "job", ttl=60)
    waiter.send("acquire", "job", ttl=60)
    waits_behind(locks, "job", 1)
    asked = boottime()
    holder.send("exec")
    assert waiter.answer()["at"] <= asked + 0.1 + SLACK


def test_a_holder_that_has_moved_to_the_next_event_loop_is_not_dead(peer: Peer, path: Path) -> None:
    """Its place was written by a store object that is gone, and is renewed by another one."""
    ttl = 1.0
    locks = AsyncDistributedLock(url_of(path), ttl=ttl)

    async def acquire() -> AsyncLockHandle:
        return await locks.acquire("job")

    async def hold(handle: AsyncLockHandle) -> None:
        until = boottime() + 1.5 * ttl
        assert await locks.is_locked("job")
        await eventually_async(lambda: boottime() > until, "the ttl passes")
        async with AsyncDistributedLock(url_of(path)) as newcomer:
            await newcomer.info("job")
        assert peer().ask("acquire", "job", timeout=0)["error"] == "LockAcquisitionError"
        handle.check()
        await handle.release()

    asyncio.run(hold(asyncio.run(acquire())))


def test_a_reservation_outlives_its_process(peer: Peer, locks: DistributedLock) -> None:
    holder = peer()
    holder.ask("acquire", "job", ttl=60, at_least=60)
    holder.ask("release")
    holder.kill()
    holder.wait()
    assert locks.try_acquire("job") is None


def stays_held(locks: DistributedLock, fence: int, waiter: Worker) -> None:
    """Look for longer than the waiter takes to find a death: ten times."""
    until = boottime() + 10 * LOOK_EVERY
    while boottime() < until:
        info = locks.info("job")
        assert info is not None
        assert info.fence == fence
    assert not waiter.has_answered()


def test_a_running_holder_keeps_its_lock_many_times_its_ttl(peer: Peer, locks: DistributedLock) -> None:
    holder, waiter = peer(), peer()
    granted = holder.ask("acquire", "job", ttl=1)
    waiter.send("acquire", "job", ttl=1)
    waits_behind(locks, "job", 1)
    eventually(lambda: boottime() > granted["at"] + 4.0, "four ttls pass")
    assert not waiter.has_answered()
    assert holder.ask("state")["held"]
    holder.ask("release")
    assert waiter.answer()["fence"] > granted["fence"]


@pytest.mark.parametrize(("flags", "within"), [((), 0.0), (("--unproven",), HEARTBEAT)], ids=["proven", "unproven"])
def test_a_killed_waiter_does_not_hold_the_line_up_or_if_unproven_for_one_heartbeat_not_for_its_ttl(
    flags: tuple[str, ...], within: float, peer: Peer, locks: DistributedLock
) -> None:
    holder, doomed, survivor = peer(), peer(*flags), peer()
    holder.ask("acquire", "job", ttl=60)
    for place, waiter in enumerate((doomed, survivor), start=1):
        waiter.send("acquire", "job", ttl=60)
        waits_behind(locks, "job", place)
    doomed.kill()
    doomed.wait()
    released = holder.ask("release")["at"]
    assert survivor.answer()["at"] <= released + within + SLACK


def test_a_waiter_killed_long_ago_does_not_hold_the_line_up_at_all(peer: Peer, locks: DistributedLock) -> None:
    holder, doomed, survivor = peer(), peer(), peer()
    holder.ask("acquire", "job", ttl=0.5)
    for place, waiter in enumerate((doomed, survivor), start=1):
        waiter.send("acquire", "job", ttl=0.5)
        waits_behind(locks, "job", place)
    doomed.kill()
    waits_behind(locks, "job", 1)
    released = holder.ask("release")["at"]
    assert survivor.answer()["at"] <= released + 0.25


def test_a_holder_paused_beyond_its_ttl_detects_its_loss_and_harms_no_other_client(
    peer: Peer, locks: DistributedLock, path: Path
) -> None:
    ttl = 0.8
    paused, next_one = peer(), peer()
    first = paused.ask("with", "job", ttl=ttl)
    stop_outside_a_transaction(paused, path)
    second = next_one.ask("acquire", "job", ttl=30)
    assert second["fence"] > first["fence"]
    paused.send("state")
    resumed = paused.signal(signal.SIGCONT)
    state = paused.answer()
    assert not state["held"]
    assert state["check"] == "LockLostError"
    assert state["at"] - resumed < SLACK
    eventually(lambda: paused.ask("state")["lost"], "the paused holder's `lost` is set", within=SLACK)
    paused.send("end")
    assert paused.answer()["error"] == "LockLostError"
    info = locks.info("job")
    assert info is not None
    assert info.fence == second["fence"]
    assert next_one.ask("state")["held"]
    assert next_one.ask("release")["error"] is None


def test_a_release_after_a_long_pause_raises_and_leaves_the_new_holder_its_place(
    peer: Peer, locks: DistributedLock, path: Path
) -> None:
    paused, next_one = peer(), peer()
    paused.ask("acquire", "job", ttl=0.5)
    stop_outside_a_transaction(paused, path)
    second = next_one.ask("acquire", "job", ttl=30)
    paused.send("release")
    paused.signal(signal.SIGCONT)
    assert paused.answer()["error"] == "LockLostError"
    info = locks.info("job")
    assert info is not None
    assert info.fence == second["fence"]


def test_a_holder_paused_for_less_than_its_ttl_keeps_its_lock_and_renews_on(
    peer: Peer, locks: DistributedLock, path: Path
) -> None:
    ttl = 3.0
    holder = peer()
    granted = holder.ask("acquire", "job", ttl=ttl)
    stopped = stop_outside_a_transaction(holder, path)
    eventually(lambda: boottime() > stopped + ttl / 4, "a while passes")
    holder.signal(signal.SIGCONT)
    state = holder.ask("state")
    assert (state["held"], state["lost"], state["check"]) == (True, False, None)
    expires = rest_of(path, "job")
    eventually(lambda: rest_of(path, "job") > expires, "the lease is renewed")
    eventually(lambda: boottime() > granted["at"] + ttl + margin(ttl), "the first lease would have ended")
    assert holder.ask("state")["held"]
    info = locks.info("job")
    assert info is not None
    assert info.fence == granted["fence"]
    assert holder.ask("release")["error"] is None
