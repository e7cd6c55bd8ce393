"""Several names at once, on every store."""

from __future__ import annotations

import pytest

from lockstead.testing.contract.multi_lock import *  # noqa: F403

pytestmark = [pytest.mark.every_store, pytest.mark.one_version]
