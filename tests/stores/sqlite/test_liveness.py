"""The locks by which the kernel proves that a client's process is dead: what they prove, and what they do not."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from lockstead import DistributedLock
from lockstead.core.model import Ask
from lockstead.core.runtime import drive
from lockstead.runtimes.threads import ThreadRuntime
from lockstead.stores.sqlite import liveness
from lockstead.stores.sqlite.liveness import Liveness
from lockstead.stores.sqlite.store import SqliteStore
from tests.harness.forks import in_child, succeeds
from tests.harness.sqlite import rows, url_of


@pytest.fixture
def database(path: Path) -> Path:
    path.touch(0o640)
    return path


def announced(database: Path) -> Liveness:
    """Announce what stands in for another process: it shares no lock with this one."""
    mine = Liveness()
    with mock.patch.object(liveness, "_locks", liveness._Locks()):
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


def test_all_stores_of_a_process_have_one_lock_which_ends_with_the_last_of_them(
    database: Path, looking: Liveness
) -> None:
    stores = [Liveness(), Liveness()]
    for store in stores:
        store.announce(str(database))
    first, second = stores
    assert first.evidence == second.evidence
    address = f"lockstead/0/{first.evidence}"
    first.drop(has_places=False)
    assert not looking.is_dead(address)
    second.drop(has_places=False)
    assert looking.is_dead(address)


def test_a_lock_that_places_may_carry_ends_with_the_process(database: Path, looking: Liveness) -> None:
    mine, other = Liveness(), Liveness()
    mine.announce(str(database))
    address = f"lockstead/0/{mine.evidence}"
    mine.drop(has_places=True)
    assert not looking.is_dead(address)
    other.announce(str(database))
    assert f"lockstead/0/{other.evidence}" == address
    other.drop(has_places=False)
    assert not looking.is_dead(address)


def test_a_lock_whose_descriptor_other_code_has_closed_is_not_shared(database: Path, looking: Liveness) -> None:
    mine, other = Liveness(), Liveness()
    mine.announce(str(database))
    assert mine._lock is not None
    os.close(mine._lock._file)
    other.announce(str(database))
    assert not looking.is_dead(f"lockstead/0/{other.evidence}")
    mine._lock._file = -1  # the number is another file's by now
    other.drop(has_places=False)


def test_a_look_whose_descriptor_belongs_to_another_file_by_now_proves_nothing(
    database: Path, looking: Liveness, tmp_path: Path
) -> None:
    alive = announced(database)
    assert looking._lock is not None
    other = os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT)
    os.dup2(other, looking._lock._file)
    os.close(other)
    assert not looking.is_dead(f"lockstead/0/{alive.evidence}")
    alive.drop(has_places=False)


def test_a_child_has_no_lock_of_its_parent(database: Path, looking: Liveness) -> None:
    mine = Liveness()
    mine.announce(str(database))

    def announce_anew() -> None:
        assert mine._lock is not None
        assert not mine.can_judge(f"lockstead/0/{looking.evidence}")
        child = Liveness()
        child.announce(str(database))
        assert child.evidence != mine.evidence
        assert not child.is_dead(f"lockstead/0/{mine.evidence}")

    succeeds(in_child(announce_anew))
    mine.drop(has_places=False)


def test_a_look_goes_on_while_another_thread_drops_the_lock(
    database: Path, looking: Liveness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a descriptor that is closed nor one that is another file's by then would prove anything."""
    mine, other = announced(database), announced(database)
    address = f"lockstead/0/{other.evidence}"
    request = liveness._request

    def drop_meanwhile(token: str) -> bytes:
        mine.drop(has_places=False)
        return request(token)

    monkeypatch.setattr(liveness, "_request", drop_meanwhile)
    assert not mine.is_dead(address)
    assert not mine.can_judge(address)
    other.drop(has_places=False)


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
