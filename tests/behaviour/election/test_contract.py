"""What elections promise, on every store and under both drivers."""

from __future__ import annotations

import pytest

from lockstead.testing.contract.election import *  # noqa: F403

pytestmark = [pytest.mark.every_store, pytest.mark.one_version]
