"""`lockstead` in an interactive shell, on a terminal of its own."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstead import DistributedLock
from tests.harness.command import Lockstead
from tests.harness.conditions import DEADLINE, eventually

# Commands here do not fork: dash, a common sh, forgets signals that come while it does.
CTRL_C, CTRL_Z = "\x03", "\x1a"


class Shell:
    """An interactive bash on a pseudo-terminal of 60 columns."""

    def __init__(self, lockstead: Lockstead) -> None:
        path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
        environment = lockstead.environment | {"PS1": "$ ", "TERM": "xterm", "PATH": path}
        environment.pop("NO_COLOR", None)
        self._pid, self._terminal = pty.fork()
        if self._pid == 0:
            os.chdir(lockstead.database.parent)
            os.execvpe("bash", ["bash", "--norc", "--noprofile", "--noediting", "-i"], environment)
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 60, 0, 0))
        self._seen = ""
        self.expect(r"\$ $")

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def expect(self, pattern: str) -> str:
        """Read until the pattern shows, and return everything up to its end."""
        deadline = time.monotonic() + DEADLINE
        while not (found := re.search(pattern, self._seen)):
            left = deadline - time.monotonic()
            assert left > 0, f"{pattern!r} never showed in {self._seen!r}"
            if select.select([self._terminal], [], [], left)[0]:
                self._seen += os.read(self._terminal, 65536).decode()
        shown, self._seen = self._seen[: found.end()], self._seen[found.end() :]
        return shown

    def hang_up(self) -> None:
        os.close(self._terminal)
        self._terminal = -1

    def close(self) -> None:
        if self._terminal >= 0:
            self.hang_up()
        eventually(lambda: os.waitpid(self._pid, os.WNOHANG)[0], "the shell ends")


@pytest.fixture
def shell(lockstead: Lockstead) -> Iterator[Shell]:
    shell = Shell(lockstead)
    yield shell
    shell.close()


def test_a_command_reads_from_the_terminal(shell: Shell) -> None:
    shell.type("lockstead run job -- sh -c 'read word; echo \"[$word]\"'; echo code=$?\n")
    shell.expect("code=.*\n")
    shell.type("hello\n")
    shell.expect(r"\[hello\]\r\ncode=0\r\n")


def test_a_command_in_a_pipeline_reads_from_the_terminal(shell: Shell) -> None:
    shell.type("lockstead run job -- sh -c 'read word; echo \"[$word]\"' | cat\n")
    shell.expect("cat\r\n")
    shell.type("hello\n")
    shell.expect(r"\[hello\]\r\n")


def test_control_c_ends_the_command_and_the_script_around_it(
    shell: Shell, lockstead: Lockstead, tmp_path: Path
) -> None:
    (tmp_path / "script").write_text("lockstead run job -- sh -c 'echo be''gun; exec sleep 60'\necho went on\n")
    shell.type("bash script; echo code=$?\n")
    shell.expect("begun")
    shell.type(CTRL_C)
    assert "went on" not in shell.expect(r"code=130|\$ $")
    eventually(lambda: lockstead.info("job") is None, "it is released")


@pytest.mark.parametrize(("subcommand", "what"), [("run", "for"), ("elect", "to lead")])
def test_a_wait_on_a_terminal_names_what_is_waited_for_and_its_holder(
    shell: Shell, lockstead: Lockstead, subcommand: str, what: str
) -> None:
    with DistributedLock(lockstead.url) as locks, locks.lock("job"):
        shell.type(f"lockstead {subcommand} job -- echo ra''n\n")
        shell.expect(rf"lockstead: waiting {what} 'job', held by {locks.holder_id} for \d+\.\ds\r\n")
        eventually(lambda: (info := locks.info("job")) and info.waiting, "it waits")
    assert "waiting" not in shell.expect(r"ran\r\n")
    shell.type(f"lockstead {subcommand} job -- echo ra''n\n")
    assert "waiting" not in shell.expect(r"ran\r\n")


def test_control_c_ends_the_wait_and_the_script_around_it(shell: Shell, lockstead: Lockstead, tmp_path: Path) -> None:
    (tmp_path / "script").write_text("lockstead run job -- echo ran\necho went on\n")
    with DistributedLock(lockstead.url) as locks, locks.lock("job") as handle:
        shell.type("bash script\n")
        eventually(lambda: (info := handle.info()) and info.waiting, "it waits")
        shell.type(CTRL_C)
        assert "went on" not in shell.expect(r"\^C\r\n(.|\n)*\$ $")
        info = handle.info()
        assert info is not None
        assert info.waiting == 0


def test_control_z_stops_the_job_and_fg_resumes_it(shell: Shell) -> None:
    shell.type("lockstead run job -- sh -c 'echo be''gun; read word; echo \"[$word]\"'\n")
    shell.expect("begun")
    shell.type(CTRL_Z)
    shell.expect(r"Stopped(.|\n)*\$ $")
    shell.type("fg\n")
    shell.expect("fg\r\n")
    shell.type("hello\n")
    shell.expect(r"\[hello\]")


def test_a_job_stopped_for_too_long_is_killed_before_it_runs_on(
    shell: Shell, lockstead: Lockstead, tmp_path: Path
) -> None:
    (tmp_path / "beat").write_text(
        "import time\nprint('begun')\nwhile True:\n  open('beats', 'a').write('.')\n  time.sleep(0.01)\n"
    )
    shell.type("lockstead run job --ttl 1 -- python -u beat\n")
    shell.expect("begun")
    eventually((tmp_path / "beats").exists, "the command works")
    shell.type(CTRL_Z)
    shell.expect(r"Stopped(.|\n)*\$ $")
    beats = (tmp_path / "beats").stat().st_size
    eventually(lambda: lockstead.info("job") is None, "the lease has ended")
    shell.type("fg; echo code=$?\n")
    shell.expect(r"code=74\r\n")
    assert (tmp_path / "beats").stat().st_size == beats


def test_a_killed_command_leaves_the_terminal_usable(shell: Shell, lockstead: Lockstead) -> None:
    shell.type("lockstead run job --ttl 1 -- sh -c 'stty raw -echo; echo be''gun; exec sleep 60'; echo code=$?\n")
    shell.expect("begun")
    lockstead("release", "job", "--force")
    shell.expect(r"code=74\r\n")
    shell.type("stty -a\n")
    assert re.search(r"[^-]echo ", shell.expect("echoe"))


def test_a_terminal_that_is_hung_up_ends_the_command_and_frees_the_lock(
    shell: Shell, lockstead: Lockstead, tmp_path: Path
) -> None:
    shell.type("lockstead run job -- sh -c 'echo be''gun; exec sleep 60' 2> complaints\n")
    shell.expect("begun")
    shell.hang_up()
    eventually(lambda: lockstead.info("job") is None, "it is released")
    assert (tmp_path / "complaints").read_text() == ""


def test_a_table_on_a_terminal_has_colour_and_fits(shell: Shell, lockstead: Lockstead) -> None:
    with DistributedLock(lockstead.url) as locks, locks.lock("job", metadata={"note": "x" * 100}):
        shell.type("lockstead ls\n")
        shell.expect("ls\r\n")
        header = shell.expect("WAITING.*\n")
        assert "\033[1mNAME" in header
        assert "METADATA" not in header
        assert len(shell.expect("job.*\n")) <= 62
        shell.type("NO_COLOR=1 lockstead ls\n")
        shell.expect("ls\r\n")
        assert "\033" not in shell.expect("WAITING.*\n")
