"""A store that was never reached: one error, and no word about a place that was never requested."""

from __future__ import annotations

import asyncio
import logging
from contextlib import closing
from typing import Any

import pytest

from lockstead import AsyncDistributedLock, DistributedLock, RetryPolicy, StoreError
from lockstead.testing.contract.rigs import ask
from tests.servers.ports import Port

UNREACHABLE = ["redis://{host}:{port}", "postgresql://{host}:{port}/db", "postgresql+advisory://{host}:{port}/db"]


@pytest.mark.parametrize("host", ["127.0.0.1", "no-such-host.invalid"])
@pytest.mark.parametrize("url", UNREACHABLE)
@pytest.mark.parametrize("kind", [DistributedLock, AsyncDistributedLock])
def test_a_request_that_was_never_sent_leaves_nothing_to_release_and_nothing_in_the_log(
    kind: Any, url: str, host: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        with closing(Port()) as port:
            locks = kind(url.format(host=host, port=port.number), retry=RetryPolicy(max_retries=1, retry_delay=0.01))
            for attempt in (locks.acquire, locks.try_acquire):
                with pytest.raises(StoreError):
                    await ask(attempt("x"))
            assert locks._engine.keeper.leases == {}
            await ask(locks.close())

    asyncio.run(test())
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []
