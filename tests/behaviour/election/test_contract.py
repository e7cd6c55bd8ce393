"""Leader elections, on every store. The bodies are in `lockstead.testing.contract.election`."""

from __future__ import annotations

import pytest

from lockstead.testing.contract.election import (
    test_a_block_leads_and_resigns_at_its_end,
    test_a_block_whose_leadership_is_lost_ends_with_an_error,
    test_a_callback_may_stop_the_election,
    test_a_failing_on_elected_resigns_and_a_failing_on_lost_has_no_other_effect,
    test_a_leader_deposed_by_force_is_notified_and_campaigns_again,
    test_closing_a_client_ends_its_elections_and_calls_on_lost,
    test_in_the_background_one_candidate_leads_until_it_stops_and_then_another,
    test_observing_shows_every_leader_and_every_vacancy,
    test_one_candidate_leads_and_every_client_sees_the_leader,
    test_release_all_calls_on_lost_first,
    test_the_lock_is_released_only_after_on_lost_has_ended,
)

pytestmark = [pytest.mark.every_store, pytest.mark.one_version]
