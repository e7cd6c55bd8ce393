"""Files that are not, or no longer, a lockstead database of this machine."""

from __future__ import annotations

import hashlib
import os
import random
import sqlite3
import stat
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from lockstead import DamagedError, DistributedLock, LockLostError, RetryPolicy, StoreError
from lockstead.core.model import Ask, RateRequest
from lockstead.core.runtime import drive
from lockstead.runtimes.threads import ThreadRuntime
from lockstead.stores.sqlite import machine
from lockstead.stores.sqlite.store import SWEEP_EVERY, SqliteStore
from tests.harness.conditions import eventually
from tests.harness.processes import Worker, boottime
from tests.harness.sqlite import client_of, rows, transaction_of_another_program, url_of
from tests.servers.disk import FullDisk

Peer = Callable[..., Worker]


def refused(path: Path, match: str) -> StoreError:
    """Expect every use of the file to fail at once, with advice, and not as something to try again."""
    with DistributedLock(url_of(path)) as locks:
        began = time.monotonic()
        for use in (locks.acquire, locks.try_acquire, locks.is_locked, lambda _: locks.inspect()):
            with pytest.raises(StoreError, match=match) as caught:
                use("job")
            assert str(path) in str(caught.value)
            assert not caught.value.transient
        assert time.monotonic() - began < 2.0
    return caught.value


def write_through(path: Path) -> None:
    """Use a file in the ordinary way, and leave it checkpointed."""
    with DistributedLock(url_of(path)) as locks, locks.lock("job"):
        pass


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_missing_directory_is_named_and_not_made(tmp_path: Path) -> None:
    refused(tmp_path / "missing" / "locks.db", "directory must exist")
    assert list(tmp_path.iterdir()) == []


def test_a_directory_in_the_files_place_is_refused(path: Path) -> None:
    path.mkdir()
    error = refused(path, "unable to open")
    assert isinstance(error.__cause__, sqlite3.Error)


def test_a_file_in_the_directorys_place_is_refused(path: Path) -> None:
    path.write_text("not a directory")
    refused(path / "locks.db", "directory must exist")


def test_random_bytes_are_refused_and_left_alone(path: Path, seed: int) -> None:
    junk = random.Random(seed).randbytes(20_000)
    path.write_bytes(junk)
    refused(path, "not a lockstead database")
    assert path.read_bytes() == junk


def test_of_a_request_that_is_refused_nothing_is_kept(path: Path) -> None:
    path.write_bytes(b"junk" * 1000)
    store = SqliteStore(ThreadRuntime(), path)
    asks = [Ask(name, f"me/{name}", 30.0, 3.0) for name in ("one", "other")]
    for request in (lambda: store.join(asks[0], 5.0), lambda: store.join_all(asks, 5.0)):
        with pytest.raises(StoreError, match="not a lockstead database"):
            drive(request())
        assert not store._notify_socket.has_places()


@pytest.mark.parametrize("kept", [50, 100, 1000, 1024, 3000, 6144])
def test_a_truncated_database_is_refused(path: Path, kept: int) -> None:
    write_through(path)
    whole = path.read_bytes()
    assert len(whole) > kept
    path.write_bytes(whole[:kept])
    refused(path, "damaged|not a lockstead database")


def test_a_database_whose_pages_are_scrambled_never_raises_anything_but_store_errors(path: Path, seed: int) -> None:
    write_through(path)
    whole = path.read_bytes()
    chance = random.Random(seed)
    refusals = 0
    for _ in range(40):
        scrambled = bytearray(whole)
        for _ in range(chance.choice([1, 10, 500])):
            scrambled[chance.randrange(100, len(scrambled))] = chance.randrange(256)
        for suffix in ("", "-wal", "-shm"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)
        path.write_bytes(scrambled)
        with DistributedLock(url_of(path), retry=RetryPolicy(max_retries=0)) as locks:
            try:
                locks.acquire("job", timeout=0.1).release()
            except StoreError:
                refusals += 1
    assert refusals > 0


def test_a_database_without_its_state_is_refused(path: Path) -> None:
    write_through(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("DELETE FROM state")
    with DistributedLock(url_of(path)) as locks, pytest.raises(StoreError):
        locks.acquire("job", timeout=0)


@pytest.mark.parametrize("journal_mode", ["delete", "wal"])
def test_another_programs_database_is_refused_and_left_alone(path: Path, journal_mode: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other_program:
        other_program.execute(f"PRAGMA journal_mode = {journal_mode}")
        other_program.execute("CREATE TABLE customers (name TEXT)")
        other_program.execute("INSERT INTO customers VALUES ('Ada')")
    before = hashlib.sha256(path.read_bytes()).digest()
    refused(path, "belongs to another program")
    assert hashlib.sha256(path.read_bytes()).digest() == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("pragma", ["application_id = 4711", "user_version = 5"])
def test_another_programs_database_without_tables_is_refused_and_left_alone(path: Path, pragma: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other_program:
        other_program.execute(f"PRAGMA {pragma}")
    before = path.read_bytes()
    assert before
    refused(path, "belongs to another program")
    assert path.read_bytes() == before


def test_a_newer_schema_is_refused_with_the_advice_to_upgrade(path: Path) -> None:
    write_through(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA user_version = 99")
    before = path.read_bytes()
    refused(path, "schema 99.*upgrade")
    assert path.read_bytes() == before


def test_a_file_of_an_earlier_release_gets_the_missing_table_and_keeps_its_version(path: Path) -> None:
    write_through(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("DROP TABLE rate_limit")
    with DistributedLock(url_of(path)) as locks:
        assert locks.rate_limiter("x", limit=1, per=60).try_acquire()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
        assert connection.execute("SELECT count(*) FROM state").fetchone() == (1,)


@pytest.mark.parametrize("step", range(1, 12))
def test_a_new_file_is_made_whole_even_if_another_client_makes_it_between_two_steps(
    path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    steps = 0
    other = threading.Thread(target=write_through, args=(path,))

    class Overtaken(sqlite3.Connection):
        def execute(self, *statement: Any) -> Any:
            nonlocal steps
            cursor = super().execute(*statement)
            if threading.current_thread() is not other:
                steps += 1
                if steps == step:
                    other.start()
                    other.join(0.3)  # it may have to wait for us, which is as good
            return cursor

    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *args, **kwargs: connect(*args, **kwargs | {"factory": Overtaken}))
    write_through(path)
    other.join()
    assert steps >= step


def test_many_processes_that_open_a_new_file_at_once_all_get_it(
    start_worker: Callable[..., Worker], path: Path
) -> None:
    for attempt in range(3):
        database = path.with_name(f"new-{attempt}.db")
        workers = [start_worker("harness/programs/peer.py", database) for _ in range(8)]
        for worker in workers:
            worker.answer()
        for number, worker in enumerate(workers):
            worker.send("acquire", f"job-{number}")
        assert len({worker.answer()["fence"] for worker in workers}) == len(workers)


def test_a_file_of_another_machine_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_through(path)
    monkeypatch.setattr(machine, "machine_id", lambda: "elsewhere")
    monkeypatch.setattr(machine, "boot_id", lambda: "another boot")
    refused(path, "another machine")


def test_a_file_of_another_machine_is_refused_also_where_a_boot_has_no_name(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "boot_id", lambda: "")
    write_through(path)
    monkeypatch.setattr(machine, "machine_id", lambda: "elsewhere")
    refused(path, "another machine")


def test_after_a_reboot_all_holders_are_dead_and_fences_grow_on(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    far = 9 * 10**15
    with client_of(path, floor=lambda: far) as before:
        held = before.acquire("job", ttl=3600)
        assert held.fence >= far
        monkeypatch.setattr(machine, "boot_id", lambda: "the next boot")
        with client_of(path, clock=lambda: 12.0) as locks:
            assert locks.inspect() == []
            with locks.lock("job", timeout=0) as handle:
                assert handle.fence > held.fence
        with pytest.raises(LockLostError):
            held.release()


def test_new_files_are_their_users_own(path: Path, locks: DistributedLock) -> None:
    umask = os.umask(0)
    try:
        locks.acquire("job")
    finally:
        os.umask(umask)
    assert {file.name: mode_of(file) for file in path.parent.iterdir()} == {
        path.name: 0o600,
        f"{path.name}-wal": 0o600,
        f"{path.name}-shm": 0o600,
        f"{path.name}-alive": 0o600,
    }


def test_the_default_directory_is_its_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("LOCKSTEAD_URL", raising=False)
    umask = os.umask(0o002)
    try:
        with DistributedLock() as locks, locks.lock("job"):
            directory = tmp_path / "state" / "lockstead"
            assert mode_of(directory) == 0o700
            assert {mode_of(file) for file in directory.iterdir()} == {0o600}
            assert (directory / "lockstead.db").exists()
    finally:
        os.umask(umask)


def remove(path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)


def remove_the_database_only(path: Path) -> None:
    path.unlink()


def replace(path: Path) -> None:
    other = path.with_name("other.db")
    write_through(other)
    remove(path)
    other.replace(path)


@pytest.mark.parametrize("spoil", [remove, remove_the_database_only, replace])
def test_a_holder_whose_file_is_removed_detects_its_loss_by_renewing(
    peer: Peer, path: Path, spoil: Callable[[Path], None]
) -> None:
    ttl = 1.5
    holder, other = peer(), peer()
    first = holder.ask("acquire", "job", ttl=ttl)
    other.ask("acquire", "warm-up")
    spoil(path)
    gone = boottime()
    second = eventually(lambda: (answer := other.ask("acquire", "job", ttl=30)).get("fence") and answer, "it is had")
    assert second["fence"] > first["fence"], "fences grow even without the counter"
    eventually(lambda: holder.ask("state")["lost"], "the loss is signalled", within=ttl + 1)
    assert boottime() < gone + 0.6 * ttl, "it takes a renewal, not the whole ttl"
    assert holder.ask("state")["check"] == "LockLostError"
    assert holder.ask("release")["error"] == "LockLostError"
    assert other.ask("state")["held"]
    eventually(lambda: boottime() > gone + ttl, "the loser's ttl passes")
    assert other.ask("state")["held"]
    assert [name for name, _ in rows(path)] == ["job"]
    assert rows(path, "PRAGMA integrity_check") == [("ok",)]


def test_one_file_never_has_two_holders_inside_their_trust_windows_however_often_it_is_removed(path: Path) -> None:
    clients = [DistributedLock(url_of(path), ttl=0.5) for _ in range(3)]
    handles = []
    fences = [0]
    for turn in range(6):
        with DistributedLock(url_of(path)) as first_look:
            assert first_look.inspect() == []
        winners = [handle for client in clients if (handle := client.try_acquire("job"))]
        assert len(winners) == 1
        assert winners[0].fence > fences[-1]
        fences.append(winners[0].fence)
        handles += winners
        if turn % 2:
            remove(path)
        else:
            replace(path)
    eventually(lambda: not any(handle.is_held for handle in handles), "every one of them has lost")
    for client in clients:
        client.close()


def test_acquire_survives_a_short_transaction_of_another_program(path: Path, locks: DistributedLock) -> None:
    locks.is_locked("job")
    with transaction_of_another_program(path):
        acquired: list[float] = []

        def acquire() -> None:
            with locks.lock("job", timeout=10):
                acquired.append(boottime())

        timer = threading.Timer(0, acquire)
        timer.start()
        until = boottime() + 0.7
        eventually(lambda: boottime() > until, "the other program takes its time")
        assert acquired == []
    ended = boottime()
    timer.join()
    assert ended <= acquired[0] < ended + 1.0


def test_a_long_transaction_of_another_program_is_a_transient_error_within_the_timeout(
    path: Path, locks: DistributedLock
) -> None:
    locks.is_locked("job")
    with transaction_of_another_program(path):
        began = boottime()
        with pytest.raises(StoreError, match="another program keeps it locked") as caught:
            locks.acquire("job", timeout=0.5)
        assert 0.4 < boottime() - began < 5.5
        assert caught.value.transient
        assert isinstance(caught.value.__cause__, sqlite3.OperationalError)
    eventually(lambda: rows(path) == [], "what may have been left behind is given up")
    locks.acquire("job", timeout=1).release()


def test_a_timeout_is_kept_even_if_another_program_locks_the_file(path: Path, locks: DistributedLock) -> None:
    locks.is_locked("job")
    with transaction_of_another_program(path):
        began = boottime()
        with pytest.raises(StoreError):
            locks.acquire("job", timeout=0.3)
        assert boottime() - began < 1.5


def test_a_holder_locked_out_beyond_its_ttl_detects_its_loss_before_another_can_hold(peer: Peer, path: Path) -> None:
    holder = peer()
    granted = holder.ask("acquire", "job", ttl=0.6)
    with transaction_of_another_program(path):
        eventually(lambda: holder.ask("state")["lost"], "the trust window ends", within=2)
        known = boottime()
    assert known < granted["at"] + 0.6 + 0.6


def test_on_a_full_disk_no_lock_is_granted_and_holders_are_notified_and_all_works_once_there_is_room(
    start_worker: Callable[..., Worker], path: Path, locks: DistributedLock
) -> None:
    disk = FullDisk(path.parent)
    holder, leaver, newcomer = workers = [
        start_worker("harness/programs/peer.py", path, env=disk.environment) for _ in range(3)
    ]
    for worker in workers:
        assert worker.answer()["ready"]
    granted, left = holder.ask("acquire", "short", ttl=0.6), leaver.ask("acquire", "long", ttl=60)
    disk.is_full = True
    began = boottime()
    assert newcomer.ask("acquire", "other")["error"] == "StoreError"
    assert boottime() - began < 2, "it is not tried again"
    assert leaver.ask("release")["error"] == "StoreError"
    eventually(lambda: holder.ask("state")["lost"], "the trust window ends", within=2)
    assert boottime() < granted["at"] + 0.6 + 0.6
    disk.is_full = False
    assert newcomer.ask("acquire", "long", timeout=5)["fence"] > left["fence"], "what was released is given up by now"
    assert newcomer.ask("acquire", "short", timeout=5)["fence"] > granted["fence"]
    assert [info.name for info in locks.inspect()] == ["long", "short"]


def scribble(path: Path, statement: str) -> None:
    """Write into the file as something else would that knows its tables."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(statement)


NO_TEXT = "CAST(x'ff80' AS TEXT)"
GARBAGE = {
    "ticket": ("0", "-1", "9223372036854775807", "9e999", "'abc'", "x'ff80'", NO_TEXT),
    "capacity": ("0", "-1", "9e999", "'abc'", "x'ff80'", NO_TEXT),
    "weight": ("0", "-1", "9223372036854775807", "9e999", "'abc'", "x'ff80'", NO_TEXT),
    "expires_at": ("9e999", "-9e999", "9223372036854775807", "'abc'", "x'ff80'", NO_TEXT),
    "acquired_at": ("9e999", "-9e999", "9223372036854775807", "'abc'", "x'ff80'", NO_TEXT),
    "owner": ("x'ff80'", NO_TEXT),
    "metadata": ("x'ff80'", NO_TEXT),
    "address": ("x'ff80'", NO_TEXT),
}


@pytest.mark.parametrize(
    ("column", "value"), [(column, value) for column, values in GARBAGE.items() for value in values]
)
def test_a_damaged_row_is_reported_and_cleared_and_harms_no_other_name(path: Path, column: str, value: str) -> None:
    with DistributedLock(url_of(path)) as victim, DistributedLock(url_of(path)) as locks:
        victim.acquire("job", ttl=60)
        fine = victim.acquire("fine", ttl=60)
        scribble(path, f"UPDATE place SET {column} = {value} WHERE name = 'job'")
        for use in (locks.try_acquire, locks.info):
            with pytest.raises(DamagedError, match="--force") as caught:
                use("job")
            assert not caught.value.transient
            assert str(path) in str(caught.value)
        found = {info.name: info.damage for info in locks.inspect()}
        assert found.keys() == {"fine", "job"}
        assert found["fine"] is None
        assert "release job --force" in (found["job"] or "")
        for number in range(SWEEP_EVERY):
            locks.acquire(f"other:{number}", timeout=5).release()
        cleared = locks.force_release("job")
        assert cleared is not None
        assert cleared.damage is not None
        with locks.lock("job", timeout=0) as held:
            assert 0 < held.fence < 2**53
        fine.check()


@pytest.mark.parametrize("value", ["9223372036854775807", "9007199254740991", "9e99", "-5", "'abc'", "x'ff'"])
def test_an_invalid_counter_gives_no_fence(path: Path, value: str) -> None:
    with DistributedLock(url_of(path)) as locks:
        before = locks.acquire("fine", ttl=60)
        scribble(path, f"UPDATE state SET ticket = {value}")
        with pytest.raises(DamagedError, match="resets it"):
            locks.acquire("job", timeout=1)
        assert [info.name for info in locks.inspect() if info.damage] == [""]
        assert [info.name for info in locks.inspect() if not info.damage] == ["fine"]
        locks.force_release("job")
        with locks.lock("job", timeout=0) as held:
            assert before.fence < held.fence < 2**53


@pytest.mark.parametrize("value", ["'abc'", "9e999", "-5", "x'ff'"])
def test_an_invalid_rate_limit_row_is_refused(path: Path, value: str) -> None:
    with DistributedLock(url_of(path)) as locks:
        assert not locks.is_locked("x")
        scribble(path, f"INSERT INTO rate_limit VALUES ('r', {value}, 1.0)")
        with pytest.raises(DamagedError, match="table rate_limit"):
            drive(locks._engine.store.consume(RateRequest("r", 1.0, 5.0), 5.0))  # type: ignore[attr-defined]


def test_metadata_that_is_no_object_hides_no_holder(path: Path) -> None:
    with DistributedLock(url_of(path)) as locks:
        handle = locks.acquire("job", ttl=60)
        scribble(path, "UPDATE place SET metadata = '[1, 2'")
        (info,) = locks.inspect()
        assert (info.fence, info.metadata) == (handle.fence, {})
        assert "metadata" in (info.damage or "")
        handle.release()
