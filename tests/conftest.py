from __future__ import annotations

from tests.harness.signals import let_children_have_defaults

pytest_plugins = ["tests.harness.contract", "tests.harness.fixtures", "tests.servers.fixtures"]


def pytest_configure() -> None:
    let_children_have_defaults()
