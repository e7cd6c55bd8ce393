from __future__ import annotations

import os

import pytest

from leasehold.testing.contract.rigs import Rig, driver
from tests.contract.rigs import EACH_CLOCK, ONE_VERSION, STORES

__all__ = ["driver", "rig"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test on every store, unless it is marked for less."""
    if "rig" not in metafunc.fixturenames:
        return
    stores = list(STORES)
    marked = metafunc.definition.get_closest_marker
    if not os.environ.get("LEASEHOLD_VERSIONS"):
        stores = ONE_VERSION if marked("one_version") else stores
        stores = EACH_CLOCK if marked("each_clock") else stores
    if marked("no_store"):
        stores = ["memory"]
    metafunc.parametrize("rig", stores, indirect=True)


@pytest.fixture
def rig(request: pytest.FixtureRequest, driver: str) -> Rig:
    return Rig(driver, STORES[request.param](request.getfixturevalue))
