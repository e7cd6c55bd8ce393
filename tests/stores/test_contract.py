"""What every store promises the engine.

The bodies are in `lockstead.testing.contract.store`, and in `lockstead.testing.contract.abilities` for what a store may
lack: reservations, several names at once, rate limits.
"""

from __future__ import annotations

import pytest

from lockstead.stores.registry import SCHEMES
from lockstead.testing.contract.abilities import (
    test_a_burst_is_allowed_at_once_and_no_more_and_a_refused_request_costs_nothing,
    test_a_late_join_after_a_reservation_in_doubt_is_refused,
    test_a_late_join_of_a_reserving_owner_is_released_and_blocks_no_client,
    test_a_name_stays_reserved_and_no_request_of_its_holder_finds_it,
    test_a_place_that_does_not_hold_leaves_instead_of_reserving,
    test_a_place_that_leaves_instead_of_reserving_wakes_the_next_waiter,
    test_a_request_that_may_wait_reserves_its_turn_in_advance,
    test_a_reservation_may_be_shorter_than_the_hold_and_the_first_waiter_then_holds,
    test_a_reservation_may_show_other_metadata_than_the_hold,
    test_a_sum_of_fractions_may_be_off_by_a_little,
    test_a_used_burst_is_allowed_again_with_time,
    test_join_all_holds_every_line_and_may_be_repeated,
    test_one_line_that_refuses_leaves_nothing_in_the_others_and_is_named,
    test_one_of_several_holders_reserves_and_the_others_are_as_before,
)
from lockstead.testing.contract.store import (
    test_a_dead_holder_blocks_for_its_ttl,
    test_a_granted_waiter_gets_its_ttl_by_a_renewal_that_claims_it,
    test_a_join_that_arrives_after_its_owner_left_is_refused,
    test_a_join_that_will_not_wait_is_refused_and_leaves_no_trace,
    test_a_newcomer_does_not_overtake_a_waiter,
    test_a_renewal_by_another_owner_does_nothing,
    test_a_renewal_lengthens_and_never_shortens,
    test_a_renewal_never_resurrects,
    test_a_repeated_join_finds_its_own_place_and_refreshes_it,
    test_a_store_has_an_address_for_log_lines,
    test_a_wait_ends_at_its_timeout,
    test_a_waiter_that_gave_up_is_passed_over,
    test_a_waiting_place_lasts_for_a_heartbeat_not_for_its_ttl,
    test_an_inspection_shows_the_line_as_it_is,
    test_another_capacity_is_refused_until_the_line_is_empty,
    test_capacity_is_shared_by_weight,
    test_leaving_wakes_the_next_waiter_and_no_other,
    test_names_are_taken_literally,
    test_of_many_joins_at_once_one_holds_and_all_have_tickets_of_their_own,
    test_one_batch_renews_what_is_there_and_reports_what_is_not,
    test_only_the_first_waiter_gets_a_time_to_recheck,
    test_only_the_owner_leaves_and_only_once,
    test_readers_hold_together_and_a_writer_alone,
    test_the_first_to_join_holds,
    test_the_line_is_served_in_the_order_of_joining,
    test_the_second_to_join_waits_and_gets_the_holder,
    test_tickets_grow_over_names_and_over_empty_lines,
)
from tests.harness.stores import STORES

pytestmark = pytest.mark.every_store


def test_every_scheme_is_under_contract() -> None:
    other_words = {"rediss": "redis", "valkeys": "redis", "valkey": "redis", "unix": "redis", "redlocks": "redlock"}
    schemes = {scheme.replace("rediss+", "redis+").replace("postgresql", "postgres") for scheme in SCHEMES}
    without_a_scheme = {"quorum"}
    assert {name.partition("-")[0] for name in STORES} - without_a_scheme == {other_words.get(s, s) for s in schemes}
