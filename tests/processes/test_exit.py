"""A process that ends in an ordinary way leaves nothing behind. The ways to end are in programs/ending.py."""

from __future__ import annotations

import random
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lockstead import DistributedLock, StoreError
from tests.harness.conditions import eventually
from tests.harness.processes import Worker, run
from tests.harness.sqlite import rows, url_of


@pytest.mark.parametrize(
    ("scenario", "status"),
    [
        ("kept_by_a_global", 0),
        ("kept_by_a_global_in_asyncio", 0),
        ("only_the_handle_is_kept", 0),
        ("only_the_handle_is_kept_in_asyncio", 0),
        ("kept_by_a_loop_that_was_only_closed", 0),
        ("kept_by_a_function_that_returned", 0),
        ("kept_by_a_coroutine_that_returned", 0),
        ("an_exception", 1),
        ("an_exception_in_asyncio", 1),
        ("sys_exit_inside_with", 3),
        ("sys_exit_in_a_thread", 0),
        ("sys_exit_inside_async_with", 3),
        ("sys_exit_while_a_task_holds", 3),
        ("a_daemon_thread_waits", 0),
    ],
)
def test_a_process_that_ends_without_a_release_leaves_no_place(scenario: str, status: int, path: Path) -> None:
    worker = run("processes/programs/ending.py", scenario, path)
    assert worker.process.returncode == status
    assert "could not release" not in worker.errors
    assert "Event loop is closed" not in worker.errors
    assert ("the program's own" in worker.errors) == (status == 1)
    assert rows(path) == []


@pytest.mark.parametrize("scenario", ["waiting", "waiting_in_asyncio"])
def test_an_interrupt_in_acquire_ends_the_process_and_leaves_no_place(
    scenario: str, start_worker: Callable[..., Worker], locks: DistributedLock, path: Path
) -> None:
    mine = locks.acquire("job")
    worker = start_worker("processes/programs/ending.py", scenario, path)
    assert worker.answer()["waiting"]
    eventually(lambda: [info.waiting for info in locks.inspect()] == [1], "it waits in line")
    worker.signal(signal.SIGINT)
    assert worker.wait(within=5) != 0
    assert worker.errors.rstrip().endswith("KeyboardInterrupt")
    assert [owner.rpartition("/")[0] for _, owner in rows(path)] == [locks.holder_id]
    mine.check()


def test_an_interrupt_anywhere_ends_the_process_and_leaves_no_place(
    start_worker: Callable[..., Worker], path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    for _ in range(12):
        worker = start_worker("processes/programs/ending.py", "busy", path)
        assert worker.answer()["busy"]
        delay = chance.uniform(0.0, 0.05)
        time.sleep(delay)  # not for luck: the moment of the interrupt is what chance chooses
        worker.signal(signal.SIGINT)
        assert worker.wait(within=5) != 0
        # Interrupted between making a coroutine of the core and driving it, Python adds that it was never awaited.
        errors = re.sub(r"\nsys:1: RuntimeWarning: coroutine '[\w.]+' was never awaited\n$", "", worker.errors)
        assert errors.rstrip().endswith("KeyboardInterrupt"), f"after {delay} s: {worker.errors}"
        with DistributedLock(url_of(path)) as locks:
            locks.inspect()  # which makes whatever the interrupted one had not yet made of the file
        assert rows(path) == [], f"after {delay} s: {worker.errors}"


def test_interrupts_anywhere_do_not_make_the_client_unusable(path: Path, seed: int) -> None:
    worker = run("processes/programs/ending.py", "interrupted_again_and_again", path, env={"LOCKSTEAD_SEED": str(seed)})
    assert worker.process.returncode == 0, worker.errors
    assert rows(path) == []


def test_a_client_closed_after_a_failure_does_not_go_on_trying(path: Path) -> None:
    path.write_bytes(b"no database at all" * 100)
    with DistributedLock(url_of(path)) as locks, pytest.raises(StoreError):
        locks.acquire("job")
    keeper = locks._engine.keeper
    eventually(lambda: not keeper.leases, "the closed client forgets what it can do nothing about", within=2)
