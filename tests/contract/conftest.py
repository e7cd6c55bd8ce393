from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.rigs import DRIVERS, STORES, Rig


@pytest.fixture(params=DRIVERS)
def driver(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=STORES)
def rig(request: pytest.FixtureRequest, driver: str, tmp_path: Path) -> Iterator[Rig]:
    yield Rig(driver, STORES[request.param](tmp_path))
