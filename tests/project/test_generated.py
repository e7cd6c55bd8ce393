"""The blocking façade is what tools/unasync.py makes of the asyncio one."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.harness.tree import ROOT

PROGRAM = ROOT / "tools/unasync.py"


@pytest.fixture
def unasync() -> Any:
    spec = importlib.util.spec_from_file_location("unasync", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["unasync"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A tree with both façades, to be changed."""
    shutil.copytree(ROOT / "src/lockstead", tmp_path / "src/lockstead", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("tools/unasync.py", "pyproject.toml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def run(root: Path, *arguments: str) -> tuple[int, str]:
    command = [sys.executable, "tools/unasync.py", *arguments]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_the_generated_modules_are_up_to_date() -> None:
    assert run(ROOT, "--check") == (0, "")


def test_an_edit_of_a_generated_module_is_reported_with_the_command(copy: Path) -> None:
    edited = copy / "src/lockstead/blocking/client.py"
    before = edited.read_text("utf-8")
    edited.write_text(before.replace("def info(", "def information("), "utf-8")
    status, said = run(copy, "--check")
    assert status == 1
    assert "-    def information(" in said
    assert "run python tools/unasync.py" in said
    assert run(copy)[0] == 0
    assert edited.read_text("utf-8") == before


def test_a_text_that_is_gone_from_the_source_is_reported(copy: Path) -> None:
    source = copy / "src/lockstead/asynchronous/rate_limit.py"
    source.write_text(source.read_text("utf-8").replace("Rate limits, for asyncio.", "Rate limits."), "utf-8")
    status, said = run(copy)
    assert status == 1
    assert "'Rate limits, for asyncio.' should occur once, and does 0 times" in said


def test_what_guards_handles_and_elections_need_is_translated(unasync: Any, tmp_path: Path) -> None:
    (tmp_path / "sample.py").write_text(
        '''"""A sample: ``async with sample:``."""

import asyncio
from collections.abc import AsyncGenerator

from lockstead.asynchronous.guard import AsyncLockGuard
from lockstead.core.engine import Engine


class AsyncSample(AsyncLockGuard[int]):
    _lost: asyncio.Event

    async def __aenter__(self) -> int:
        self.runtime.bind()  # asyncio only
        return await (await self.open(await self._engine.find("é"))).__aenter__()

    async def open(self, line: object) -> "AsyncSample":
        async with self, await self.open(line):
            return await self._acquire(
                line,
                self,
            )

    async def watch(self) -> AsyncGenerator[int | None, None]:
        async for each in self.watch():
            yield each


def engine() -> Engine: ...
''',
        "utf-8",
    )
    unasync.SOURCE = unasync.TARGET = unasync.ROOT = tmp_path
    text = unasync.generate(unasync.Module("sample.py", frozenset({"self._acquire"})))
    assert (
        text
        == '''# Generated from sample.py by `python tools/unasync.py`: edit that one.
"""A sample: ``with sample:``."""

import threading
from collections.abc import Generator

from lockstead.blocking.guard import LockGuard
from lockstead.core.engine import Engine
from lockstead.core.runtime import drive


class Sample(LockGuard[int]):
    _lost: threading.Event

    def __enter__(self) -> int:
        return (self.open(drive(self._engine.find("é")))).__enter__()

    def open(self, line: object) -> "Sample":
        with self, self.open(line):
            return self._acquire(
                line,
                self,
            )

    def watch(self) -> Generator[int | None, None, None]:
        for each in self.watch():
            yield each


def engine() -> Engine: ...
'''
    )
