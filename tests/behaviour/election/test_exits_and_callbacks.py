"""What is one runtime's own in elections: exits, forks, cancellation, and callbacks that misbehave."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from lockstead import AsyncDistributedLock, ClosedError, DistributedLock, InvalidInputError, LockInfo, StoreError
from lockstead.primitives.election import BaseElection
from tests.harness.conditions import eventually


def run(program: str, url: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", "-c", program, url],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def is_free(url: str) -> bool:
    with DistributedLock(url) as locks:
        return locks.info("chief") is None


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'locks.db'}"


LEFT_TO_THE_EXIT = """
import sys, threading
from lockstead import DistributedLock
locks, elected = DistributedLock(sys.argv[1]), threading.Event()

def on_lost(leadership):
    print("lost", leadership.is_leader, locks.info("chief").holder_id == locks.holder_id)

locks.election("chief", on_elected=lambda _: elected.set(), on_lost=on_lost).start()
elected.wait()
"""

LEFT_TO_THE_LOOP = """
import asyncio, sys
from lockstead import AsyncDistributedLock

async def main():
    locks, elected = AsyncDistributedLock(sys.argv[1]), asyncio.Event()

    async def on_lost(leadership):
        print("lost", leadership.is_leader, (await locks.info("chief")).holder_id == locks.holder_id)

    locks.election("chief", on_elected=lambda _: elected.set(), on_lost=on_lost).start()
    await elected.wait()

asyncio.run(main())
"""

FORKED = """
import os, sys, threading, time
from lockstead import DistributedLock
locks, seen = DistributedLock(sys.argv[1], ttl=2), []
background = locks.election("chief", on_elected=lambda _: seen.append("elected"), on_lost=lambda _: seen.append("lost"))
background.start()
by_hand = locks.election("deputy", on_lost=lambda _: seen.append("lost")).campaign()
while not seen:
    time.sleep(0.01)
pid = os.fork()
if not pid:
    began = time.monotonic()
    assert not by_hand.is_leader
    by_hand.resign()
    background.stop()
    assert time.monotonic() - began < 1
    assert seen == ["elected"]
    background.start()  # and stands behind its parent
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert by_hand.is_leader
assert background.leader().is_me
by_hand.resign()
background.stop()
print(seen)
"""


@pytest.mark.parametrize("program", [LEFT_TO_THE_EXIT, LEFT_TO_THE_LOOP], ids=["threads", "asyncio"])
def test_a_process_that_ends_has_stopped_leading_before_the_lock_is_released(program: str, url: str) -> None:
    assert run(program, url) == "lost False True\n"
    assert is_free(url)


def test_a_forked_child_leads_nothing_and_ends_nothing(url: str) -> None:
    assert run(FORKED, url) == "['elected', 'lost', 'lost']\n"
    assert is_free(url)


def test_no_thread_is_left_soon_after_a_stop() -> None:
    with DistributedLock("memory://leftovers", ttl=0.3) as leader, DistributedLock("memory://leftovers") as locks:
        leadership = leader.election("chief").campaign()
        election = locks.election("chief", ttl=0.3, on_elected=lambda _: None)
        election.start()
        election.stop()
        election.start()
        leadership.resign()
        eventually(lambda: (now := election.leader()) and now.is_me, "it is elected")
        election.stop()
        names = ("lockstead-candidate", "lockstead-elected")
        eventually(lambda: not any(thread.name in names for thread in threading.enumerate()), "all threads end")


def test_threads_refuse_callbacks_that_would_only_make_a_coroutine() -> None:
    async def start(leadership: Any) -> None:
        return

    with DistributedLock("memory://") as locks, pytest.raises(InvalidInputError, match="AsyncDistributedLock"):
        locks.election("chief", on_elected=start)


def test_work_that_goes_on_holds_the_lock_until_it_ends() -> None:
    """So on_elected may be the work itself."""
    with DistributedLock("memory://work") as locks, DistributedLock("memory://work") as others:
        seen: list[LockInfo | None] = []
        begun = threading.Event()

        def work(leadership: Any) -> None:
            begun.set()
            while leadership.is_leader:
                time.sleep(0.001)
            time.sleep(0.05)
            seen.append(others.info("chief"))

        election = locks.election("chief", on_elected=work)
        election.start()
        assert begun.wait(5)
        election.stop()
        assert seen[0] is not None
        assert seen[0].holder_id == locks.holder_id
        assert others.info("chief") is None


def test_on_lost_may_stop_and_resign() -> None:
    with DistributedLock("memory://inside", ttl=20) as locks:
        begun, ended = threading.Event(), threading.Event()

        def on_lost(leadership: Any) -> None:
            leadership.resign()
            election.stop()
            ended.set()

        election = locks.election("chief", on_elected=lambda _: begun.set(), on_lost=on_lost)
        election.start()
        assert begun.wait(5)
        assert locks.release_all() == 1
        assert ended.wait(5)
        eventually(lambda: election.leader() is None, "it stands no more")


def test_a_cancelled_resignation_goes_on() -> None:
    async def test() -> None:
        async with AsyncDistributedLock("memory://cancelled") as locks:
            begun, may_end = asyncio.Event(), asyncio.Event()

            async def on_lost(leadership: Any) -> None:
                begun.set()
                await may_end.wait()

            election = locks.election("chief", on_lost=on_lost)
            resigning = asyncio.create_task((await election.campaign()).resign())
            await begun.wait()
            resigning.cancel()
            with pytest.raises(asyncio.CancelledError):
                await resigning
            assert await election.leader() is not None
            may_end.set()
            await (await locks.acquire("chief", timeout=5)).release()

    asyncio.run(test())


def test_observe_retries_transient_errors_and_raises_others(monkeypatch: pytest.MonkeyPatch) -> None:
    with DistributedLock("memory://observed") as locks:
        answers: list[Any] = [None, StoreError("no answer", transient=True), StoreError("forbidden")]

        async def find(self: Any) -> Any:
            answer = answers.pop(0)
            if isinstance(answer, StoreError):
                raise answer
            return answer

        monkeypatch.setattr(BaseElection, "_leader", find)
        leaders = locks.election("chief").observe(interval=0.001)
        assert next(leaders) is None
        with pytest.raises(StoreError, match="forbidden"):
            next(leaders)
        assert answers == []
        with pytest.raises(InvalidInputError, match="interval"):
            next(locks.election("chief").observe(interval=0))


def test_a_leadership_without_callbacks_ends_when_it_is_dropped() -> None:
    with DistributedLock("memory://dropped", ttl=0.3) as locks:
        election = locks.election("chief")
        election.campaign()
        eventually(lambda: election.leader() is None, "it has ended", within=3)


def test_a_closed_client_is_no_candidate() -> None:
    locks = DistributedLock("memory://")
    election = locks.election("chief")
    locks.close()
    with pytest.raises(ClosedError):
        election.start()


@pytest.mark.parametrize("end", ["close", "release_all"])
def test_a_client_that_ends_during_a_resignation_waits_for_on_lost(end: str) -> None:
    with DistributedLock("memory://resigning") as others:
        locks, begun, may_end = DistributedLock("memory://resigning"), threading.Event(), threading.Event()
        seen: list[LockInfo | None] = []

        def on_lost(leadership: Any) -> None:
            begun.set()
            may_end.wait(5)
            seen.append(others.info("chief"))

        leadership = locks.election("chief", on_lost=on_lost).campaign()
        resigning, ending = threading.Thread(target=leadership.resign), threading.Thread(target=getattr(locks, end))
        resigning.start()
        assert begun.wait(5)
        ending.start()
        ending.join(0.05)
        assert ending.is_alive()
        may_end.set()
        for thread in (resigning, ending):
            thread.join(5)
        assert seen[0] is not None
        assert seen[0].holder_id == locks.holder_id
        assert others.info("chief") is None
        locks.close()


@pytest.mark.parametrize("grace", [0, None])
def test_a_client_that_is_closed_after_a_loss_waits_for_on_lost(grace: float | None) -> None:
    with DistributedLock("memory://deposed") as others:
        locks, begun, may_end = DistributedLock("memory://deposed"), threading.Event(), threading.Event()

        def on_lost(leadership: Any) -> None:
            begun.set()
            may_end.wait(5)

        locks.election("chief", ttl=1, grace=grace, on_lost=on_lost).campaign()
        others.force_release("chief")
        assert begun.wait(5)
        closing = threading.Thread(target=locks.close)
        closing.start()
        closing.join(0.5)
        assert closing.is_alive()
        may_end.set()
        closing.join(5)
        assert not closing.is_alive()


def test_on_lost_has_been_called_when_a_client_was_closed_right_after_its_election() -> None:
    seen: list[str] = []
    for number in range(1, 21):
        with DistributedLock("memory://") as locks:
            locks.election("chief", on_lost=lambda _: seen.append("lost")).campaign()
        assert len(seen) == number
