"""A connection that all tasks of a loop share: opened once, and never left open by a close."""

from __future__ import annotations

import asyncio

import pytest

from lockstead.runtimes.aio import AsyncRuntime
from lockstead.stores.transport.pipeline import Shared


class Connection:
    is_closed = False

    def retire(self) -> None:
        self.close()

    def close(self) -> None:
        self.is_closed = True

    def abandon(self) -> None:
        raise AssertionError


def test_a_connection_that_is_established_just_before_a_close_is_closed() -> None:
    async def main() -> None:
        connection, answered = Connection(), asyncio.get_running_loop().create_future()

        async def connect(timeout: float) -> Connection:
            await answered
            return connection

        shared = Shared(AsyncRuntime(), connect)
        opening = asyncio.create_task(shared.open(5.0))
        await asyncio.sleep(0.01)  # until it waits for the answer
        answered.set_result(None)
        asyncio.get_running_loop().call_soon(shared.close)  # after the attempt has ended, before its callbacks
        with pytest.raises(ConnectionAbortedError):
            await opening
        assert connection.is_closed
        assert shared.connection is None

    asyncio.run(main())


def test_nothing_is_opened_after_a_close() -> None:
    async def main() -> None:
        async def connect(timeout: float) -> Connection:
            raise AssertionError

        shared = Shared(AsyncRuntime(), connect)
        shared.close()
        with pytest.raises(ConnectionAbortedError):
            await shared.open(5.0)

    asyncio.run(main())
