"""A process that asked for it releases what it holds before a signal ends it: programs/terminated.py."""

from __future__ import annotations

import random
import signal
import threading
import time
from pathlib import Path

import pytest

from lockstead import AsyncDistributedLock, ClosedError, DistributedLock, InvalidInputError, UnsupportedError
from tests.harness.processes import Program
from tests.harness.sqlite import rows, url_of

PROGRAM = "processes/programs/terminated.py"


def terminate(
    scenario: str, path: Path, number: signal.Signals = signal.SIGTERM, delay: float = 0.0, text: str = ""
) -> tuple[int | None, str]:
    """Send the signal once the program is ready; return how it ended and what it said."""
    program = Program(PROGRAM, scenario, url_of(path))
    try:
        assert program.read_line() == "ready\n", program.communicate()
        time.sleep(delay)  # not for luck: the moment of the signal is what chance chooses
        program.signal(number)
        said, errors = program.communicate(text)
    finally:
        program.dispose()
    assert "could not" not in errors, errors
    assert "failed" not in errors, errors
    return program.status, said


@pytest.mark.parametrize(
    "scenario",
    [
        "holds",
        "has_several_clients",
        "threads_work",
        "holds_in_asyncio",
        "holds_in_uvloop",
        "holds_after_its_loop",
        "is_terminated_by_multiprocessing",
    ],
)
def test_sigterm_releases_and_then_ends_the_process_as_it_would_have(scenario: str, path: Path) -> None:
    assert terminate(scenario, path) == (-signal.SIGTERM, "")
    assert rows(path) == []


def test_without_release_on_a_lock_stays(path: Path) -> None:
    assert terminate("does_not_ask_for_it", path) == (-signal.SIGTERM, "")
    assert [name for name, _ in rows(path)] == ["job"]


def test_sigterm_removes_a_place_that_waits(path: Path, locks: DistributedLock) -> None:
    with locks.lock("taken"):
        assert terminate("waits", path) == (-signal.SIGTERM, "")
        assert len(rows(path)) == 1


@pytest.mark.parametrize("scenario", ["leads", "leads_in_asyncio"])
def test_sigterm_calls_on_lost_before_the_lock_is_released(scenario: str, path: Path) -> None:
    assert terminate(scenario, path) == (-signal.SIGTERM, "lost False True\n")
    assert rows(path) == []


def test_sigterm_anywhere_releases(path: Path, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(12):
        delay = chance.uniform(0.0, 0.03)
        assert terminate("is_busy", path, delay=delay) == (-signal.SIGTERM, "")
        assert rows(path) == [], f"after {delay} s"


def test_a_handler_of_the_program_decides_and_nothing_is_released_while_its_work_goes_on(path: Path) -> None:
    assert terminate("decides_itself", path) == (0, "held to the end\n")
    assert rows(path) == []


def test_ctrl_c_still_raises_in_the_block_that_holds(path: Path) -> None:
    said = "interrupted, held: False\n"
    assert terminate("raises_in_its_handler", path, signal.SIGINT) == (
        -signal.SIGINT,
        said,
    )
    assert rows(path) == []


def test_a_signal_that_is_ignored_stays_ignored(path: Path) -> None:
    assert terminate("ignores", path, text="go on\n") == (0, "held to the end\n")


def test_only_the_main_thread_may_ask_for_it() -> None:
    errors: list[BaseException] = []

    def ask(locks: DistributedLock | AsyncDistributedLock) -> None:
        try:
            locks.release_on(signal.SIGTERM)
        except UnsupportedError as error:
            errors.append(error)

    with DistributedLock("memory://") as locks:
        for client in (locks, AsyncDistributedLock("memory://")):
            thread = threading.Thread(target=ask, args=(client,))
            thread.start()
            thread.join()
    assert ["main thread" in str(error) for error in errors] == [True, True]


@pytest.mark.parametrize("numbers", [(), (signal.SIGKILL,), (signal.SIGCHLD,), (signal.SIGTERM, 0), ("SIGTERM",)])
def test_signals_that_do_not_end_a_process_are_refused(numbers: tuple[int, ...]) -> None:
    with DistributedLock("memory://") as locks, pytest.raises(InvalidInputError, match="SIGTERM"):
        locks.release_on(*numbers)


def test_a_closed_client_refuses() -> None:
    locks = DistributedLock("memory://")
    locks.close()
    with pytest.raises(ClosedError):
        locks.release_on(signal.SIGTERM)
