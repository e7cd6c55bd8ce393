"""Semaphores, on every store. The bodies are in `lockstead.testing.contract.semaphore`."""

from __future__ import annotations

import pytest

from lockstead.testing.contract.semaphore import (
    test_a_guard_may_be_entered_by_many_at_a_time_and_left_by_another,
    test_another_capacity_raises_capacity_mismatch,
    test_permits_are_given_by_weight_and_never_too_many,
    test_permits_of_dead_holders_are_granted_again_after_their_ttl,
)

pytestmark = [pytest.mark.every_store, pytest.mark.one_version]
