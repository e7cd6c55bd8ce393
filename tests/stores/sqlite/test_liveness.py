"""The locks by which the kernel proves that a client's process is dead: what they prove, and what they do not."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstead import DistributedLock
from lockstead.core.model import Ask
from lockstead.core.runtime import drive
from lockstead.runtimes import clock
from lockstead.runtimes.threads import ThreadRuntime
from lockstead.stores.sqlite import liveness
from lockstead.stores.sqlite.liveness import Liveness
from lockstead.stores.sqlite.store import SqliteStore
from tests.harness.sqlite import rows, url_of


@pytest.fixture
def database(path: Path) -> Path:
    path.touch(0o640)
    return path


def announced(database: Path) -> Liveness:
    mine = Liveness()
    mine.announce(str(database))
    return mine


@pytest.fixture
def looking(database: Path) -> Iterator[Liveness]:
    mine = announced(database)
    yield mine
    mine.drop(has_places=False)


def test_a_lock_proves_nothing_until_it_is_gone(database: Path, looking: Liveness) -> None:
    other = announced(database)
    address = f"lockstead/0/{other.evidence}"
    assert not looking.is_dead(address)
    other.drop(has_places=False)
    assert looking.is_dead(address)


def test_it_never_proves_its_own_death(looking: Liveness) -> None:
    assert not looking.is_dead(f"lockstead/0/{looking.evidence}")


@pytest.mark.parametrize("address", ["", "lockstead/0123456789abcdef", "lockstead/0/0123@1.2", "lockstead/0/-1@{file}"])
def test_an_address_without_evidence_proves_nothing(address: str, looking: Liveness) -> None:
    assert not looking.is_dead(address.format(file=looking.evidence.partition("@")[2]))


def test_a_lock_on_another_file_proves_nothing(database: Path, looking: Liveness) -> None:
    other = announced(database)
    address = f"lockstead/0/{other.evidence}"
    Path(f"{database}-alive").unlink()
    replaced = announced(database)
    assert not replaced.is_dead(address)
    other.drop(has_places=False)
    assert not replaced.is_dead(address)
    assert looking.is_dead(address)
    replaced.drop(has_places=False)


def test_a_copy_of_the_directory_ends_no_lock(database: Path, looking: Liveness, tmp_path: Path) -> None:
    """As it would with the locks of POSIX."""
    other = announced(database)
    shutil.copytree(database.parent, tmp_path / "copy")
    assert not looking.is_dead(f"lockstead/0/{other.evidence}")
    other.drop(has_places=False)


def test_a_client_that_is_gone_keeps_its_lock_for_as_long_as_a_place_may_be_trusted(
    database: Path, looking: Liveness, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = clock.now()
    monkeypatch.setattr(clock, "now", lambda: now)
    other = announced(database)
    other.count(5.0)
    address = f"lockstead/0/{other.evidence}"
    other.drop(has_places=True)
    for passed, is_dead in ((4.9, False), (5.0, True)):
        monkeypatch.setattr(clock, "now", lambda passed=passed: now + passed)
        announced(database).drop(has_places=False)
        assert looking.is_dead(address) == is_dead


@pytest.mark.parametrize("closes", [False, True], ids=["dropped", "closed"])
def test_a_place_whose_store_is_gone_expires_and_does_not_die(closes: bool, path: Path) -> None:
    store = SqliteStore(ThreadRuntime(), path)
    drive(store.join(Ask("job", "gone/1", 30.0, 3.0), 5.0))
    if closes:
        drive(store.close())
    del store
    with DistributedLock(url_of(path)) as locks:
        assert locks.is_locked("job")


def test_a_client_that_released_everything_leaves_no_descriptor(path: Path) -> None:
    def descriptors() -> list[str]:
        return [link for file in Path("/proc/self/fd").iterdir() if (link := _target(file)).startswith(str(path))]

    with DistributedLock(url_of(path)) as locks:
        locks.acquire("job").release()
        with locks.lock("job"):
            assert locks.try_acquire("job") is None
        assert f"{path}-alive" in descriptors()
    assert descriptors() == []


def _target(file: Path) -> str:
    try:
        return str(file.readlink())
    except FileNotFoundError:
        return ""


def test_the_file_has_the_mode_of_the_database(database: Path, looking: Liveness) -> None:
    os.chmod(database, 0o664)
    Path(f"{database}-alive").unlink()
    announced(database).drop(has_places=False)
    assert Path(f"{database}-alive").stat().st_mode & 0o777 == 0o664


@pytest.mark.parametrize("broken", ["a directory", "network", "no proc"])
def test_where_nothing_can_be_proven_locks_work_and_have_no_evidence(
    broken: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if broken == "a directory":
        Path(f"{path}-alive").mkdir()
    elif broken == "network":
        monkeypatch.setattr(liveness, "_file_system", lambda file: "nfs4")
    else:
        monkeypatch.setattr(liveness, "_file_system", lambda file: os.open("/none/there", 0))
    with DistributedLock(url_of(path)) as locks, locks.lock("job"):
        assert locks.is_locked("job")
        ((address,),) = rows(path, "SELECT address FROM place")
        assert "@" not in address
