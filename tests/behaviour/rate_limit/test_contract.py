"""Rate limits, on every store. The bodies are in `lockstead.testing.contract.rate_limit`."""

from __future__ import annotations

import pytest

from lockstead.testing.contract.rate_limit import (
    test_a_burst_is_allowed_once_whichever_client_uses_it,
    test_a_caller_that_waits_is_allowed_in_its_turn_or_refused_at_once,
    test_exactly_a_burst_is_allowed_when_many_clients_ask_at_once,
)

pytestmark = [pytest.mark.every_store, pytest.mark.one_version]
