"""Things that are done once, on every store that can leave a name taken."""

from __future__ import annotations

import pytest

from lockstead.testing.contract.once import *  # noqa: F403

pytestmark = [pytest.mark.every_store, pytest.mark.one_version]
