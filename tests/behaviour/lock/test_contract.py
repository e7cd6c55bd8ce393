"""What both façades promise their users, on every store."""

from __future__ import annotations

import pytest

from lockstead.testing.contract import lock as client
from lockstead.testing.contract.lock import *  # noqa: F403

pytestmark = [pytest.mark.every_store, pytest.mark.one_version]
for takes_a_whole_ttl in (
    client.test_a_short_lease_is_renewed_while_it_is_held,
    client.test_without_renewal_a_lease_expires_and_its_holder_is_notified,
    client.test_max_hold_ends_a_hold_that_would_be_renewed_for_ever,
    client.test_a_handle_that_is_dropped_releases_its_lock,
):
    pytest.mark.each_clock(takes_a_whole_ttl)
