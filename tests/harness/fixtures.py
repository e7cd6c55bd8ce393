"""Fixtures that any test may ask for: programs, and chance."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.harness.processes import Program, Worker


@pytest.fixture
def start_program() -> Iterator[Callable[..., Program]]:
    """Start programs that do not outlive the test."""
    with ExitStack() as stack:

        def start(path: str, *args: object, **options: Any) -> Program:
            program = Program(path, *args, **options)
            stack.callback(program.dispose)
            return program

        yield start


@pytest.fixture
def start_worker() -> Iterator[Callable[..., Worker]]:
    """Start workers that do not outlive the test."""
    with ExitStack() as stack:

        def start(path: str, *args: object, env: dict[str, str] | None = None) -> Worker:
            worker = Worker(path, *args, env=env)
            stack.callback(worker.dispose)
            return worker

        yield start


@pytest.fixture
def seed() -> int:
    """Draw, and print for the replay, what chance is made of: LOCKSTEAD_SEED repeats a run."""
    seed = int(os.environ.get("LOCKSTEAD_SEED") or secrets.randbits(32))
    print(f"LOCKSTEAD_SEED={seed}")
    return seed
