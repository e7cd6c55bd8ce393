"""Jobs that one of many clients runs, on every store. The bodies are in `lockstead.testing.contract.singleton`."""

from __future__ import annotations

import pytest

from lockstead.testing.contract.singleton import (
    test_a_job_that_died_is_free_after_at_most,
    test_a_ttl_apart_from_at_most_is_renewed_until_then,
    test_of_many_clients_that_fire_a_tick_one_runs_it,
)

pytestmark = [pytest.mark.every_store, pytest.mark.one_version]
