"""`lockstead run` when its lease ends too early: the command is stopped before another client can hold."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from lockstead import DistributedLock
from lockstead.cli import main
from tests.harness.command import Lockstead
from tests.harness.conditions import eventually
from tests.harness.processes import is_alive

BEATING = """
import os, signal, sys, time
is_command = os.fork() > 0
if "stubborn" in sys.argv or ("stubborn-descendant" in sys.argv and not is_command):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
with open("command" if is_command else "descendant", "w", buffering=1) as journal:
    journal.write(f"{os.getpid()}\\n")
    for _ in range(3000):
        journal.write(f"{time.clock_gettime(time.CLOCK_BOOTTIME)}\\n")
        time.sleep(0.005)
"""


class Victim:
    """A `lockstead run` whose command and its descendant write down when they were last alive."""

    def __init__(
        self, lockstead: Lockstead, directory: Path, *options: str, manner: str = "stubborn", **streams: Any
    ) -> None:
        self._journals = (directory / "command", directory / "descendant")
        command = (sys.executable, "-c", BEATING, manner)
        self.process = lockstead.start("run", "job", *options, "--", *command, cwd=directory, **streams)
        eventually(lambda: all(len(self._lines(path)) > 1 for path in self._journals), "both run")

    @property
    def pids(self) -> list[int]:
        return [int(self._lines(path)[0]) for path in self._journals]

    def last_alive(self) -> float:
        """Wait until both are dead, and return when the last of them was alive."""
        eventually(lambda: not any(map(is_alive, self.pids)), "both are dead", within=5)
        return max(float(self._lines(path)[-1]) for path in self._journals)

    @staticmethod
    def _lines(path: Path) -> list[str]:
        return path.read_text().rpartition("\n")[0].split() if path.exists() else []


@contextmanager
def unusable(database: Path) -> Iterator[float]:
    """Keep a database locked, and yield when, on the boot clock, the lease in it ends."""
    with closing(sqlite3.connect(database, timeout=5, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        (expires_at,) = connection.execute("SELECT expires_at FROM place").fetchone()
        yield expires_at
        connection.execute("ROLLBACK")


def test_without_renewals_all_are_killed_before_the_lease_ends(lockstead: Lockstead, tmp_path: Path) -> None:
    victim = Victim(lockstead, tmp_path, "--ttl", "1.5")
    with unusable(lockstead.database) as expires_at:
        last = victim.last_alive()
        assert last < expires_at
        assert last > expires_at - 0.5, "they could have had more time"
    assert victim.process.wait(10) == 74
    with DistributedLock(lockstead.url) as locks, locks.lock("job", timeout=5):
        assert time.clock_gettime(time.CLOCK_BOOTTIME) > last
    assert "'job'" in victim.process.communicate()[1]


def test_without_renewals_an_obedient_command_has_its_grace(lockstead: Lockstead, tmp_path: Path) -> None:
    victim = Victim(lockstead, tmp_path, "--ttl", "2", "--grace", "1", manner="obedient")
    with unusable(lockstead.database) as expires_at:
        assert expires_at - victim.last_alive() > 0.8
    assert victim.process.wait(10) == 74


def test_a_descendant_that_outlives_an_obedient_command_is_killed(lockstead: Lockstead, tmp_path: Path) -> None:
    victim = Victim(lockstead, tmp_path, "--max-hold", "2", manner="stubborn-descendant")
    assert victim.process.wait(10) == 74
    victim.last_alive()


def test_a_full_pipe_does_not_keep_the_command_alive(lockstead: Lockstead, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with closing(os.fdopen(reader, "rb")), os.fdopen(writer, "wb", buffering=0) as full:
        while full.write(b"\n" * 4096):
            pass
        os.set_blocking(writer, True)
        victim = Victim(lockstead, tmp_path, "--ttl", "1", stderr=full)
        with unusable(lockstead.database) as expires_at:
            assert victim.last_alive() < expires_at
        victim.process.kill()


def test_a_recovered_store_does_not_save_a_command_that_was_sent_sigterm(lockstead: Lockstead, tmp_path: Path) -> None:
    victim = Victim(lockstead, tmp_path, "--ttl", "3", "--grace", "1.5")
    with unusable(lockstead.database) as expires_at:
        clock = time.CLOCK_BOOTTIME
        eventually(lambda: time.clock_gettime(clock) > expires_at - 1.4, "SIGTERM must have been sent")
    assert victim.last_alive() < expires_at
    assert victim.process.wait(10) == 74
    assert lockstead.info("job") is None


def test_renewals_keep_a_command_far_beyond_its_ttl(lockstead: Lockstead) -> None:
    finished = lockstead("run", "job", "--ttl", "0.6", "--grace", "0.3", "--", "sleep", "2.5")
    assert (finished.returncode, finished.stderr) == (0, "")


def test_a_lock_taken_away_stops_the_command(lockstead: Lockstead, tmp_path: Path) -> None:
    victim = Victim(lockstead, tmp_path, "--ttl", "1.5", "--grace", "0.7")
    released = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert lockstead("release", "job", "--force").returncode == 0
    assert victim.last_alive() - released < 1.5 + 0.5
    assert victim.process.wait(10) == 74
    assert "lost" in victim.process.communicate()[1]


def test_a_loss_is_acted_on_as_soon_as_a_renewal_reports_it(
    lockstead: Lockstead, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockstead.cli.supervisor.MAX_SLEEP", 60.0)
    taken = []

    def take_away() -> None:
        eventually(lambda: lockstead.info("job"), "it is held")
        with DistributedLock(lockstead.url) as locks:
            locks.force_release("job")
        taken.append(time.monotonic())

    thread = threading.Thread(target=take_away)
    thread.start()
    assert main(["run", "job", "--url", lockstead.url, "--ttl", "3", "--grace", "0", "--", "sleep", "60"]) == 74
    assert time.monotonic() - taken[0] < 2.0, "the next renewal is due after 1.2 s at most"
    thread.join()


def test_run_exits_with_74_if_the_loss_shows_only_at_the_release(lockstead: Lockstead) -> None:
    take_away = f"{sys.executable} -m lockstead release job --force"
    finished = lockstead("run", "job", "--json", "--", "sh", "-c", f"{take_away}; exit 3")
    output = json.loads(finished.stderr)
    assert finished.returncode == output["exit_code"] == 74
    assert (output["error"], output["name"], output["ending"]) == ("lease_lost", "job", 3)


def test_max_hold_ends_the_command_in_time(lockstead: Lockstead, tmp_path: Path) -> None:
    began = time.clock_gettime(time.CLOCK_BOOTTIME)
    victim = Victim(lockstead, tmp_path, "--ttl", "1", "--max-hold", "2")
    granted_by = float(Victim._lines(tmp_path / "command")[1])
    last = victim.last_alive()
    assert last < granted_by + 2
    assert last > began + 1.5
    assert victim.process.wait(10) == 74
    assert "--max-hold (2.0s)" in victim.process.communicate()[1]


def test_a_stopped_wrapper_checks_its_lease_before_anything_else(lockstead: Lockstead, tmp_path: Path) -> None:
    victim = Victim(lockstead, tmp_path, "--ttl", "1")
    victim.process.send_signal(signal.SIGSTOP)
    eventually(lambda: lockstead.info("job") is None, "the lease has ended")
    resumed = time.clock_gettime(time.CLOCK_BOOTTIME)
    victim.process.send_signal(signal.SIGCONT)
    assert victim.last_alive() - resumed < 0.9
    assert victim.process.wait(10) == 74


def test_loss_as_json_is_one_object(lockstead: Lockstead) -> None:
    finished = lockstead("run", "job", "--max-hold", "0.6", "--json", "--", "sleep", "60")
    output = json.loads(finished.stderr)
    assert (finished.returncode, output["error"], output["ending"]) == (74, "lease_lost", -signal.SIGTERM)


def test_a_command_stopped_by_another_process_is_resumed_to_be_ended(lockstead: Lockstead, tmp_path: Path) -> None:
    process = lockstead.start(
        "run",
        *("job", "--max-hold", "2", "--", "sh", "-c", "trap 'touch signalled; exit' TERM; touch ready; kill -STOP $$"),
        cwd=tmp_path,
        stderr=subprocess.DEVNULL,
    )
    assert process.wait(10) == 74
    assert (tmp_path / "ready").exists()
    assert (tmp_path / "signalled").exists()
