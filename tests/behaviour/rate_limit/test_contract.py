"""What a rate limiter promises, on every store that keeps rates; the others refuse to make one."""

from __future__ import annotations

import pytest

from lockstead.testing.contract.rate_limit import *  # noqa: F403

pytestmark = [pytest.mark.every_store, pytest.mark.one_version]
