from __future__ import annotations

import pytest

from tests.contract.rigs import DRIVERS, STORES, Rig


@pytest.fixture(params=DRIVERS)
def driver(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=STORES)
def rig(request: pytest.FixtureRequest, driver: str) -> Rig:
    return Rig(driver, STORES[request.param](request.getfixturevalue))
