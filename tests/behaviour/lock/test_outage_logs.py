"""An outage as threads and asyncio log it; `tests/simulation/test_outage_logs.py` has the cases."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence

import pytest

from lockstead import AsyncDistributedLock, DistributedLock, StoreError
from lockstead.core.model import Renewal, Standing
from lockstead.runtimes.aio import AsyncRuntime
from lockstead.runtimes.threads import ThreadRuntime
from lockstead.stores.memory import MemoryStore

WITHIN = 10.0


class FailingStore(MemoryStore):
    """Renews nothing while it is down."""

    down = False
    failures = 0

    async def renew(self, renewals: Sequence[Renewal], timeout: float) -> list[Standing]:
        if self.down:
            self.failures += 1
            raise StoreError("server:6379: connection refused", transient=True)
        return await super().renew(renewals, timeout)


def outages_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    messages = [record.getMessage() for record in caplog.records]
    return [message for message in messages if message.startswith("store ")]


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def check(messages: Sequence[str]) -> None:
    beginning, end = messages
    assert beginning.startswith(
        "store memory:// unreachable (server:6379: connection refused): 20 held leases at risk, first one"
    )
    assert end.startswith("store memory:// reachable again after ")
    assert end.endswith(" s: 20 leases kept, 0 lost")


def test_an_outage_is_logged_once_however_many_threads_notice_it(caplog: pytest.LogCaptureFixture) -> None:
    together = threading.Barrier(4)

    class Slow(FailingStore):
        async def renew(self, renewals: Sequence[Renewal], timeout: float) -> list[Standing]:
            if self.down and self.failures < together.parties:
                together.wait(WITHIN)
            return await super().renew(renewals, timeout)

    store = Slow(ThreadRuntime())
    with DistributedLock(store, ttl=6) as locks:
        handles = [locks.acquire(f"x{number}") for number in range(20)]
        store.down = True
        for handle in handles[: together.parties]:  # each is asked about in a thread of its own
            locks._engine.keeper.suspect(handle._leases[0].ask.owner)
            time.sleep(0.05)
        asyncio.run(until(lambda: store.failures >= together.parties + 2))
        store.down = False
        asyncio.run(until(lambda: len(outages_in(caplog)) == 2))
        check(outages_in(caplog))


def test_an_outage_is_logged_once_under_asyncio(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        store = FailingStore(AsyncRuntime())
        async with AsyncDistributedLock(store, ttl=3) as locks:
            handles = [await locks.acquire(f"x{number}") for number in range(20)]
            store.down = True
            await until(lambda: store.failures >= 3)
            store.down = False
            await until(lambda: len(outages_in(caplog)) == 2)
            assert all(handle.is_held for handle in handles)

    asyncio.run(main())
    check(outages_in(caplog))
