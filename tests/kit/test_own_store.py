"""The contract on a store that is not ours: these few lines are all its author writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from examples.own_store import FileStore
from lockstead.port import Runtime
from lockstead.testing.contract import *  # noqa: F403


@pytest.fixture
def open_store(tmp_path: Path) -> Callable[[Runtime], FileStore]:
    return lambda runtime: FileStore(runtime, tmp_path)
