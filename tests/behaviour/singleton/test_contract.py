"""Jobs that one of many runs, on every store."""

from __future__ import annotations

import pytest

from lockstead.testing.contract.singleton import *  # noqa: F403

pytestmark = [pytest.mark.every_store, pytest.mark.one_version]
