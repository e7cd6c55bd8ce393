"""`lockstead elect`: one of many runs the command, and another when that one fails."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from lockstead import DistributedLock
from tests.behaviour.cli.test_run_lost_lock import unusable
from tests.harness.command import Lockstead
from tests.harness.conditions import eventually
from tests.harness.processes import is_alive

LEADING = """
import os, signal, sys, time
if "stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
with open(sys.argv[1], "a", buffering=1) as journal:
    journal.write(f"{os.getpid()} {os.environ['LOCKSTEAD_NAME']} {os.environ['LOCKSTEAD_FENCE']}\\n")
    while True:
        with open(f"{sys.argv[1]}.last", "w") as beat:
            beat.write(str(time.clock_gettime(time.CLOCK_BOOTTIME)))
        time.sleep(0.005)
"""


class Candidate:
    """A `lockstead elect` whose command writes down each time it is run, and when it was last alive."""

    def __init__(self, lockstead: Lockstead, journal: Path, *options: str, manner: str = "obedient") -> None:
        self._journal = journal
        self.process = lockstead.start(
            "elect", "chief", *options, "--", sys.executable, "-c", LEADING, str(journal), manner
        )

    @property
    def terms(self) -> list[tuple[int, str, int]]:
        """Of each time that it led: the command's pid, the name, and the fence."""
        text = self._journal.read_text() if self._journal.exists() else ""
        rows = [line.split() for line in text.rpartition("\n")[0].splitlines()]
        return [(int(pid), name, int(fence)) for pid, name, fence in rows]

    def leads(self, term: int = 1) -> None:
        eventually(lambda: len(self.terms) == term, f"it leads for the {term}. time")

    def last_alive(self) -> float:
        eventually(lambda: not is_alive(self.terms[-1][0]), "its command is dead", within=5)
        return float(Path(f"{self._journal}.last").read_text() or 0)


def waits(lockstead: Lockstead, number: int = 1) -> None:
    eventually(lambda: (info := lockstead.info("chief")) and info.waiting == number, f"{number} wait")


def test_elect_exits_with_the_code_of_its_command_and_resigns(lockstead: Lockstead) -> None:
    finished = lockstead("elect", "chief", "--metadata", "zone=a", "--", "sh", "-c", "echo $LOCKSTEAD_NAME; exit 7")
    assert (finished.returncode, finished.stdout, finished.stderr) == (7, "chief\n", "")
    assert lockstead.info("chief") is None


def test_a_killed_leader_is_followed_within_the_ttl(lockstead: Lockstead, tmp_path: Path) -> None:
    first = Candidate(lockstead, tmp_path / "first", "--ttl", "1.5")
    first.leads()
    second = Candidate(lockstead, tmp_path / "second", "--ttl", "1.5", "--json")
    waits(lockstead)
    first.process.kill()
    killed = time.monotonic()
    second.leads()
    assert time.monotonic() - killed < 1.5 + 1.0
    assert not is_alive(first.terms[0][0])
    assert second.terms[0][2] > first.terms[0][2]
    assert lockstead("release", "chief", "--force").returncode == 0
    second.leads(2)


def test_a_deposed_leader_stops_its_command_and_campaigns_again(lockstead: Lockstead, tmp_path: Path) -> None:
    leader = Candidate(lockstead, tmp_path / "leader", "--ttl", "0.6")
    leader.leads()
    assert lockstead("release", "chief", "--force").returncode == 0
    leader.leads(2)
    (pid, name, fence), (again, _, greater) = leader.terms
    assert not is_alive(pid)
    assert is_alive(again)
    assert (name, fence < greater) == ("chief", True)
    leader.process.send_signal(signal.SIGTERM)
    assert leader.process.wait(10) == 128 + signal.SIGTERM
    assert "campaigning again" in leader.process.communicate()[1]
    assert lockstead.info("chief") is None


def test_without_renewals_the_command_is_dead_before_the_lease_ends_and_runs_again_after(
    lockstead: Lockstead, tmp_path: Path
) -> None:
    leader = Candidate(lockstead, tmp_path / "leader", "--ttl", "1.5", manner="stubborn")
    leader.leads()
    with unusable(lockstead.database) as expires_at:
        assert leader.last_alive() < expires_at
        eventually(lambda: time.clock_gettime(time.CLOCK_BOOTTIME) > expires_at, "the lease ends")
    leader.leads(2)
    leader.process.kill()


def test_a_signal_ends_the_wait_and_leaves_no_place(lockstead: Lockstead) -> None:
    with DistributedLock(lockstead.url) as locks, locks.lock("chief"):
        process = lockstead.start("elect", "chief", "--", "true")
        waits(lockstead)
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 128 + signal.SIGTERM
        waits(lockstead, 0)


def test_a_store_that_was_never_reachable_is_an_error_at_once(lockstead: Lockstead) -> None:
    finished = lockstead("elect", "chief", "--json", "--url", "redis://127.0.0.1:1", "--", "true")
    assert finished.returncode == json.loads(finished.stderr)["exit_code"] == 69


def test_a_command_that_cannot_be_run_is_an_error(lockstead: Lockstead) -> None:
    assert lockstead("elect", "chief", "--", os.devnull).returncode == 126
    assert lockstead("elect", "chief").returncode == 2
    finished = lockstead("elect", "chief", "--ttl", "2", "--grace", "1.5", "--", "true")
    assert (finished.returncode, "half of the lease" in finished.stderr) == (2, True)
