from __future__ import annotations

from tests.harness.memory import operator, server  # noqa: F401
