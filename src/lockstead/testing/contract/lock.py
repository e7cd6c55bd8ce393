"""What both façades promise their users, on every store."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from lockstead import (
    ClosedError,
    InvalidLockError,
    LockAcquisitionError,
    LockLostError,
)
from lockstead.runtimes.clock import now as clock
from lockstead.testing.contract.rigs import Rig, ask, block, cannot, line, names


def test_one_client_holds_and_the_other_does_not(rig: Rig) -> None:
    async def test() -> None:
        alice, bob = rig.client(), rig.client()
        handle = await ask(alice.acquire("x"))
        assert handle.is_held
        assert await ask(bob.try_acquire("x")) is None
        await ask(handle.release())
        assert not handle.is_held
        assert (await ask(bob.try_acquire("x"))).is_held

    rig.run(test())


def test_a_waiter_gets_the_lock_when_it_is_released_and_a_greater_fence(rig: Rig) -> None:
    async def test() -> None:
        alice, bob = rig.client(), rig.client()
        first = await ask(alice.acquire("x"))
        got: list[Any] = []

        async def wait() -> None:
            got.append(await ask(bob.acquire("x", timeout=10)))

        rig.start(wait)
        await rig.until(lambda: has_waiters(alice, int(rig.has_line)))
        await ask(first.release())
        await rig.until(lambda: got)
        assert got[0].fence > first.fence

    rig.run(test())


async def has_waiters(client: Any, number: int) -> bool:
    info = await ask(client.info("x"))
    return info is not None and info.waiting == number


def test_waiters_are_served_and_where_there_is_a_line_in_the_order_they_came(rig: Rig) -> None:
    async def test() -> None:
        client = rig.client()
        first = await ask(client.acquire("x"))
        order: list[int] = []

        def waiter(number: int) -> Any:
            async def wait() -> None:
                handle = await ask(client.acquire("x", timeout=20))
                order.append(number)
                await ask(handle.release())

            return wait

        for number in range(5):
            rig.start(waiter(number))
            await rig.until(partial(has_waiters, client, number + 1 if rig.has_line else 0))
        await ask(first.release())
        await rig.until(lambda: len(order) == 5)
        assert (order if rig.has_line else sorted(order)) == [0, 1, 2, 3, 4]

    rig.run(test())


def test_a_timeout_names_the_holder_and_leaves_no_place(rig: Rig) -> None:
    async def test() -> None:
        alice, bob = rig.client(), rig.client()
        await ask(alice.acquire("x"))
        with pytest.raises(LockAcquisitionError) as refusal:
            await ask(bob.acquire("x", timeout=0.2))
        error = refusal.value
        assert isinstance(error, TimeoutError)
        assert (error.name, error.holder) == ("x", alice.holder_id)
        assert error.attempts == 1 if rig.has_line else error.attempts > 1
        assert 0.2 <= error.waited < 5.0
        assert alice.holder_id in str(error)
        assert await has_waiters(alice, 0)

    rig.run(test())


def test_a_timeout_of_zero_does_not_wait(rig: Rig) -> None:
    async def test() -> None:
        alice, bob = rig.client(), rig.client()
        await ask(alice.acquire("x", timeout=0))
        with pytest.raises(LockAcquisitionError):
            await ask(bob.acquire("x", timeout=0))

    rig.run(test())


def test_an_error_says_that_a_client_waits_for_itself(rig: Rig) -> None:
    async def test() -> None:
        client = rig.client()
        await ask(client.acquire("x"))
        with pytest.raises(LockAcquisitionError, match="reentrant=True"):
            await ask(client.acquire("x", timeout=0.05))

    rig.run(test())


def test_a_short_lease_is_renewed_while_it_is_held(rig: Rig) -> None:
    async def test() -> None:
        alice, bob = rig.client(), rig.client()
        handle = await ask(alice.acquire("x", ttl=1))
        first_expiry = (await ask(alice.info("x"))).expires_at
        first_window = handle._leases[0].trusted_until

        async def renewed_again_and_again() -> bool:
            info = await ask(bob.info("x"))
            assert info is not None
            if not rig.can.expiry:
                assert info.expires_at is None, "it ends with its session"
                return bool(handle._leases[0].trusted_until - first_window > 1.2)
            return bool(info.expires_at - first_expiry > timedelta(seconds=1.2))

        await rig.until(renewed_again_and_again)
        assert handle.is_held
        assert 0 < handle.remaining <= 1
        await ask(handle.release())

    rig.run(test())


def test_without_renewal_a_lease_expires_and_its_holder_is_notified(rig: Rig) -> None:
    async def test() -> None:
        alice, bob = rig.client(), rig.client()
        notified: list[Any] = []
        handle = await ask(alice.acquire("x", ttl=1.5, renew=False, on_lost=notified.append))
        lost = handle.lost
        successor = await ask(bob.acquire("x", timeout=10))
        # By the keeper alone. Its margin is 25 ms, for which a busy machine may keep it from running: only the
        # simulation, on a virtual clock, can prove that the loss is signalled first.
        await rig.until(lost.is_set, 0.25)
        assert not handle.is_held
        assert handle.remaining == 0
        with pytest.raises(LockLostError, match="its lease expired after renewal had stopped"):
            handle.check()
        with pytest.raises(LockLostError):
            await ask(handle.extend(5))
        with pytest.raises(LockLostError):
            await ask(handle.release())
        await rig.until(lambda: notified)
        assert notified == [handle]
        assert successor.is_held, "releasing a lost lock takes nothing from its successor"
        assert (await ask(bob.info("x"))).fence == successor.fence

    rig.run(test())


def test_max_hold_ends_a_hold_that_would_be_renewed_for_ever(rig: Rig) -> None:
    async def test() -> None:
        handle = await ask(rig.client().acquire("x", ttl=0.3, max_hold=0.9))
        granted_by = clock()
        await rig.until(lambda: not handle.is_held)
        assert handle._leases[0].trusted_until <= granted_by + 0.9
        with pytest.raises(LockLostError):
            await ask(handle.release())

    rig.run(test())


def test_an_extension_lengthens_the_hold(rig: Rig) -> None:
    async def test() -> None:
        client = rig.client()
        handle = await ask(client.acquire("x", ttl=5))
        await ask(handle.extend(timedelta(seconds=100)))
        assert handle.remaining > 95
        expires_at = (await ask(client.info("x"))).expires_at
        assert expires_at > datetime.now(UTC) + timedelta(seconds=95) if rig.can.expiry else expires_at is None

    rig.run(test())


def test_a_released_handle_can_only_be_released_again(rig: Rig) -> None:
    async def test() -> None:
        handle = await ask(rig.client().acquire("x"))
        await ask(handle.release())
        await ask(handle.release())
        with pytest.raises(InvalidLockError) as refusal:
            await ask(handle.extend(5))
        assert not isinstance(refusal.value, LockLostError)
        with pytest.raises(InvalidLockError):
            handle.check()
        assert not handle.lost.is_set()

    rig.run(test())


def test_a_handle_releases_its_own_acquisition_only(rig: Rig) -> None:
    async def test() -> None:
        client = rig.client()
        first = await ask(client.acquire("x"))
        await ask(first.release())
        second = await ask(client.acquire("x"))
        await ask(first.release())
        assert second.is_held
        assert await ask(client.is_locked("x"))

    rig.run(test())


def test_metadata_is_shown_by_an_inspection(rig: Rig) -> None:
    async def test() -> None:
        alice, bob = rig.client(), rig.client()
        before = datetime.now(UTC) - timedelta(seconds=0.1)
        handle = await ask(alice.acquire("x", metadata={"job": "ü", "n": [1, None]}))
        info = await ask(bob.info("x"))
        known = (handle.fence, {"job": "ü", "n": [1, None]})
        assert (info.fence, info.metadata) == (known if rig.can.records else (0, {}))
        assert (info.name, info.holder_id) == ("x", alice.holder_id)
        assert before <= info.acquired_at <= datetime.now(UTC)
        assert info.acquired_at < info.expires_at if rig.can.expiry else info.expires_at is None
        own = await ask(handle.info())
        assert (own.fence, own.metadata) == known
        assert info.as_json()["acquired_at"].endswith("+00:00")
        assert (await ask(handle.info())).fence == handle.fence
        assert handle.holder_id == alice.holder_id

    rig.run(test())


def test_locks_are_listed_by_prefix(rig: Rig) -> None:
    async def test() -> None:
        client = rig.client()
        for name in ("job:b", "job:a", "cron:c"):
            await ask(client.acquire(name))
        assert [info.name for info in await ask(client.inspect("job:"))] == ["job:a", "job:b"]
        assert len(await ask(client.inspect())) == 3
        assert await ask(client.info("job:")) is None
        assert not await ask(client.is_locked("job:"))

    rig.run(test())


def test_release_all_releases_everything(rig: Rig) -> None:
    async def test() -> None:
        alice, bob = rig.client(), rig.client()
        handles = [await ask(alice.acquire(f"name-{number}")) for number in range(5)]
        other = await ask(bob.acquire("other"))
        assert await ask(alice.release_all()) == 5
        assert await ask(alice.release_all()) == 0
        assert not any(handle.is_held for handle in handles)
        assert [info.name for info in await ask(bob.inspect())] == ["other"]
        assert other.is_held

    rig.run(test())


def test_closing_releases_and_ends_all_use(rig: Rig) -> None:
    async def test() -> None:
        client = rig.client()
        handle = await ask(client.acquire("x"))
        await ask(client.close())
        assert not await ask(rig.client().is_locked("x"))
        for attempt in (client.acquire, client.try_acquire, client.info, client.is_locked):
            with pytest.raises(ClosedError):
                await ask(attempt("x"))
        with pytest.raises(ClosedError):
            await ask(client.inspect())
        with pytest.raises(InvalidLockError):
            await ask(handle.extend(5))
        await ask(handle.release())
        await ask(client.close())

    rig.run(test())


def test_a_forced_release_takes_the_lock_away_and_the_loss_is_signalled(rig: Rig) -> None:
    async def test() -> None:
        alice, bob = rig.client(), rig.client()
        handle = await ask(alice.acquire("x", ttl=1))
        taken = await ask(bob.force_release("x"))
        assert taken.fence == (handle.fence if rig.can.records else 0)
        assert taken.holder_id == alice.holder_id
        await rig.until(handle.lost.is_set)
        with pytest.raises(LockLostError, match="has no place for it"):
            handle.check()
        assert await ask(bob.force_release("x")) is None

    rig.run(test())


def test_a_release_that_finds_its_place_gone_says_so(rig: Rig) -> None:
    async def test() -> None:
        alice, bob = rig.client(), rig.client()
        handle = await ask(alice.acquire("x"))
        await ask(bob.force_release("x"))
        with pytest.raises(LockLostError, match=r"ha[sd] no place for it"):  # some stores notice before
            await ask(handle.release())

    rig.run(test())


def test_re_entrance_is_opt_in_and_counts(rig: Rig) -> None:
    async def test() -> None:
        client, other = rig.client(), rig.client()
        outer = await ask(client.acquire("x", reentrant=True))
        inner = await ask(client.acquire("x", reentrant=True, ttl=100))
        assert inner.fence == outer.fence
        assert outer.remaining > 90, "asking again extends"
        assert await has_waiters(client, 0)
        await ask(inner.release())
        await ask(inner.release())
        assert not inner.is_held
        assert outer.is_held
        assert await ask(other.try_acquire("x")) is None
        await ask(outer.release())
        assert (await ask(other.try_acquire("x", reentrant=True))).is_held

    rig.run(test())


def test_re_entrance_is_for_the_same_thread_or_task_only(rig: Rig) -> None:
    async def test() -> None:
        client = rig.client()
        await ask(client.acquire("x", reentrant=True))
        outcome: list[Any] = []

        async def another() -> None:
            outcome.append(await ask(client.try_acquire("x", reentrant=True)))

        rig.start(another)
        await rig.until(lambda: outcome)
        assert outcome == [None]

    rig.run(test())


def test_re_entering_a_lost_lock_is_an_error(rig: Rig) -> None:
    async def test() -> None:
        client = rig.client()
        outer = await ask(client.acquire("x", ttl=0.2, renew=False, reentrant=True))
        await rig.until(lambda: not outer.is_held)
        with pytest.raises(LockLostError):
            await ask(client.acquire("x", reentrant=True))

    rig.run(test())


def test_a_handle_that_is_dropped_releases_its_lock(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        alice, bob = rig.client(), rig.client()
        handle = await ask(alice.acquire("x", ttl=3))
        assert handle.is_held
        del handle
        assert (await ask(bob.acquire("x", timeout=10))).is_held

    rig.run(test())
    assert "was dropped without a release" in caplog.text


def test_a_failing_on_lost_is_logged_and_has_no_other_effect(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    def fail(handle: object) -> None:
        raise ZeroDivisionError

    async def test() -> None:
        client = rig.client()
        handle = await ask(client.acquire("x", ttl=0.2, renew=False, on_lost=fail))
        await rig.until(lambda: "on_lost callback of 'x' failed" in caplog.text)
        assert (await ask(client.acquire("x", timeout=5))).fence > handle.fence

    rig.run(test())


def test_the_repr_of_a_handle_shows_name_fence_and_state(rig: Rig) -> None:
    async def test() -> None:
        handle = await ask(rig.client().acquire("x"))
        assert f"'x' fence={handle.fence} held" in repr(handle)
        await ask(handle.release())
        assert "not held" in repr(handle)

    rig.run(test())


def test_the_longest_name_and_the_shortest_and_longest_ttl_are_accepted(rig: Rig) -> None:
    async def test() -> None:
        client = rig.client()
        for name, ttl in (("n" * 512, 365 * 86400), ("short", 0.12), ("td", timedelta(minutes=1)), ("int", 30)):
            assert await ask(client.acquire(name, ttl=ttl)) is not None

    rig.run(test())


def test_a_lock_is_released_from_whichever_thread_has_the_handle(rig: Rig) -> None:
    """The handle owns the lock, not the thread."""
    if rig.runtime_name == "asyncio":
        return

    async def test() -> None:
        client = rig.client()
        handle = client.acquire("x")
        thread = threading.Thread(target=handle.release)
        thread.start()
        thread.join()
        assert not client.is_locked("x")

    rig.run(test())


def test_a_timeout_around_a_wait_or_inside_a_block_leaves_nothing(rig: Rig) -> None:
    """Tasks only: a thread's wait cannot be interrupted from outside."""
    if rig.runtime_name == "threads":
        return

    async def test() -> None:
        alice, bob = rig.client(), rig.client()
        kinds = [
            (alice.lock("x"), bob.multi_lock(["w", "x", "y"])),
            (alice.write_lock("x"), bob.read_lock("x")),
            (alice.semaphore("x", 3, 2), bob.semaphore("x", 3, 2)),
        ]
        for holder, waiter in kinds:
            if await cannot(holder, alice):
                continue
            async with holder:
                with pytest.raises(TimeoutError) as outcome:
                    async with asyncio.timeout(0.03), waiter:
                        pytest.fail("it is taken")
                assert not isinstance(outcome.value, LockAcquisitionError)
                assert await names(bob) == ["x"]
                assert await line(bob) == (1, 0)
            async with asyncio.timeout(5):
                async with waiter as handle:
                    with pytest.raises(TimeoutError):
                        async with asyncio.timeout(0.01):
                            await asyncio.sleep(10)
                    assert handle.is_held
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.03), waiter:
                    await asyncio.sleep(10)
            assert await names(bob) == []

    rig.run(test())


def test_a_guard_is_acquired_and_released_by_hand_and_renewed_in_between(rig: Rig) -> None:
    """Like any lock of Python: no handle has to be kept."""

    async def test() -> None:
        alice, bob = rig.client(), rig.client()
        lock = alice.lock("x", ttl=0.5)
        await ask(lock.acquire())
        started = lock._acquired[0][1]._leases[0].trusted_until
        await rig.until(lambda: lock._acquired[0][1]._leases[0].trusted_until > started + 0.5)
        assert await ask(bob.try_acquire("x")) is None
        await ask(lock.release())
        assert not await ask(bob.is_locked("x"))
        with pytest.raises(InvalidLockError, match="is not held: acquire it first"):
            await ask(lock.release())
        assert await ask(lock.try_acquire())
        assert await ask(lock.try_acquire()) is None
        await ask(lock.release())

    rig.run(test())


def test_a_guard_that_is_acquired_by_hand_may_be_released_by_its_handle(rig: Rig) -> None:
    async def test() -> None:
        lock = rig.client().lock("x")
        for _ in range(3):
            await ask((await ask(lock.acquire())).release())
        assert len(lock._acquired) == 1, "what was released is not kept"
        await ask(lock.acquire())
        await ask(lock.release())

    rig.run(test())


def test_releasing_inside_the_block_is_allowed(rig: Rig) -> None:
    async def test() -> None:
        client = rig.client()
        for guard in (client.lock("x"), client.multi_lock(["x", "y"])):
            async with block(guard) as handle:
                await ask(handle.release())
                assert await names(client) == []

    rig.run(test())
