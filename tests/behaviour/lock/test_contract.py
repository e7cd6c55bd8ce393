"""Locks of both façades, on every store. The bodies are in `lockstead.testing.contract.lock`."""

from __future__ import annotations

import pytest

from lockstead.testing.contract.lock import (
    test_a_failing_on_lost_is_logged_and_has_no_other_effect,
    test_a_forced_release_takes_the_lock_away_and_the_loss_is_signalled,
    test_a_guard_is_acquired_and_released_by_hand_and_renewed_in_between,
    test_a_guard_that_is_acquired_by_hand_may_be_released_by_its_handle,
    test_a_handle_releases_its_own_acquisition_only,
    test_a_handle_that_is_dropped_releases_its_lock,
    test_a_lock_is_released_from_whichever_thread_has_the_handle,
    test_a_release_that_finds_its_place_gone_says_so,
    test_a_released_handle_can_only_be_released_again,
    test_a_short_lease_is_renewed_while_it_is_held,
    test_a_timeout_around_a_wait_or_inside_a_block_leaves_nothing,
    test_a_timeout_names_the_holder_and_leaves_no_place,
    test_a_timeout_of_zero_does_not_wait,
    test_a_waiter_gets_the_lock_when_it_is_released_and_a_greater_fence,
    test_an_error_says_that_a_client_waits_for_itself,
    test_an_extension_lengthens_the_hold,
    test_closing_releases_and_ends_all_use,
    test_locks_are_listed_by_prefix,
    test_max_hold_ends_a_hold_that_would_be_renewed_for_ever,
    test_metadata_is_shown_by_an_inspection,
    test_one_client_holds_and_the_other_does_not,
    test_re_entering_a_lost_lock_is_an_error,
    test_re_entrance_is_for_the_same_thread_or_task_only,
    test_re_entrance_is_opt_in_and_counts,
    test_release_all_releases_everything,
    test_releasing_inside_the_block_is_allowed,
    test_the_longest_name_and_the_shortest_and_longest_ttl_are_accepted,
    test_the_repr_of_a_handle_shows_name_fence_and_state,
    test_waiters_are_served_and_where_there_is_a_line_in_the_order_they_came,
    test_without_renewal_a_lease_expires_and_its_holder_is_notified,
)

pytestmark = [pytest.mark.every_store, pytest.mark.one_version]
for takes_a_whole_ttl in (
    test_a_short_lease_is_renewed_while_it_is_held,
    test_without_renewal_a_lease_expires_and_its_holder_is_notified,
    test_max_hold_ends_a_hold_that_would_be_renewed_for_ever,
    test_a_handle_that_is_dropped_releases_its_lock,
):
    pytest.mark.each_clock(takes_a_whole_ttl)
