from __future__ import annotations

pytest_plugins = ["tests.harness.contract", "tests.harness.fixtures", "tests.servers.fixtures"]
