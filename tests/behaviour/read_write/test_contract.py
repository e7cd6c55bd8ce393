"""Read-write locks, on every store."""

from __future__ import annotations

import pytest

from lockstead.testing.contract.read_write import (
    test_a_reader_of_its_own_writing_reads_and_a_writer_of_its_own_reading_is_refused_at_once,
    test_readers_hold_together_and_writers_alone_in_the_order_they_came,
)

pytestmark = [pytest.mark.every_store, pytest.mark.one_version]
