"""Permits, on every store that carries them."""

from __future__ import annotations

import pytest

from lockstead.testing.contract.semaphore import *  # noqa: F403

pytestmark = [pytest.mark.every_store, pytest.mark.one_version]
