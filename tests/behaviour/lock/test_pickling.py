"""A client made from a URL pickles, and is a new client where it is loaded. What it holds stays with it."""

from __future__ import annotations

import asyncio
import copy
import multiprocessing
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from lockstead import AsyncDistributedLock, DistributedLock, RetryPolicy
from lockstead.runtimes.threads import ThreadRuntime
from lockstead.stores import open_store


def copied(thing: Any) -> Any:
    return pickle.loads(pickle.dumps(thing))


def hold(locks: DistributedLock) -> tuple[int, bool, bool]:
    """Run in another process."""
    with locks:
        return os.getpid(), locks.is_locked("x"), locks.try_acquire("y") is not None


def test_a_process_that_is_given_a_client_has_a_client_of_its_own(tmp_path: Path) -> None:
    with DistributedLock(f"sqlite:///{tmp_path}/locks.db") as locks, locks.lock("x"):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            pid, sees_ours, holds_its_own = pool.apply(hold, (locks,))
        assert pid != os.getpid()
        assert (sees_ours, holds_its_own) == (True, True)


@pytest.mark.parametrize("kind", [DistributedLock, AsyncDistributedLock])
def test_a_copy_is_a_client_of_the_same_store_and_options_that_holds_nothing(kind: Any) -> None:
    locks = kind("redis://:secret@localhost:1/2", ttl=7, retry=RetryPolicy(max_retries=9), key_prefix="mine")
    for other in (copied(locks), copy.copy(locks), copy.deepcopy(locks)):
        assert type(other) is kind
        assert other.holder_id != locks.holder_id
        assert other._defaults == locks._defaults
        assert other._engine.store is not locks._engine.store
        assert other._engine.store.address == locks._engine.store.address
        assert pickle.dumps(other) == pickle.dumps(locks)


def test_a_copy_finds_the_same_file_from_any_directory_and_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "else where").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "50% of state"))
    monkeypatch.delenv("LOCKSTEAD_URL", raising=False)
    clients = [DistributedLock("sqlite:///locks.db"), DistributedLock("sqlite://"), DistributedLock()]
    monkeypatch.setenv("LOCKSTEAD_URL", f"sqlite:///{tmp_path}/of-environment.db")
    clients.append(DistributedLock())
    pickled = pickle.dumps(clients)
    monkeypatch.chdir(tmp_path / "else where")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))
    monkeypatch.delenv("LOCKSTEAD_URL")
    found = [locks._engine.store.address for locks in pickle.loads(pickled)]
    assert found == [locks._engine.store.address for locks in clients]


def test_a_client_that_no_other_process_could_make_says_so() -> None:
    store = open_store("memory://pickling", ThreadRuntime())
    with pytest.raises(TypeError, match=r"^this client cannot be pickled: it was made from a MemoryStore, not"):
        pickle.dumps(DistributedLock(store))
    with pytest.raises(TypeError, match=r"cannot be pickled: memory:// exists inside one process only; use sqlite"):
        pickle.dumps(DistributedLock("memory://pickling"))


def test_handles_guards_and_the_like_say_what_to_do_instead(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/locks.db"

    def check(locks: Any, *handles: Any) -> None:
        for made in (
            *(locks.lock("x"), locks.locked("x:{y}"), locks.singleton("x", at_most=9), locks.once("x", 9)),
            *(locks.rate_limiter("x", 1, 1), locks.election("x"), locks.election("x").lead(), locks.multi_lock(["x"])),
        ):
            with pytest.raises(TypeError, match=r" cannot be pickled: pickle the client, .* made from a URL"):
                pickle.dumps(made)
        for handle in handles:
            with pytest.raises(TypeError, match=r"Handle cannot be pickled: .* Pass the name and the fence on"):
                pickle.dumps(handle)

    with DistributedLock(url) as locks, locks.lock("a") as one, locks.multi_lock(["b", "c"]) as several:
        check(locks, one, several)

    async def test() -> None:
        async with AsyncDistributedLock(url) as locks, locks.lock("a") as one, locks.multi_lock(["b", "c"]) as several:
            check(locks, one, several)

    asyncio.run(test())
