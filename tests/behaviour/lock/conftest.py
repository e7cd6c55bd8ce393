from __future__ import annotations

from tests.harness.memory import locks, operator, server  # noqa: F401
