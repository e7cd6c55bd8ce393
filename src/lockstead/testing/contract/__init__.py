"""What every store promises, as tests that you run on yours.

In a test module of yours, import all of it and say how your store is opened: that is the contract.

    from lockstead.testing.contract import *

    @pytest.fixture
    def open_store(tmp_path):
        return lambda runtime: MyStore(runtime, tmp_path)

Each test runs under threads and under asyncio, with a server that was not used before. `open_store` gives a function
that opens one more store object of that server each time. What a store says it cannot do, by its `capabilities` or by
having no such method, is not asked of it.
"""

from lockstead.testing.contract.suite import *  # noqa: F403 - what a user imports with a star, too
