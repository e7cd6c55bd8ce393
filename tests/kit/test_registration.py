"""URLs of a store that is not ours: for both clients and the command, in this process or installed for all."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.own_store import FileStore, open_file
from lockstead import AsyncDistributedLock, DistributedLock, InvalidInputError
from lockstead.cli import main
from lockstead.port import Runtime
from lockstead.stores.registry import SCHEMES, _registered, register
from tests.harness.tree import ROOT


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    """Forget what a test has registered."""
    before = dict(_registered)
    yield
    _registered.clear()
    _registered.update(before)


def test_a_registered_scheme_opens_for_both_clients_and_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    register("Shelf", open_file)
    url = f"shelf://{tmp_path}"

    async def is_locked() -> bool:
        async with AsyncDistributedLock(url) as locks:
            return await locks.is_locked("report")

    with DistributedLock(url) as locks, locks.lock("report", metadata={"by": "hand"}):
        assert asyncio.run(is_locked())
        assert main(["ls", "--url", url]) == 0
        assert "report" in capsys.readouterr().out
    assert not asyncio.run(is_locked())
    assert main(["doctor", "--url", url]) == 0
    assert "it answers" in capsys.readouterr().out


def test_an_opener_gets_the_options_of_its_client(tmp_path: Path) -> None:
    got: list[object] = []

    def open_shelf(url: str, runtime: Runtime, *, height: int) -> FileStore:
        got.extend([url, height])
        return FileStore(runtime, tmp_path)

    register("shelf", open_shelf)
    with DistributedLock("SHELF://host/x", height=3) as locks:
        assert locks.try_acquire("report")
    assert got == ["SHELF://host/x", 3]


def test_an_installed_package_opens_its_scheme_in_every_process(tmp_path: Path) -> None:
    package = tmp_path / "shelves-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: shelves\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[lockstead.stores]\nshelf = examples.own_store:open_file\n")
    done = lockstead(tmp_path, "run", "report", "--url", f"shelf://{tmp_path}", "--", "echo", "done")
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    assert list(tmp_path.glob("locks-*.json"))
    refused = lockstead(tmp_path, "ls", "--url", "attic:///tmp")
    assert refused.returncode != 0
    assert "no store has this scheme" in refused.stderr
    assert "shelf://" in refused.stderr


def lockstead(installed: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lockstead", *arguments],
        env=os.environ | {"PYTHONPATH": f"{installed}:{ROOT / 'src'}:{ROOT}"},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_an_error_of_an_unknown_scheme_names_the_known_ones_and_no_password() -> None:
    register("shelf", open_file)
    with pytest.raises(InvalidInputError) as refusal:
        DistributedLock("attic://me:secret@host/x")
    assert all(f"{scheme}://" in str(refusal.value) for scheme in (*SCHEMES, "shelf"))
    assert "secret" not in str(refusal.value)


@pytest.mark.parametrize("scheme", [*SCHEMES, "SQLite"])
def test_a_built_in_scheme_cannot_be_registered(scheme: str) -> None:
    with pytest.raises(InvalidInputError, match="of lockstead itself"):
        register(scheme, open_file)
