"""`lockstead ls`, `show`, `release`, and what all subcommands share."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys

import pytest

from lockstead import DistributedLock, __version__
from lockstead.cli import main
from lockstead.cli.inspection import COLUMNS, DROPPABLE, SHRINKABLE
from lockstead.cli.parser import EXIT_CODES
from lockstead.cli.text import format_duration, format_metadata, format_table
from tests.harness.command import Lockstead
from tests.harness.conditions import eventually


def test_ls_without_locks_says_that_nothing_is_locked(lockstead: Lockstead) -> None:
    assert lockstead("ls").stdout == "nothing is locked\n"
    assert lockstead("ls", "cron:").stdout == "nothing is locked under 'cron:'\n"
    assert lockstead.json("ls") == []


def test_ls_shows_the_holder_of_each_lock(lockstead: Lockstead) -> None:
    locks = DistributedLock(lockstead.url)
    with locks, locks.lock("cron:a", metadata={"host": "web-1"}) as first, locks.lock("job:b"):
        header, one, two = lockstead("ls").stdout.splitlines()
        assert header.split() == ["NAME", "HOLDER", "FENCE", "SINCE", "EXPIRES", "IN", "WAITING", "METADATA"]
        assert one.split()[:3] == ["cron:a", locks.holder_id, str(first.fence)]
        assert one.endswith("host=web-1")
        assert two.startswith("job:b ")
        (only,) = lockstead("ls", "cron:").stdout.splitlines()[1:]
        assert only.startswith("cron:a ")
        (output,) = lockstead.json("ls", "cron:")
        assert (output["name"], output["fence"], output["waiting"]) == ("cron:a", first.fence, 0)


def test_ls_counts_waiters(lockstead: Lockstead) -> None:
    lockstead.hold("job")
    lockstead.start("run", "job", "--", "true")
    eventually(lambda: lockstead.json("ls")[0]["waiting"] == 1, "one waits")


def test_show_prints_the_holder_fence_expiry_and_metadata(lockstead: Lockstead) -> None:
    with DistributedLock(lockstead.url) as locks, locks.lock("job", metadata={"by": "me"}, ttl=60) as handle:
        shown = dict(line.split(maxsplit=1) for line in lockstead("show", "job").stdout.splitlines())
        assert (shown["name"], shown["holder"], shown["fence"]) == ("job", locks.holder_id, str(handle.fence))
        assert (shown["waiting"], shown["metadata"]) == ("0", "by=me")
        assert "unless renewed" in shown["expires"]
        output = lockstead.json("show", "job")
        assert (output["holder_id"], output["metadata"]) == (locks.holder_id, {"by": "me"})


def test_show_of_a_free_lock_exits_with_1(lockstead: Lockstead) -> None:
    finished = lockstead("show", "job")
    assert (finished.returncode, finished.stdout, finished.stderr) == (1, "", "lockstead: 'job' is free\n")
    output = json.loads(lockstead("show", "job", "--json").stderr)
    assert output == {"error": "free", "exit_code": 1, "message": "'job' is free", "name": "job"}


def test_release_without_force_only_explains(lockstead: Lockstead) -> None:
    lockstead.hold("job")
    finished = lockstead("release", "job")
    assert finished.returncode == 2
    assert "--force" in finished.stderr
    info = lockstead.info("job")
    assert info is not None
    assert f"'job' is held by {info.holder_id} for 0." in finished.stderr
    assert f"(fence {info.fence})" in finished.stderr
    output = json.loads(lockstead("release", "job", "--json").stderr)
    assert (output["exit_code"], output["holder"]["holder_id"]) == (2, info.holder_id)
    free = lockstead("release", "other")
    assert (free.returncode, free.stderr) == (1, "lockstead: 'other' is free\n")


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_release_names_the_former_holder(lockstead: Lockstead, form: list[str]) -> None:
    lockstead.hold("job")
    holder = lockstead.info("job")
    assert holder is not None
    finished = lockstead("release", "job", "--force", *form)
    assert finished.returncode == 0
    assert holder.holder_id in finished.stdout
    if form:
        assert json.loads(finished.stdout)["fence"] == holder.fence
    assert lockstead("release", "job", "--force", *form).returncode == 1


def test_an_unreachable_store_gives_69(lockstead: Lockstead) -> None:
    lockstead.database.write_text("this is no database, and long enough to be looked at as one" * 20)
    for arguments in (["ls"], ["show", "job"], ["release", "job", "--force"], ["demo"]):
        finished = lockstead(*arguments)
        assert (finished.returncode, finished.stdout) == (69, "")
        assert str(lockstead.database) in finished.stderr
        assert "Traceback" not in finished.stderr


def test_url_wins_over_the_environment(lockstead: Lockstead) -> None:
    with DistributedLock(lockstead.url) as locks, locks.lock("job"):
        assert lockstead("show", "job").returncode == 0
        assert lockstead("show", "job", "--url", lockstead.url + ".other").returncode == 1


def test_control_characters_in_metadata_are_not_printed(lockstead: Lockstead) -> None:
    with DistributedLock(lockstead.url) as locks, locks.lock("job", metadata={"a": "\x1b[2J\x9b31m", "b\n": "\r"}):
        for arguments in (["ls"], ["show", "job"]):
            shown = lockstead(*arguments).stdout
            assert all(character.isprintable() for line in shown.split("\n") for character in line)


def test_a_reader_that_leaves_early_causes_no_traceback(lockstead: Lockstead) -> None:
    for arguments in (["ls"], ["show", "--help"]):
        reader, writer = os.pipe()
        os.close(reader)
        process = lockstead.start(*arguments, stdout=writer)
        os.close(writer)
        assert process.wait(10) == 141
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_a_terminal_without_unicode_is_enough(lockstead: Lockstead) -> None:
    lockstead.environment["PYTHONIOENCODING"] = "ascii"
    with DistributedLock(lockstead.url) as locks, locks.lock("żółw"):
        assert "\\u017c" in lockstead("ls").stdout


def test_version_and_help_are_printed(lockstead: Lockstead) -> None:
    assert lockstead("--version").stdout == f"lockstead {__version__}\n"
    assert "demo" in lockstead("--help").stdout
    for subcommand in ("run", "ls", "show", "release", "demo"):
        finished = lockstead(subcommand, "--help")
        assert finished.returncode == 0
        assert f"example:\n  lockstead {subcommand}" in finished.stdout
    assert EXIT_CODES in lockstead("run", "--help").stdout
    assert lockstead().returncode == 2


def test_the_installed_command_is_the_same() -> None:
    command = os.path.join(os.path.dirname(sys.executable), "lockstead")
    assert subprocess.check_output([command, "--version"], text=True) == f"lockstead {__version__}\n"


def test_main_can_be_called(lockstead: Lockstead, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", "--url", lockstead.url, "--json"]) == 0
    assert main(["run", "job", "--url", lockstead.url, "--", "echo", "ran"]) == 0
    assert capfd.readouterr().out == "[]\nran\n"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0.0s"),
        (0.04, "0.0s"),
        (9.94, "9.9s"),
        (9.96, "10s"),
        (59.6, "1m"),
        (61, "1m 1s"),
        (3599.9, "1h"),
        (7260, "2h 1m"),
        (86400 * 3 + 3600 * 4, "3d 4h"),
    ],
)
def test_durations_are_written_for_people(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_metadata_is_written_as_pairs() -> None:
    assert format_metadata({"a": "x", "b": 1, "c": "two words", "d": [1, {}]}) == 'a=x b=1 c="two words" d=[1,{}]'


def test_a_table_is_aligned_and_cut_to_the_terminal() -> None:
    rows = [("NAME", "N", "DATA"), ("n" * 30, "1", "d" * 50), ("日本語" * 5, "2", "")]
    assert format_table(rows, width=None, shrinkable=(0, 2)) == [
        "NAME" + " " * 26 + "  N  DATA",
        "n" * 30 + "  1  " + "d" * 50,
        "日本語" * 5 + "  2",
    ]
    assert format_table(rows, width=25, shrinkable=(2, 0)) == [
        "NAME          N  DATA",
        "nnnnnnnnnnn…  1  ddddddd…",
        "日本語日本…   2",
    ]
    assert format_table(rows, width=25, shrinkable=(2, 0), droppable=(2, 1)) == [
        "NAME",
        "n" * 24 + "…",
        "日本語" * 4 + "…",
    ]


NAMES = ["invoice:2026-11-18:4711:send", "job:import:7f3a1c9e-2b6d", "cron:x"]


@pytest.mark.parametrize(("width", "kept"), [(200, 7), (100, 7), (90, 6), (80, 5), (60, 5)])
def test_a_narrow_terminal_shows_names_rather_than_fences_and_metadata(width: int, kept: int) -> None:
    holder = "web-1.example.org:4711:c1cbca12"
    more = (holder, "1794782671120869", "3.5s ago", "26s", "0", "host=web-1 release=2026.11.18 by=deploy")
    header, *lines = format_table(
        [COLUMNS, *((name, *more) for name in NAMES)], width=width, shrinkable=SHRINKABLE, droppable=DROPPABLE
    )
    assert max(map(len, lines)) <= width
    assert [name for name in COLUMNS if name in header] == [
        name for number, name in enumerate(COLUMNS) if kept == 7 or number not in DROPPABLE[: 7 - kept]
    ]
    for name, line in zip(NAMES, lines, strict=True):
        assert line.startswith(f"{name} ") or width < 80
        assert ("1794782671120869" in line) == (kept > 5)


@pytest.mark.parametrize("kind", ["postgresql", "postgresql+advisory"])
def test_on_postgres_the_session_of_a_holder_is_shown(lockstead: Lockstead, lease_url: str, kind: str) -> None:
    url = f"{lease_url}&application_name=biller"
    if kind != "postgresql":
        url = url.replace("postgresql://", f"{kind}://").partition("?")[0] + "?application_name=biller"
    name = f"invoice:{secrets.token_hex(4)}"
    with DistributedLock(url) as locks, locks.lock(name):
        (seen,) = (lock for lock in lockstead.json("ls", "--url", url) if lock["name"] == name)
        header, *lines = lockstead("ls", "--url", url).stdout.splitlines()
        shown = lockstead("show", name, "--url", url).stdout
    assert seen["holder_id"] == locks.holder_id
    assert (seen["session"]["application"], seen["session"]["address"]) == ("biller", "127.0.0.1")
    assert seen["session"]["pid"] > 0
    assert header.split()[-3:] == ["PID", "APPLICATION", "ADDRESS"]
    assert any(name in line and line.split()[-2:] == ["biller", "127.0.0.1"] for line in lines)
    assert "'biller' from 127.0.0.1" in shown


@pytest.mark.parametrize("subcommand", ["ls", "doctor", "demo", "migrate"])
def test_an_empty_url_is_refused(lockstead: Lockstead, subcommand: str) -> None:
    finished = lockstead(subcommand, "--url", "")
    assert finished.returncode == 2
    assert "argument --url: it is empty" in finished.stderr
