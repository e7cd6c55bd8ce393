from __future__ import annotations

import os

import pytest

from tests.contract.rigs import DRIVERS, ONE_VERSION, STORES, Rig


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test on every store; if it is marked so, and nobody wants more, on one version of each server only."""
    if "rig" in metafunc.fixturenames:
        is_enough = metafunc.definition.get_closest_marker("one_version") and not os.environ.get("LEASEHOLD_VERSIONS")
        metafunc.parametrize("rig", ONE_VERSION if is_enough else STORES, indirect=True)


@pytest.fixture(params=DRIVERS)
def driver(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def rig(request: pytest.FixtureRequest, driver: str) -> Rig:
    return Rig(driver, STORES[request.param](request.getfixturevalue))
