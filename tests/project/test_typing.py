"""What a type checker makes of decorated functions: mypy reads this, pytest runs it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, assert_type

from lockstead import AsyncDistributedLock, DistributedLock


def test_a_decorated_function_keeps_its_type() -> None:
    with DistributedLock("memory://typing") as locks:

        @locks.rate_limiter("rate", 100, 1)
        @locks.once("once", 60)
        @locks.lock("lock")
        def work(number: int) -> int:
            return number

        @locks.singleton("job", at_most=60)
        def job() -> int:
            return 2

        assert_type(work(1), int)
        assert_type(job(), int | None)
        assert (work(1), job()) == (1, 2)


def test_a_decorated_coroutine_function_makes_coroutines() -> None:
    async def scenario() -> None:
        async with AsyncDistributedLock("memory://typing") as locks, asyncio.TaskGroup() as group:

            @locks.rate_limiter("async rate", 100, 1)
            @locks.once("async once", 60)
            @locks.lock("async lock")
            async def work(number: int) -> int:
                return number

            @locks.singleton("async job", at_most=60)
            async def job() -> int:
                return 2

            first: Callable[[int], Coroutine[Any, Any, int]] = work
            tasks = group.create_task(first(1)), group.create_task(job())
            assert_type(tasks, tuple[asyncio.Task[int], asyncio.Task[int | None]])
            assert (await tasks[0], await tasks[1]) == (1, 2)

    asyncio.run(scenario())
