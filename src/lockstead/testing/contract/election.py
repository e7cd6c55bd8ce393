"""What elections promise, on every store and under both runtimes."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from lockstead import InvalidLockError, LockAcquisitionError, LockLostError
from lockstead.core.runtime import drive
from lockstead.testing.contract.rigs import Rig, ask


class CallbackRecorder:
    """Callbacks that record their calls, in order, with the leadership they were given."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.threads: set[str] = set()

    def callbacks(self, client_name: str) -> dict[str, Any]:
        return {
            "on_elected": lambda _: self.record(client_name, "elected"),
            "on_lost": lambda _: self.record(client_name, "lost"),
        }

    def record(self, client_name: str, what: str) -> None:
        self.threads.add(threading.current_thread().name)
        self.calls.append((client_name, what))


async def has_waiters(client: Any, number: int) -> bool:
    info = await ask(client.info("x"))
    return info is not None and info.waiting == number


async def waits(rig: Rig, client: Any) -> None:
    """Wait until a candidate stands behind the leader; where there is no line, that cannot be seen."""
    await rig.until(lambda: has_waiters(client, int(rig.has_line)))


def test_one_candidate_leads_and_every_client_sees_the_leader(rig: Rig) -> None:
    async def test() -> None:
        alice, bob = rig.client(), rig.client()
        election = alice.election("x", metadata={"zone": "a"}, ttl=10)
        assert await ask(election.leader()) is None
        leadership = await ask(election.campaign())
        assert leadership.is_leader
        assert not leadership.lost.is_set()
        leadership.check()
        assert abs(datetime.now(UTC) - leadership.since) < timedelta(seconds=5)
        with pytest.raises(LockAcquisitionError):
            await ask(bob.election("x").campaign(timeout=0))
        mine, theirs = await ask(election.leader()), await ask(bob.election("x").leader())
        assert (mine.is_me, theirs.is_me) == (True, False)
        assert mine.holder_id == theirs.holder_id == alice.holder_id
        if rig.can.records:
            assert (theirs.fence, theirs.metadata) == (leadership.fence, {"zone": "a"})
            assert abs(theirs.since - leadership.since) < timedelta(seconds=1)
        await ask(leadership.resign())
        assert not leadership.is_leader
        with pytest.raises(InvalidLockError):
            leadership.check()
        assert await ask(election.leader()) is None

    rig.run(test())


def test_a_block_leads_and_resigns_at_its_end(rig: Rig) -> None:
    async def test() -> None:
        alice, bob = rig.client(), rig.client()
        led: list[Any] = []

        async def lead(client: Any) -> None:
            guard = client.election("x").lead(timeout=10)
            if rig.runtime_name == "threads":
                with guard as leadership:
                    led.append(leadership.fence)
            else:
                async with guard as leadership:
                    led.append(leadership.fence)

        first = await ask(bob.election("x").campaign())
        rig.start(lambda: lead(alice))
        await waits(rig, bob)
        await ask(first.resign())
        await rig.until(lambda: led)
        assert led[0] > first.fence
        await lead(bob)

    rig.run(test())


def test_in_the_background_one_candidate_leads_until_it_stops_and_then_another(rig: Rig) -> None:
    async def test() -> None:
        recorder = CallbackRecorder()
        alice, bob = (rig.client().election("x", ttl=10, **recorder.callbacks(name)) for name in ("alice", "bob"))
        alice.start()
        alice.start()
        await rig.until(lambda: recorder.calls == [("alice", "elected")])
        bob.start()
        await waits(rig, rig.client())
        await ask(alice.stop())
        assert recorder.calls[:2] == [("alice", "elected"), ("alice", "lost")]
        await rig.until(lambda: recorder.calls[2:] == [("bob", "elected")], seconds=3)
        await ask(alice.stop())
        alice.start()
        await waits(rig, rig.client())
        await ask(alice.stop())
        assert await has_waiters(rig.client(), 0)
        await ask(bob.stop())
        assert recorder.calls[3:] == [("bob", "lost")]
        assert await ask(bob.leader()) is None
        if rig.runtime_name == "threads":
            assert recorder.threads <= {"lockstead-elected", "lockstead-candidate"}

    rig.run(test())


def test_the_lock_is_released_only_after_on_lost_has_ended(rig: Rig) -> None:
    async def test() -> None:
        alice, bob = rig.client(), rig.client()
        may_end, calls, seen = rig._runtime.event(), [], []

        async def slow(leadership: Any) -> None:
            calls.append(leadership.is_leader)
            await may_end.wait(10)
            seen.append(await ask(bob.info("x")))

        def slow_plainly(leadership: Any) -> None:
            drive(slow(leadership))

        on_lost = slow_plainly if rig.runtime_name == "threads" else slow
        leadership = await ask(alice.election("x", ttl=10, on_lost=on_lost).campaign())

        async def resign() -> None:
            await ask(leadership.resign())

        rig.start(resign)
        await rig.until(lambda: calls)
        assert calls == [False]
        assert not leadership.is_leader
        assert await ask(bob.try_acquire("x")) is None
        may_end.set()
        await ask(bob.acquire("x", timeout=10))
        assert seen[0].holder_id == alice.holder_id

    rig.run(test())


def test_a_failing_on_elected_resigns_and_a_failing_on_lost_has_no_other_effect(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        recorder = CallbackRecorder()

        def fail(what: str) -> Any:
            def callback(leadership: Any) -> None:
                recorder.record("alice", what)
                msg = f"{what} raised this"
                raise ValueError(msg)

            return callback

        alice = rig.client().election("x", on_elected=fail("elected"), on_lost=fail("lost"))
        alice.start()
        once = [("alice", "elected"), ("alice", "lost")]
        await rig.until(lambda: recorder.calls[:4] == once * 2)
        await ask(alice.stop())
        assert recorder.calls == once * (len(recorder.calls) // 2)
        assert await ask(alice.leader()) is None
        assert "elected raised this" in caplog.text
        assert "lost raised this" in caplog.text

    rig.run(test())


def test_a_callback_may_stop_the_election(rig: Rig) -> None:
    async def test() -> None:
        recorder = CallbackRecorder()
        mine: dict[str, Any] = {}

        def stop(leadership: Any) -> Any:
            recorder.record("alice", "elected")
            return mine["election"].stop()

        mine["election"] = rig.client().election("x", on_elected=stop, on_lost=recorder.callbacks("alice")["on_lost"])
        mine["election"].start()
        await rig.until(lambda: recorder.calls == [("alice", "elected"), ("alice", "lost")])

        async def is_free() -> bool:
            return await ask(mine["election"].leader()) is None

        await rig.until(is_free, seconds=3)

    rig.run(test())


def test_a_leader_deposed_by_force_is_notified_and_campaigns_again(rig: Rig) -> None:
    async def test() -> None:
        if not rig.can.records:
            return  # a session's lock cannot be taken away by another
        recorder = CallbackRecorder()
        alice = rig.client().election("x", ttl=1.5, **recorder.callbacks("alice"))
        alice.start()
        await rig.until(lambda: recorder.calls)
        await ask(rig.client().force_release("x"))
        once = [("alice", "elected"), ("alice", "lost")]
        await rig.until(lambda: recorder.calls[:3] == [*once, once[0]])
        await ask(alice.stop())
        assert recorder.calls == once * 2

    rig.run(test())


def test_a_block_whose_leadership_is_lost_ends_with_an_error(rig: Rig) -> None:
    async def test() -> None:
        if not rig.can.records:
            return
        recorder = CallbackRecorder()
        alice, bob = rig.client(), rig.client()
        guard = alice.election("x", ttl=0.5, **recorder.callbacks("alice")).lead()
        with pytest.raises(LockLostError):
            if rig.runtime_name == "threads":
                with guard as leadership:
                    bob.force_release("x")
                    assert leadership.lost.wait(5)
                    assert not leadership.is_leader
            else:
                async with guard as leadership:
                    await bob.force_release("x")
                    await asyncio.sleep(5)
        assert recorder.calls == [("alice", "elected"), ("alice", "lost")]

    rig.run(test())


def test_observing_shows_every_leader_and_every_vacancy(rig: Rig) -> None:
    async def test() -> None:
        alice, bob = rig.client(), rig.client()
        seen: list[str | None] = []
        stopped = False

        def note(leader: Any) -> bool:
            seen.append(leader and leader.holder_id)
            return stopped

        async def observe() -> None:
            leaders = election.observe(interval=0.005)
            if rig.runtime_name == "threads":
                for leader in leaders:
                    if note(leader):
                        return
            else:
                async for leader in leaders:
                    if note(leader):
                        return

        def was_last(holder_id: str) -> bool:
            return seen[-1] == holder_id

        election = rig.client().election("x")
        rig.start(observe)
        await rig.until(lambda: seen == [None])
        for client in (alice, bob):
            leadership = await ask(client.election("x").campaign())
            await rig.until(partial(was_last, client.holder_id))
            await ask(leadership.resign())
            await rig.until(lambda: seen[-1] is None)
        known = [leader for leader in seen if leader in {None, alice.holder_id, bob.holder_id}]
        assert known == [None, alice.holder_id, None, bob.holder_id, None]
        assert known == seen or not rig.can.records, "a session that is just letting go may show under its own name"
        stopped = True
        await ask(alice.election("x").campaign())
        await rig.until(lambda: seen[-1] == alice.holder_id)

    rig.run(test())


def test_closing_a_client_ends_its_elections_and_calls_on_lost(rig: Rig) -> None:
    async def test() -> None:
        recorder = CallbackRecorder()
        client, other = rig.client(), rig.client()
        client.election("x", **recorder.callbacks("background")).start()
        await ask(client.election("y", **recorder.callbacks("hand")).campaign())
        await rig.until(lambda: len(recorder.calls) == 2)
        client.election("y", **recorder.callbacks("waiting")).start()
        await ask(client.close())
        assert sorted(recorder.calls[2:]) == [("background", "lost"), ("hand", "lost")]
        for name in ("x", "y"):
            assert await ask(other.info(name)) is None

    rig.run(test())


def test_release_all_calls_on_lost_first(rig: Rig) -> None:
    async def test() -> None:
        recorder = CallbackRecorder()
        client = rig.client()
        leadership = await ask(client.election("x", **recorder.callbacks("alice")).campaign())
        await rig.until(lambda: recorder.calls)
        assert await ask(client.release_all()) == 1
        assert recorder.calls == [("alice", "elected"), ("alice", "lost")]
        assert not leadership.is_leader
        await ask(leadership.resign())

    rig.run(test())
