"""`lockstead run`: what the command gets, what the caller gets back, and that nothing stays held."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lockstead import DistributedLock
from tests.harness.command import Lockstead
from tests.harness.conditions import eventually
from tests.harness.processes import is_alive
from tests.servers.redis import RedisServer

FORWARDED = ("TERM", "INT", "HUP", "QUIT", "USR1", "USR2")
ENDING = ("TERM", "INT", "HUP", "QUIT")


def test_the_commands_exit_code_is_passed_on(lockstead: Lockstead) -> None:
    assert lockstead("run", "job", "--", "sh", "-c", "exit 7").returncode == 7
    assert lockstead("run", "job", "--", "true").returncode == 0


def test_a_command_killed_by_a_signal_gives_128_and_its_number(lockstead: Lockstead) -> None:
    assert lockstead("run", "job", "--", "sh", "-c", "kill -USR1 $$").returncode == 128 + signal.SIGUSR1


def test_the_command_gets_name_and_fence_in_its_environment(lockstead: Lockstead) -> None:
    show = f"{sys.executable} -m lockstead show job --json"
    finished = lockstead("run", "job", "--", "sh", "-c", f"echo $LOCKSTEAD_NAME $LOCKSTEAD_FENCE; {show}")
    first, _, rest = finished.stdout.partition("\n")
    name, fence = first.split()
    assert name == "job"
    assert int(fence) == json.loads(rest)["fence"]


def test_the_fence_grows_from_run_to_run(lockstead: Lockstead) -> None:
    fences = [int(lockstead("run", "job", "--", "sh", "-c", "echo $LOCKSTEAD_FENCE").stdout) for _ in range(3)]
    assert fences == sorted(set(fences))


def test_run_releases_its_lock_after_the_command(lockstead: Lockstead) -> None:
    lockstead("run", "job", "--", "true")
    assert lockstead.info("job") is None


def test_the_lock_stays_reserved_for_at_least(lockstead: Lockstead) -> None:
    tick = ("run", "cron:x", "--timeout", "0", "--at-least", "60", "--", "echo", "ran")
    first, second = lockstead(*tick), lockstead(*tick)
    assert (first.returncode, first.stdout) == (0, "ran\n")
    assert (second.returncode, second.stdout) == (75, "")
    assert "has released it, but reserved the name for another 5" in second.stderr
    info = lockstead.info("cron:x")
    assert info is not None
    assert info.holders[0].reserved
    assert "reserved" in lockstead("ls").stdout


def test_stdin_stdout_and_stderr_are_the_commands(lockstead: Lockstead) -> None:
    finished = lockstead("run", "job", "--", "sh", "-c", "cat; echo problem >&2", input="in", stdin=None)
    assert (finished.stdout, finished.stderr) == ("in", "problem\n")


def test_arguments_reach_the_command_as_they_are(lockstead: Lockstead) -> None:
    finished = lockstead("run", "job", "--", "printf", "[%s]", "--json", "--", "a  b", "")
    assert finished.stdout == "[--json][--][a  b][]"


@pytest.mark.parametrize(("command", "code"), [("no-such-command", 127), ("/etc/passwd", 126), ("/etc", 126)])
def test_a_command_that_cannot_start_leaves_nothing_held(lockstead: Lockstead, command: str, code: int) -> None:
    finished = lockstead("run", "job", "--", command)
    assert finished.returncode == code
    assert command in finished.stderr
    assert lockstead.info("job") is None


@pytest.mark.parametrize("timeout", ["0", "0.3"])
def test_busy_names_the_holder_and_how_long_it_has_held(lockstead: Lockstead, timeout: str) -> None:
    lockstead.hold("job")
    holder = lockstead.info("job")
    assert holder is not None
    finished = lockstead("run", "job", "--timeout", timeout, "--", "echo", "ran")
    assert (finished.returncode, finished.stdout) == (75, "")
    assert f"held by {holder.holder_id}, for " in finished.stderr
    assert finished.stderr.endswith("; raise timeout, or see `lockstead show job`\n")
    assert "Traceback" not in finished.stderr


def test_busy_as_json_has_the_whole_holder(lockstead: Lockstead) -> None:
    lockstead.hold("job", "--metadata", "host=web-1")
    finished = lockstead("run", "job", "--timeout", "0", "--json", "--", "echo", "ran")
    output = json.loads(finished.stderr)
    assert (finished.returncode, output["exit_code"], output["error"], output["name"]) == (75, 75, "busy", "job")
    assert output["holder"]["metadata"] == {"host": "web-1"}


def test_run_without_a_timeout_waits_for_the_lock(lockstead: Lockstead) -> None:
    holder = lockstead.hold("job")
    waiter = lockstead.start("run", "job", "--", "echo", "ran")
    eventually(lambda: waiting(lockstead) == 1, "the second waits")
    holder.terminate()
    assert waiter.communicate(timeout=10)[0] == "ran\n"
    assert waiter.returncode == 0


def test_a_command_whose_lock_was_waited_for_has_the_whole_ttl(
    lockstead: Lockstead, redis_server: RedisServer, key_prefix: str
) -> None:
    """A grant that the store has pushed is trusted for a heartbeat at first: for less than the grace."""
    lockstead.use(f"{redis_server.url}?key_prefix={key_prefix}")
    holder = lockstead.hold("job")
    waiter = lockstead.start("run", "job", "--ttl", "60", "--", "sh", "-c", "sleep 0.5; echo ran")
    eventually(lambda: waiting(lockstead) == 1, "the second waits")
    holder.terminate()
    assert waiter.communicate(timeout=10) == ("ran\n", "")
    assert waiter.returncode == 0


def test_metadata_is_read_from_pairs_and_json(lockstead: Lockstead) -> None:
    lockstead.hold("job", "--metadata", "host=web=1", "--metadata", '{"tries": 2, "tags": ["a"]}')
    info = lockstead.info("job")
    assert info is not None
    assert info.metadata == {"host": "web=1", "tries": 2, "tags": ["a"]}


@pytest.mark.parametrize("name", FORWARDED)
def test_signals_are_forwarded(lockstead: Lockstead, name: str, tmp_path: Path) -> None:
    script = (
        "import pathlib, signal, sys, time\n"
        f"signal.signal(signal.SIG{name}, lambda *_: sys.exit(5))\n"
        "pathlib.Path('ready').touch()\n"
        "while True: time.sleep(0.05)"  # a signal that comes just before signal.pause() would be slept over
    )
    process = lockstead.start("run", "job", "--", sys.executable, "-c", script, cwd=tmp_path)
    eventually((tmp_path / "ready").exists, "the command runs")
    process.send_signal(getattr(signal, f"SIG{name}"))
    assert process.wait(10) == 5
    assert lockstead.info("job") is None


def test_a_terminated_command_takes_its_descendants_along(lockstead: Lockstead, tmp_path: Path) -> None:
    process = lockstead.start("run", "job", "--", "sh", "-c", "sleep 60 & echo $! > pid; wait", cwd=tmp_path)
    descendant = int(eventually(lambda: text_of(tmp_path / "pid"), "the descendant runs"))
    process.terminate()
    assert process.wait(10) == 128 + signal.SIGTERM
    eventually(lambda: not is_alive(descendant), "the descendant is gone")


def test_user_signals_are_for_the_command_alone(lockstead: Lockstead, tmp_path: Path) -> None:
    script = "trap 'touch signalled' USR1; sleep 60 & echo $! > pid; wait; wait"
    process = lockstead.start("run", "job", "--", "sh", "-c", script, cwd=tmp_path)
    descendant = int(eventually(lambda: text_of(tmp_path / "pid"), "the descendant runs"))
    process.send_signal(signal.SIGUSR1)
    eventually((tmp_path / "signalled").exists, "the command got it")
    assert is_alive(descendant)


def test_a_process_that_the_command_leaves_running_is_not_killed(lockstead: Lockstead, tmp_path: Path) -> None:
    lockstead("run", "job", "--", "sh", "-c", "sleep 60 >/dev/null 2>&1 & echo $! > pid", cwd=tmp_path)
    left = int(text_of(tmp_path / "pid"))
    assert is_alive(left)
    os.kill(left, signal.SIGKILL)


@pytest.mark.parametrize("name", ENDING)
def test_a_signal_ends_the_wait_at_once_and_leaves_no_place(lockstead: Lockstead, name: str) -> None:
    lockstead.hold("job")
    waiter = lockstead.start("run", "job", "--", "echo", "ran")
    eventually(lambda: waiting(lockstead) == 1, "the second waits")
    number = getattr(signal, f"SIG{name}")
    waiter.send_signal(number)
    assert waiter.wait(2.0) == 128 + number
    assert waiting(lockstead) == 0
    assert waiter.communicate() == ("", "")


def test_a_user_signal_does_not_end_the_wait(lockstead: Lockstead) -> None:
    holder = lockstead.hold("job")
    waiter = lockstead.start("run", "job", "--", "echo", "ran")
    eventually(lambda: waiting(lockstead) == 1, "the second waits")
    waiter.send_signal(signal.SIGUSR1)
    holder.terminate()
    assert waiter.communicate(timeout=10)[0] == "ran\n"


def test_a_signal_ignored_before_stays_ignored(lockstead: Lockstead, tmp_path: Path) -> None:
    process = lockstead.start(
        "run",
        "job",
        *("--", "sh", "-c", "touch ready; while [ ! -e go ]; do sleep 0.02; done"),
        cwd=tmp_path,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    eventually((tmp_path / "ready").exists, "the command runs")
    process.send_signal(signal.SIGHUP)
    (tmp_path / "go").touch()
    assert process.wait(10) == 0


def test_the_command_starts_with_the_callers_signal_dispositions(lockstead: Lockstead) -> None:
    command = ["grep", "-E", "^Sig(Blk|Ign|Cgt):", "/proc/self/status"]
    under_lockstead = lockstead("run", "job", "--", *command).stdout
    assert under_lockstead == subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_a_killed_wrapper_takes_its_command_along(lockstead: Lockstead, tmp_path: Path) -> None:
    process = lockstead.start("run", "job", "--", "sh", "-c", "echo $$ > pid; exec sleep 60", cwd=tmp_path)
    command = int(eventually(lambda: text_of(tmp_path / "pid"), "the command runs"))
    process.kill()
    process.wait()
    eventually(lambda: not is_alive(command), "the command is gone", within=2)


def test_an_unreachable_store_gives_69(lockstead: Lockstead, tmp_path: Path) -> None:
    finished = lockstead("run", "job", "--url", f"sqlite:///{tmp_path}/none/locks.db", "--", "echo", "ran")
    assert (finished.returncode, finished.stdout) == (69, "")
    assert "none/locks.db" in finished.stderr


def test_an_unreachable_store_is_reported_as_json(lockstead: Lockstead, tmp_path: Path) -> None:
    finished = lockstead("run", "job", "--json", "--url", f"sqlite:///{tmp_path}/none/locks.db", "--", "true")
    assert json.loads(finished.stderr)["error"] == "store_unreachable"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "job"], "after --: lockstead run job -- CMD"),
        (["run", "job", "echo", "hi"], "lockstead run job -- echo hi"),
        (["run", "--", "true"], "NAME"),
        (["run", "", "--", "true"], "must not be empty"),
        (["run", "a\nb", "--", "true"], "printable"),
        (["run", "x" * 600, "--", "true"], "512"),
        (["run", "job", "--ttl", "soon", "--", "true"], "--ttl"),
        (["run", "job", "--ttl", "0.1", "--", "true"], "at least 0.5 s"),
        (["run", "job", "--ttl", "nan", "--", "true"], "at least 0.5 s"),
        (["run", "job", "--ttl", "1e12", "--", "true"], "a year"),
        (["run", "job", "--timeout", "-1", "--", "true"], "timeout"),
        (["run", "job", "--max-hold", "-3", "--", "true"], "--max-hold"),
        (["run", "job", "--ttl", "10", "--grace", "6", "--", "true"], "half of the lease's 10 s"),
        (["run", "job", "--max-hold", "2", "--grace", "6", "--", "true"], "half of the lease's 2 s"),
        (["run", "job", "--grace", "-1", "--", "true"], "--grace"),
        (["run", "job", "--metadata", "plain", "--", "true"], "KEY=VALUE"),
        (["run", "job", "--metadata", "{broken", "--", "true"], "JSON"),
        (["run", "job", "--metadata", "k=" + "v" * 5000, "--", "true"], "4096"),
        (["run", "job", "--tll", "3", "--", "true"], "--tll"),
        (["run", "job", "--url", "ftp://x", "--", "true"], "scheme"),
        (["run", "job", "--url", "memory://", "--", "true"], "one process"),
        (["frobnicate"], "frobnicate"),
        (["ls", "--url", "memory://"], "one process"),
        (["show"], "NAME"),
        (["demo", "--workers", "3"], "4 to 12"),
    ],
)
def test_bad_input_gives_2_and_says_what_is_wrong(lockstead: Lockstead, arguments: list[str], message: str) -> None:
    finished = lockstead(*arguments)
    assert (finished.returncode, finished.stdout) == (2, "")
    assert message in finished.stderr
    assert "Traceback" not in finished.stderr


def test_bad_input_is_reported_as_json(lockstead: Lockstead) -> None:
    output = json.loads(lockstead("run", "job", "--json", "--grace", "99", "--", "true").stderr)
    assert (output["error"], output["exit_code"]) == ("bad_input", 2)


def test_the_commands_own_json_option_is_not_ours(lockstead: Lockstead) -> None:
    finished = lockstead("run", "job", "--grace", "99", "--", "tool", "--json")
    assert finished.stderr.startswith("lockstead: ")


def waiting(lockstead: Lockstead) -> int:
    with DistributedLock(lockstead.url) as locks:
        info = locks.info("job")
    assert info is not None
    return info.waiting


def text_of(path: Path) -> str:
    """Read a line once it is complete."""
    text = path.read_text() if path.exists() else ""
    return text if text.endswith("\n") else ""
