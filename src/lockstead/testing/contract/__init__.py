"""What every store promises, as tests that you run on yours.

In a test module of yours, import all of it and say how your store is opened: that is the contract.

    from lockstead.testing.contract import *

    @pytest.fixture
    def open_store(tmp_path):
        return lambda runtime: MyStore(runtime, tmp_path)

Each test runs under threads and under asyncio, with a server that nobody has used before. `open_store` gives a function
that opens one more store object of that server each time. What a store says it cannot do, by its `capabilities` or by
having no such method, is not asked of it.
"""

from __future__ import annotations

from importlib import import_module

import pytest

SUBJECTS = ("store", "abilities", "client", "primitives", "rates", "recipes", "elections")
pytest.register_assert_rewrite(*(f"{__name__}.{module}" for module in ("rigs", *SUBJECTS)))

from lockstead.testing.contract.rigs import driver, rig  # noqa: E402 - not before that

_tests = {
    name: test
    for subject in SUBJECTS
    for name, test in vars(import_module(f"{__name__}.{subject}")).items()
    if name.startswith("test_")
}
globals().update(_tests)
__all__ = ["driver", "rig", *_tests]  # noqa: PLE0604 - they are
