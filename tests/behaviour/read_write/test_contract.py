"""Read-write locks, on every store. The bodies are in `lockstead.testing.contract.read_write`."""

from __future__ import annotations

import pytest

from lockstead.testing.contract.read_write import (
    test_a_writer_may_read_too_and_a_reader_that_requests_the_write_side_is_refused,
    test_readers_hold_together_and_writers_alone_in_the_order_they_came,
)

pytestmark = [pytest.mark.every_store, pytest.mark.one_version]
