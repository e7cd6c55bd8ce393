"""All tests of the contract, and the fixtures they need, in one namespace."""

from __future__ import annotations

from importlib import import_module

import pytest

SUBJECTS = (
    *("store", "abilities", "lock", "read_write", "semaphore", "multi_lock", "reservation"),
    *("singleton", "once", "rate_limit", "election"),
)
pytest.register_assert_rewrite(*(f"{__package__}.{module}" for module in ("rigs", *SUBJECTS)))

from lockstead.testing.contract.rigs import rig, runtime_name  # noqa: E402 - not before that

_tests = {
    name: test
    for subject in SUBJECTS
    for name, test in vars(import_module(f"{__package__}.{subject}")).items()
    if name.startswith("test_")
}
globals().update(_tests)
__all__ = ["runtime_name", "rig", *_tests]  # noqa: PLE0604 - they are
