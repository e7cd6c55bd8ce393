"""Readers and writers, permits, several names at once, and names that stay taken: on every store that carries them."""

from __future__ import annotations

import pytest

from lockstead.testing.contract.primitives import *  # noqa: F403

pytestmark = pytest.mark.one_version
