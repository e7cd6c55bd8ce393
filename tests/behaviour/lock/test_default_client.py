"""The default client: one per process, and one per event loop."""

from __future__ import annotations

import asyncio
import inspect
import os
from pathlib import Path
from typing import Any

import pytest

import lockstead
from lockstead import (
    AsyncDistributedLock,
    DistributedLock,
    InvalidInputError,
    get_async_distributed_lock,
    get_distributed_lock,
)


def test_the_default_client_is_one_per_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEAD_URL", "memory://default")
    monkeypatch.setattr(lockstead.blocking.default, "_default", None)
    assert get_distributed_lock() is get_distributed_lock()
    with get_distributed_lock().lock("x"), DistributedLock("memory://default") as other:
        assert other.is_locked("x")


@pytest.mark.parametrize("url", [None, ""])
@pytest.mark.parametrize("client", [DistributedLock, AsyncDistributedLock])
def test_an_environment_variable_that_is_not_set_chooses_no_store(client: Any, url: str | None) -> None:
    with pytest.raises(InvalidInputError, match=rf"^store is {url!r}: is the environment variable set"):
        client(url)
    with pytest.raises(InvalidInputError, match=r"^store is "):
        client(store=os.environ.get("LOCKSTEAD_TEST_UNSET"))


@pytest.mark.parametrize("client", [DistributedLock, AsyncDistributedLock])
def test_a_client_without_a_store_is_on_the_default_one(
    client: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LOCKSTEAD_URL", "memory://of-the-environment")
    assert client()._engine.store.address == "memory://of-the-environment"
    monkeypatch.delenv("LOCKSTEAD_URL")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert str(tmp_path) in client()._engine.store.address
    assert "LOCKSTEAD_URL" in str(inspect.signature(client))


def test_the_default_client_is_one_per_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEAD_URL", "memory://per-loop")

    async def run() -> None:
        locks = get_async_distributed_lock()
        assert get_async_distributed_lock() is locks
        async with locks.lock("x"):
            pass

    asyncio.run(run())
    asyncio.run(run())


def test_a_default_client_that_was_closed_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEAD_URL", "memory://replaced")
    monkeypatch.setattr(lockstead.blocking.default, "_default", None)
    with get_distributed_lock() as first:
        pass
    with get_distributed_lock().lock("x"):
        assert get_distributed_lock() is not first


def test_default_clients_do_not_outlive_their_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEAD_URL", "memory://per-loop")

    async def take() -> None:
        async with get_async_distributed_lock().lock("x"):
            pass

    for _ in range(5):
        asyncio.run(take())
    assert len(lockstead.asynchronous.default._defaults) == 1
