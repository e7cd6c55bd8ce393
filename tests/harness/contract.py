"""Run tests that are marked `every_store`, or `each_family`, on our stores."""

from __future__ import annotations

import os

import pytest

from lockstead.testing.contract.rigs import RUNTIME_NAMES, Rig
from tests.harness.stores import EACH_CLOCK, FAMILIES, ONE_VERSION, STORES, VARIANTS


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test on every store, unless it is marked for less; on variants of another from threads only."""
    marked = metafunc.definition.get_closest_marker
    if "rig" not in metafunc.fixturenames:
        return
    if marked("each_family"):
        metafunc.parametrize(("rig", "runtime_name"), FAMILIES.items(), ids=FAMILIES, indirect=True)
    if not marked("every_store"):
        return
    stores = list(STORES)
    from_threads: set[str] = set()
    if not os.environ.get("LOCKSTEAD_VERSIONS"):
        from_threads = VARIANTS
        stores = ONE_VERSION if marked("one_version") else stores
        stores = EACH_CLOCK if marked("each_clock") else stores
    if marked("no_store"):
        stores = ["memory"]
    cases = [
        (store, runtime_name)
        for store in stores
        for runtime_name in (["threads"] if store in from_threads else RUNTIME_NAMES)
    ]
    metafunc.parametrize(("rig", "runtime_name"), cases, indirect=True)


@pytest.fixture
def runtime_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def rig(request: pytest.FixtureRequest, runtime_name: str) -> Rig:
    return Rig(runtime_name, STORES[request.param](request.getfixturevalue))
