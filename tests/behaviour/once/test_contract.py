"""Idempotency keys, on every store. The bodies are in `lockstead.testing.contract.once`."""

from __future__ import annotations

import pytest

from lockstead.testing.contract.once import (
    test_a_call_of_once_during_another_waits_for_its_outcome,
    test_an_attempt_of_once_whose_client_died_is_repeated,
    test_once_retries_what_failed_and_does_not_repeat_what_could_not_be_stored,
    test_once_returns_the_stored_result_to_later_calls,
)

pytestmark = [pytest.mark.every_store, pytest.mark.one_version]
