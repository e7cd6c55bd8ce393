from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.rigs import DRIVERS, STORES, Rig


@pytest.fixture(params=DRIVERS)
def driver(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=STORES)
def rig(request: pytest.FixtureRequest, driver: str, tmp_path: Path) -> Rig:
    return Rig(driver, STORES[request.param](tmp_path))
