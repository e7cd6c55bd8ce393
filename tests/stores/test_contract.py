"""What every store promises the engine."""

from __future__ import annotations

import pytest

from lockstead.stores.registry import SCHEMES
from lockstead.testing.contract.store import *  # noqa: F403
from tests.harness.stores import STORES

pytestmark = pytest.mark.every_store


def test_every_scheme_is_under_contract() -> None:
    other_words = {"rediss": "redis", "valkeys": "redis", "valkey": "redis", "unix": "redis", "redlocks": "redlock"}
    schemes = {scheme.replace("rediss+", "redis+").replace("postgresql", "postgres") for scheme in SCHEMES}
    without_a_scheme = {"quorum"}
    assert {name.partition("-")[0] for name in STORES} - without_a_scheme == {other_words.get(s, s) for s in schemes}
