"""The default client: one per process, and one per event loop."""

from __future__ import annotations

import asyncio

import pytest

import lockstead
from lockstead import (
    DistributedLock,
    get_async_distributed_lock,
    get_distributed_lock,
)


def test_the_default_client_is_one_per_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEAD_URL", "memory://default")
    monkeypatch.setattr(lockstead.blocking.default, "_default", None)
    assert get_distributed_lock() is get_distributed_lock()
    with get_distributed_lock().lock("x"), DistributedLock("memory://default") as other:
        assert other.is_locked("x")


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
