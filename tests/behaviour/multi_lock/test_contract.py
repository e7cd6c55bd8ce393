"""Several names held at once, on every store. The bodies are in `lockstead.testing.contract.multi_lock`."""

from __future__ import annotations

import pytest

from lockstead.testing.contract.multi_lock import (
    test_a_decorated_call_holds_names_made_of_its_arguments,
    test_several_names_are_held_together_or_not_at_all,
    test_the_loss_of_one_name_of_a_multi_lock_is_the_loss_of_all,
)

pytestmark = [pytest.mark.every_store, pytest.mark.one_version]
