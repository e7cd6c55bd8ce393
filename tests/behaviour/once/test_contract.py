"""What is done once and remembered, on every store."""

from __future__ import annotations

import pytest

from lockstead.testing.contract.once import (
    test_a_caller_that_comes_while_it_is_being_done_waits_for_the_outcome,
    test_an_attempt_that_died_is_taken_over,
    test_what_failed_is_not_done_and_what_cannot_be_kept_is,
    test_what_is_done_once_is_remembered,
)

pytestmark = [pytest.mark.every_store, pytest.mark.one_version]
