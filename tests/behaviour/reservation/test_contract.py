"""Reservations: `at_least`, on every store. The bodies are in `lockstead.testing.contract.reservation`."""

from __future__ import annotations

import pytest

from lockstead.testing.contract.reservation import (
    test_a_name_is_reserved_however_its_holder_ends,
    test_a_reserved_name_keeps_waiters_out_until_the_reservation_ends,
)

pytestmark = [pytest.mark.every_store, pytest.mark.one_version]
