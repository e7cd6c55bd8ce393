from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.command import Lockstead


@pytest.fixture
def lockstead(tmp_path: Path) -> Iterator[Lockstead]:
    command = Lockstead(tmp_path)
    yield command
    command.stop()
