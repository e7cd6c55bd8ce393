from __future__ import annotations

from tests.harness.sqlite import locks, path, peer  # noqa: F401
