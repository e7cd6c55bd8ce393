"""Fixtures that any test may ask for: workers, and chance."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator

import pytest

from tests.harness.processes import Worker


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
def seed() -> int:
    """Draw, and print for the replay, what chance is made of: LOCKSTEAD_SEED repeats a run."""
    seed = int(os.environ.get("LOCKSTEAD_SEED") or secrets.randbits(32))
    print(f"LOCKSTEAD_SEED={seed}")
    return seed
