from __future__ import annotations

from tests.behaviour.interrupts.conftest import url  # noqa: F401
from tests.harness.memory import locks, operator, server  # noqa: F401
