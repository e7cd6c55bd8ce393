from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lockstead import DistributedLock
from tests.processes.helpers import Worker, url_of


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Name a database that does not exist yet."""
    return tmp_path / "locks.db"


@pytest.fixture
def locks(path: Path) -> Iterator[DistributedLock]:
    """Give the test's own client, with which it looks on or takes part."""
    with DistributedLock(url_of(path)) as client:
        yield client


@pytest.fixture
def start() -> Iterator[Callable[..., Worker]]:
    """Start workers that do not outlive the test."""
    workers: list[Worker] = []

    def start(script: str, *args: object, env: dict[str, str] | None = None) -> Worker:
        workers.append(Worker(script, *args, env=env))
        return workers[-1]

    yield start
    for worker in workers:
        worker.dispose()


@pytest.fixture
def peer(start: Callable[..., Worker], path: Path) -> Callable[..., Worker]:
    """Start another process with a client of its own, ready to be told what to do."""

    def peer(*flags: str) -> Worker:
        worker = start("peer.py", path, *flags)
        assert worker.answer()["ready"]
        return worker

    return peer


@pytest.fixture
def seed() -> int:
    """Draw, and print for the replay, what chance is made of: LOCKSTEAD_SEED repeats a run."""
    seed = int(os.environ.get("LOCKSTEAD_SEED") or secrets.randbits(32))
    print(f"LOCKSTEAD_SEED={seed}")
    return seed
